"""Beta-Bernoulli: ``probability ~ Beta(a, b)``, ``x_i ~ Bernoulli(probability)``.

phi: ``x = 1[u < probability]`` with u uniform; given x, u is uniform on the side x names.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats

from noiseaware import randomness, validate
from noiseaware.models.model import Model
from noiseaware.models.support import UnitInterval
from noiseaware.schema import Binary


class BetaBernoulli(Model):
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

    def sample_posterior(self, key, params, records):
        column = records[self.column]
        ones = jnp.sum(column)
        return {"probability": jr.beta(key, self.a + ones, self.b + column.size - ones)}

    def log_record(self, params, record):
        return stats.bernoulli.logpmf(record[self.column], params["probability"])

    def sample_noise(self, key, num_records):
        return {self.column: randomness.uniform(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: jnp.asarray(noise[self.column] < params["probability"], float)}

    def noise(self, params, record, fresh):
        p, uniform = params["probability"], fresh[self.column]
        return {self.column: jnp.where(record[self.column] > 0, p * uniform, p + (1 - p) * uniform)}
