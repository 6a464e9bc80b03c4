"""``log x!``, several times faster on a CPU than by JAX's ``gammaln``, for x > -1."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

SHIFT = 9
STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360]


def log_factorial(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Stirling's series at z = x + 10, over (x + 1) ... (x + 9); its end is below rounding."""
    z = x + (SHIFT + 1)
    series = jnp.zeros_like(z)
    for coefficient in STIRLING[::-1]:
        series = series / z**2 + coefficient
    product = jnp.ones_like(z)
    for k in range(1, SHIFT + 1):
        product = product * ((x + k) / z)
    log_gamma = (z - 0.5 - SHIFT) * jnp.log(z) - z + math.log(2 * math.pi) / 2 + series / z
    return log_gamma - jnp.log(product)
