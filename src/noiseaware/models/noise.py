"""Logistic noise, from which a yes/no value is made: 1 where the noise is below a score."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware import randomness


def logistic_noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
    uniform = randomness.uniform(key, shape)
    return jnp.log(uniform) - jnp.log1p(-uniform)


def is_below(score: Float[Array, "..."], noise: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 where a logistic noise is below the score, which has probability sigmoid(score)."""
    return jnp.asarray(noise < score, float)


def noise_given_side(score, is_below, fresh) -> Float[Array, "..."]:
    """For 1 the noise's distribution function is uniform between 0 and that of the score; for 0 the
    same holds of minus noise and minus score.
    """
    sign = 2 * is_below - 1
    share = jax.nn.sigmoid(fresh)
    rest = (1 - share) + share * jax.nn.sigmoid(-sign * score)
    return sign * (jax.nn.log_sigmoid(sign * score) + jnp.log(share) - jnp.log(rest))
