"""Gamma column of known shape: ``rate ~ Gamma``, ``x_i ~ Gamma(shape, rate)``.

phi: ``x = e / rate`` with e of the gamma law with rate 1.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaln

from noiseaware import validate
from noiseaware.models.domain import Positives
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import GammaPrior
from noiseaware.models.support import Positive
from noiseaware.schema import Real

MIN_SHAPE = 0.06  # below, records are smaller than the smallest number too often


class Gamma(ExponentialFamily):
    """A positive column with mean ``shape / rate``; ``shape`` is a number, and known."""

    column: str = eqx.field(static=True)
    shape: np.ndarray
    rate: GammaPrior

    def __init__(self, column: str, shape, rate: GammaPrior):
        self.column = validate.column_name("column", column)
        self.shape = validate.scalar("shape", validate.positive("shape", shape))
        if self.shape < MIN_SHAPE:
            raise ValueError(f"shape must be at least {MIN_SHAPE}, got {self.shape:g}.")
        if not isinstance(rate, GammaPrior):
            raise ValueError(f"rate must be a GammaPrior, got {rate!r}.")
        self.rate = rate

    @property
    def columns(self):
        return {self.column: Real()}

    @property
    def supports(self):
        return {"rate": Positive()}

    @property
    def domain(self):
        return Positives()

    def natural(self, params):
        return jnp.stack([-params["rate"]])

    def log_partition(self, natural):
        return -self.shape * jnp.log(-natural[0])

    def log_base(self, x):
        return (self.shape - 1) * jnp.log(x) - gammaln(self.shape)

    def sample_prior(self, key):
        return {"rate": self.rate.sample(key)}

    def log_prior(self, params):
        return self.rate.log_density(params["rate"])

    def sample_params(self, key, params, sums, num_records):
        return {"rate": self.rate.sample_posterior(key, num_records * self.shape, sums[0])}

    def is_possible(self, sums, num_records):
        return sums[0] > 0

    def sample_noise(self, key, num_records):
        return {self.column: jr.gamma(key, self.shape, (num_records,))}

    def record(self, params, noise):
        return {self.column: noise[self.column] / params["rate"]}

    def noise(self, params, record, fresh):
        return {self.column: record[self.column] * params["rate"]}
