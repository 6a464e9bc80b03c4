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

    def sample_variances(self, key, noise):
        """Laplace noise is normal with an exponential variance of mean ``2 b^2``. Given the noise,
        ``b^2 / variance`` is inverse Gaussian with mean ``1 / r``, ``r = |noise| / b``, and shape 1
        [BS18, App. B]; in the form of [MSH76], written for the variance,
        nothing cancels or overflows as r falls to 0, where the variance is ``b^2 chi^2_1``.
        """
        key_square, key_choice = jr.split(key)
        ratio = jnp.abs(noise) / self.scale
        square = jr.normal(key_square, noise.shape) ** 2
        root = ratio + (square + jnp.sqrt(square * (4 * ratio + square))) / 2
        is_root = jr.uniform(key_choice, noise.shape) * (root + ratio) <= root
        smallest = jnp.finfo(root.dtype).tiny
        root = jnp.maximum(root, smallest)
        variance = jnp.where(is_root, root, ratio**2 / root)
        return self.scale**2.0 * jnp.maximum(variance, smallest)

    def log_density(self, released, total):
        return -jnp.sum(jnp.abs(released - total) / self.scale + jnp.log(2 * self.scale))

    def cost(self, sensitivity, neighbours):
        return PureDP(noise_units(sensitivity, self.scale), neighbours)
