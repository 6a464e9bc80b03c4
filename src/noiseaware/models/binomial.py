"""Binomial column: ``probability ~ Beta(a, b)``, ``x_i ~ Binomial(trials, probability)``.

phi: x is the cell of the cumulated probabilities into which u, uniform, falls; given x, u is
uniform on that cell.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats
from jax.scipy.special import gammaln

from noiseaware import randomness, validate
from noiseaware.models.dirichlet_categorical import cell, edges, within_cell
from noiseaware.models.domain import Levels
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.support import UnitInterval
from noiseaware.schema import Whole


class Binomial(ExponentialFamily):
    """A column of successes in ``trials`` trials. ``a`` and ``b`` count as earlier successes and
    failures.
    """

    column: str = eqx.field(static=True)
    trials: int = eqx.field(static=True)
    a: np.ndarray
    b: np.ndarray

    def __init__(self, column: str, trials: int, a=1.0, b=1.0):
        self.column = validate.column_name("column", column)
        self.trials = validate.positive_integer("trials", trials)
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
        return Levels(self.trials + 1)

    def natural(self, params):
        p = params["probability"]
        return jnp.stack([jnp.log(p) - jnp.log1p(-p)])

    def log_partition(self, natural):
        return self.trials * jnp.logaddexp(0.0, natural[0])

    def log_base(self, x):
        return gammaln(self.trials + 1.0) - gammaln(x + 1) - gammaln(self.trials - x + 1)

    def log_density(self, params, x):
        return stats.binom.logpmf(x, self.trials, params["probability"])

    def sample_prior(self, key):
        return {"probability": jr.beta(key, self.a, self.b)}

    def log_prior(self, params):
        return stats.beta.logpdf(params["probability"], self.a, self.b)

    def sample_params(self, key, params, sums, num_records):
        successes = sums[0]
        failures = num_records * self.trials - successes
        return {"probability": jr.beta(key, self.a + successes, self.b + failures)}

    def is_possible(self, sums, num_records):
        return (sums[0] >= 0) & (sums[0] <= num_records * self.trials)

    def sample_noise(self, key, num_records):
        return {self.column: randomness.uniform(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: 1.0 * cell(self._edges(params), noise[self.column])}

    def noise(self, params, record, fresh):
        index = jnp.asarray(record[self.column], int)
        return {self.column: within_cell(self._edges(params), index, fresh[self.column])}

    def _edges(self, params):
        counts = np.arange(self.trials + 1.0)
        return edges(jnp.exp(stats.binom.logpmf(counts, self.trials, params["probability"])))
