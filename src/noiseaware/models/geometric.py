"""Geometric column: ``probability ~ Beta(a, b)``, ``P(x_i = k) = probability (1 -
probability)^k``, the failures before a first success.

phi: ``x = floor(e / c)`` with e standard exponential and ``c = -log(1 - probability)``; given x, e
is exponential within [x c, (x + 1) c).
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats
from jax.scipy.special import xlog1py

from noiseaware import randomness, validate
from noiseaware.models.domain import Wholes
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.support import UnitInterval
from noiseaware.schema import Whole


class Geometric(ExponentialFamily):
    """A column of failures before the first success. ``a`` and ``b`` count as earlier successes
    and failures.
    """

    column: str = eqx.field(static=True)
    a: np.ndarray
    b: np.ndarray

    def __init__(self, column: str, a=1.0, b=1.0):
        self.column = validate.column_name("column", column)
        self.a = validate.scalar("a", validate.positive("a", a))
        self.b = validate.scalar("b", validate.positive("b", b))

    @property
    def columns(self):
        return {self.column: Whole()}

    @property
    def supports(self):
        return {"probability": UnitInterval()}

    @property
    def domain(self):
        return Wholes()

    def natural(self, params):
        return jnp.stack([jnp.log1p(-params["probability"])])

    def log_partition(self, natural):
        return -jnp.log(-jnp.expm1(natural[0]))

    def log_base(self, x):
        return jnp.zeros_like(x)

    def log_density(self, params, x):
        p = params["probability"]
        return xlog1py(x, -p) + jnp.log(p)

    def sample_prior(self, key):
        return {"probability": _below_1(jr.beta(key, self.a, self.b))}

    def log_prior(self, params):
        return stats.beta.logpdf(params["probability"], self.a, self.b)

    def sample_params(self, key, params, sums, num_records):
        drawn = jr.beta(key, self.a + num_records, self.b + sums[0])
        return {"probability": _below_1(drawn)}

    def is_possible(self, sums, num_records):
        return sums[0] >= 0

    def sample_noise(self, key, num_records):
        return {self.column: randomness.exponential(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: jnp.floor(noise[self.column] / _step(params))}

    def noise(self, params, record, fresh):
        # The uniform that belongs to ``fresh``, brought into one step.
        within = -jnp.log1p(jnp.expm1(-fresh[self.column]) * params["probability"])
        return {self.column: record[self.column] * _step(params) + within}


def _step(params):
    return -jnp.log1p(-params["probability"])


def _below_1(probability):
    """As rounded, a draw may be 1, where a record has no law but to be 0."""
    return jnp.minimum(probability, 1 - jnp.finfo(probability.dtype).epsneg)
