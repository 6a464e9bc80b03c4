"""Pareto column of known minimum: ``exponent ~ Gamma``, ``P(x_i > x) = (minimum / x)^exponent``.

phi: ``x = minimum exp(e / exponent)`` with e standard exponential.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from noiseaware import randomness, validate
from noiseaware.models.domain import Positives
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import GammaPrior
from noiseaware.models.support import Positive
from noiseaware.schema import Real


class Pareto(ExponentialFamily):
    """A column with a heavy tail above ``minimum``, such as large incomes."""

    column: str = eqx.field(static=True)
    minimum: np.ndarray
    exponent: GammaPrior

    def __init__(self, column: str, minimum, exponent: GammaPrior):
        self.column = validate.column_name("column", column)
        self.minimum = validate.scalar("minimum", validate.positive("minimum", minimum))
        if not isinstance(exponent, GammaPrior):
            raise ValueError(f"exponent must be a GammaPrior, got {exponent!r}.")
        self.exponent = exponent

    @property
    def columns(self):
        return {self.column: Real()}

    @property
    def supports(self):
        return {"exponent": Positive()}

    @property
    def features(self):
        return ("log x",)

    @property
    def domain(self):
        return Positives(self.minimum)

    def natural(self, params):
        return jnp.stack([-params["exponent"]])

    def log_partition(self, natural):
        return natural[0] * jnp.log(self.minimum) - jnp.log(-natural[0])

    def log_base(self, x):
        return -jnp.log(x)

    def sample_prior(self, key):
        return {"exponent": self.exponent.sample(key)}

    def log_prior(self, params):
        return self.exponent.log_density(params["exponent"])

    def sample_params(self, key, params, sums, num_records):
        excess = sums[0] - num_records * jnp.log(self.minimum)
        return {"exponent": self.exponent.sample_posterior(key, num_records, excess)}

    def is_possible(self, sums, num_records):
        return sums[0] > num_records * jnp.log(self.minimum)

    def sample_noise(self, key, num_records):
        return {self.column: randomness.exponential(key, (num_records,))}

    def record(self, params, noise):
        x = self.minimum * jnp.exp(noise[self.column] / params["exponent"])
        return {self.column: jnp.minimum(x, jnp.finfo(x.dtype).max)}

    def noise(self, params, record, fresh):
        return {self.column: params["exponent"] * jnp.log(record[self.column] / self.minimum)}
