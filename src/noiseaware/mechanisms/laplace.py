"""Laplace mechanism [DMNS06]: ``s = T(x) + e`` with ``e_j ~ Laplace(0, b_j)`` independent."""

from typing import ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from noiseaware import validate
from noiseaware.accounting import PureDP
from noiseaware.mechanisms.mechanism import Mechanism, noise_units, privatize_each


class Laplace(Mechanism):
    """Additive Laplace noise of scale ``b``, one number or one for each sum; its standard deviation
    is ``sqrt(2) b``.

    Guarantee: ``(sensitivity_l1 / b)``-DP.
    """

    # NumPy float64, not float: a Python float would recompile for every value, and a
    # jax array made outside the float64 scope would be rounded to float32.
    scale: np.ndarray

    norm: ClassVar[int] = 1
    is_discrete: ClassVar[bool] = False

    def __init__(self, scale):
        self.scale = validate.positive("scale", scale)

    def spread(self):
        return self.scale

    def simulate(self, key, total):
        return total + self.scale * jr.laplace(key, total.shape)

    def privatize(self, total):
        return privatize_each("make_laplace", "f64", total, self.scale)

    def log_density(self, released, total):
        return -jnp.sum(jnp.abs(released - total) / self.scale + jnp.log(2 * self.scale))

    def cost(self, sensitivity, neighbours):
        return PureDP(noise_units(sensitivity, self.scale), neighbours)
