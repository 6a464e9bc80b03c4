"""Exponential column: ``rate ~ Gamma(shape, rate)``, ``x_i ~ Exponential(rate)``.

phi: ``x = e / rate`` with e standard exponential.
"""

import equinox as eqx
import jax.numpy as jnp

from noiseaware import randomness, validate
from noiseaware.models.domain import Positives
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import GammaPrior
from noiseaware.models.support import Positive
from noiseaware.schema import Real


class Exponential(ExponentialFamily):
    """A positive column, such as a waiting time; its mean is ``1 / rate``."""

    column: str = eqx.field(static=True)
    rate: GammaPrior

    def __init__(self, column: str, rate: GammaPrior):
        self.column = validate.column_name("column", column)
        if not isinstance(rate, GammaPrior):
            raise ValueError(f"rate must be a GammaPrior, got {rate!r}.")
        self.rate = rate

    @property
    def columns(self):
        return {self.column: Real()}

    @property
    def supports(self):
        return {"rate": Positive()}

    def sample_prior(self, key):
        return {"rate": self.rate.sample(key)}

    def log_prior(self, params):
        return self.rate.log_density(params["rate"])

    @property
    def domain(self):
        return Positives()

    def natural(self, params):
        return jnp.stack([-params["rate"]])

    def log_partition(self, natural):
        return -jnp.log(-natural[0])

    def log_base(self, x):
        return jnp.zeros_like(x)

    def sample_params(self, key, params, sums, num_records):
        return {"rate": self.rate.sample_posterior(key, num_records, sums[0])}

    def is_possible(self, sums, num_records):
        return sums[0] > 0

    def sample_noise(self, key, num_records):
        return {self.column: randomness.exponential(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: noise[self.column] / params["rate"]}

    def noise(self, params, record, fresh):
        return {self.column: record[self.column] * params["rate"]}
