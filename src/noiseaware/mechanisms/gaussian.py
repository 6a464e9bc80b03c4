"""Gaussian mechanism: ``s = T(x) + e`` with ``e_j ~ N(0, stddev_j^2)`` independent."""

from typing import ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.stats import norm as normal

from noiseaware import validate
from noiseaware.accounting import GDP
from noiseaware.mechanisms.mechanism import Mechanism, noise_units, privatize_each


class Gaussian(Mechanism):
    """Additive normal noise.

    Guarantee: ``(sensitivity_l2 / stddev)``-GDP [DRS21, Thm. 2.7], exactly.
    """

    stddev: np.ndarray

    norm: ClassVar[int] = 2
    is_discrete: ClassVar[bool] = False

    def __init__(self, stddev):
        self.stddev = validate.positive("stddev", stddev)

    def spread(self):
        return self.stddev

    def simulate(self, key, total):
        return total + self.stddev * jr.normal(key, total.shape)

    def privatize(self, total):
        return privatize_each("make_gaussian", "f64", total, self.stddev)

    def sample_variances(self, key, noise):
        return jnp.broadcast_to(self.stddev**2.0, noise.shape)

    def log_density(self, released, total):
        return jnp.sum(normal.logpdf(released, total, self.stddev))

    def cost(self, sensitivity, neighbours):
        return GDP(noise_units(sensitivity, self.stddev), neighbours)
