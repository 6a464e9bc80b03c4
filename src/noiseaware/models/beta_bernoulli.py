"""Beta-Bernoulli: ``probability ~ Beta(a, b)``, ``x_i ~ Bernoulli(probability)``.

phi: ``x = 1[u < probability]`` with u uniform; given x, u is uniform on the side x names.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats

from noiseaware import randomness, validate
from noiseaware.models.domain import Levels
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.support import UnitInterval
from noiseaware.schema import Binary


class BetaBernoulli(ExponentialFamily):
    """A yes/no column. ``a`` and ``b`` count as earlier ones and zeros."""

    column: str = eqx.field(static=True)
    a: np.ndarray
    b: np.ndarray

    def __init__(self, column: str, a=1.0, b=1.0):
        self.column = validate.column_name("column", column)
        self.a = validate.scalar("a", validate.positive("a", a))
        self.b = validate.scalar("b", validate.positive("b", b))

    @property
    def columns(self):
        return {self.column: Binary()}

    @property
    def supports(self):
        return {"probability": UnitInterval()}

    def sample_prior(self, key):
        return {"probability": jr.beta(key, self.a, self.b)}

    def log_prior(self, params):
        return stats.beta.logpdf(params["probability"], self.a, self.b)

    @property
    def domain(self):
        return Levels(2)

    def natural(self, params):
        p = params["probability"]
        return jnp.stack([jnp.log(p) - jnp.log1p(-p)])

    def log_partition(self, natural):
        return jnp.logaddexp(0.0, natural[0])

    def log_base(self, x):
        return jnp.zeros_like(x)

    def log_density(self, params, x):
        return stats.bernoulli.logpmf(x, params["probability"])

    def sample_params(self, key, params, sums, num_records):
        ones = sums[0]
        return {"probability": jr.beta(key, self.a + ones, self.b + num_records - ones)}

    def is_possible(self, sums, num_records):
        return (sums[0] >= 0) & (sums[0] <= num_records)

    def sample_noise(self, key, num_records):
        return {self.column: randomness.uniform(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: jnp.asarray(noise[self.column] < params["probability"], float)}

    def noise(self, params, record, fresh):
        p, uniform = params["probability"], fresh[self.column]
        return {self.column: jnp.where(record[self.column] > 0, p * uniform, p + (1 - p) * uniform)}
