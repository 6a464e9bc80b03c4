"""Discrete Laplace mechanism [GRS12]: ``s = T(x) + e`` on the integers,
``P(e_j = k) = tanh(1 / 2b_j) exp(-|k| / b_j)``.

For whole-number sums only: no rounding, no floating point in the guarantee.
"""

from typing import ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from noiseaware import validate
from noiseaware.accounting import PureDP
from noiseaware.mechanisms.mechanism import Mechanism, noise_units, privatize_each


class DiscreteLaplace(Mechanism):
    """Additive two-sided geometric noise of scale ``b``.

    Guarantee: ``(sensitivity_l1 / b)``-DP.
    """

    scale: np.ndarray

    norm: ClassVar[int] = 1
    is_discrete: ClassVar[bool] = True

    def __init__(self, scale):
        self.scale = validate.positive("scale", scale)

    def spread(self):
        return self.scale

    def simulate(self, key, total):
        """The difference of two geometrics, ``P(G >= k) = exp(-k / b)``."""
        geometrics = jnp.floor(self.scale * jr.exponential(key, (2, *total.shape)))
        return total + geometrics[0] - geometrics[1]

    def privatize(self, total):
        return privatize_each("make_laplace", "i64", total, self.scale)

    def log_density(self, released, total):
        log_mass_at_0 = jnp.log(jnp.tanh(0.5 / self.scale))
        return jnp.sum(log_mass_at_0 - jnp.abs(released - total) / self.scale)

    def cost(self, sensitivity, neighbours):
        return PureDP(noise_units(sensitivity, self.scale), neighbours)
