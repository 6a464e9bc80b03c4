"""A draw of a NumPyro distribution as ``value = phi(distribution, noise)``, and back.

The law of the noise is free of the distribution's parameters. Location-scale families keep their
natural noise, which loses no digits in the tails; a discrete value is a quantile, and its noise
given the value a draw from those that give it, made from ``fresh`` noise.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, PRNGKeyArray

from noiseaware import randomness
from noiseaware.models.dirichlet_categorical import cell, edges, within_cell
from noiseaware.models.noise import is_below, logistic_noise, noise_given_side
from noiseaware.models.poisson import noise_of_count, quantile


class NoiseMap(NamedTuple):
    """``sample(key, shape)`` draws noise; the others are for one value of a distribution."""

    sample: Callable[[PRNGKeyArray, tuple[int, ...]], Array]
    value: Callable[[Any, Array], Array]
    noise: Callable[[Any, Array, Array], Array]


def find(distribution: dist.Distribution) -> NoiseMap | None:
    """That of a distribution's family, or nothing where none is known."""
    if isinstance(distribution, (dist.Independent, dist.ExpandedDistribution)):
        inner = find(distribution.base_dist)
        return inner and NoiseMap(
            inner.sample,
            lambda outer, noise: inner.value(outer.base_dist, noise),
            lambda outer, value, fresh: inner.noise(outer.base_dist, value, fresh),
        )
    if isinstance(distribution, dist.TransformedDistribution):
        return _transformed(distribution)
    return MAPS.get(type(distribution))


def _transformed(distribution: dist.TransformedDistribution) -> NoiseMap | None:
    inner = find(distribution.base_dist)
    if inner is None:
        return None

    def value(outer, noise):
        x = inner.value(outer.base_dist, noise)
        for transform in outer.transforms:
            x = transform(x)
        return x

    def noise(outer, value, fresh):
        for transform in reversed(outer.transforms):
            value = transform.inv(value)
        return inner.noise(outer.base_dist, value, fresh)

    return NoiseMap(inner.sample, value, noise)


def _location_scale(sample: Callable) -> NoiseMap:
    return NoiseMap(
        sample,
        lambda d, noise: d.loc + d.scale * noise,
        lambda d, value, fresh: (value - d.loc) / d.scale,
    )


def _scale(sample: Callable) -> NoiseMap:
    return NoiseMap(
        sample, lambda d, noise: d.scale * noise, lambda d, value, fresh: value / d.scale
    )


def _laplace(key, shape):
    uniform = 2 * randomness.uniform(key, shape) - 1
    return -jnp.sign(uniform) * jnp.log1p(-jnp.abs(uniform))


def _cauchy(key, shape):
    return jnp.tan(math.pi * (randomness.uniform(key, shape) - 0.5))


def _gumbel(key, shape):
    return -jnp.log(randomness.exponential(key, shape))


def _half_normal(key, shape):
    return jnp.abs(randomness.normal(key, shape))


def _bernoulli(score: Callable) -> NoiseMap:
    return NoiseMap(
        logistic_noise,
        lambda d, noise: is_below(score(d), noise),
        lambda d, value, fresh: noise_given_side(score(d), value, fresh),
    )


def _per_value(function: Callable, signature: str) -> Callable:
    """A function of one value, for values of any shape."""
    return jnp.vectorize(function, signature=signature)


def _categorical_value(d, noise):
    return _per_value(lambda p, u: cell(edges(p), u), "(k),()->()")(d.probs, noise)


def _categorical_noise(d, value, fresh):
    def within(p, level, u):
        return within_cell(edges(p), level, u)

    return _per_value(within, "(k),(),()->()")(d.probs, value, fresh)


def _geometric_value(d, noise):
    return jnp.floor(-noise / jnp.log1p(-d.probs))


def _geometric_noise(d, value, fresh):
    """The exponential noise, known to lie between two multiples of the rate: truncated there."""
    rate = -jnp.log1p(-d.probs)
    within = -jnp.log1p(jnp.expm1(-rate) * -jnp.expm1(-fresh))
    return value * rate + within


_CATEGORICAL = NoiseMap(randomness.uniform, _categorical_value, _categorical_noise)
_GEOMETRIC = NoiseMap(randomness.exponential, _geometric_value, _geometric_noise)

MAPS: dict[type, NoiseMap] = {
    dist.Normal: _location_scale(randomness.normal),
    dist.Logistic: _location_scale(logistic_noise),
    dist.Laplace: _location_scale(_laplace),
    dist.Cauchy: _location_scale(_cauchy),
    dist.Gumbel: _location_scale(_gumbel),
    dist.HalfNormal: _scale(_half_normal),
    dist.Exponential: NoiseMap(
        randomness.exponential,
        lambda d, noise: noise / d.rate,
        lambda d, value, fresh: value * d.rate,
    ),
    dist.Weibull: NoiseMap(
        randomness.exponential,
        lambda d, noise: d.scale * noise ** (1 / d.concentration),
        lambda d, value, fresh: (value / d.scale) ** d.concentration,
    ),
    dist.Uniform: NoiseMap(
        randomness.uniform,
        lambda d, noise: d.low + (d.high - d.low) * noise,
        lambda d, value, fresh: (value - d.low) / (d.high - d.low),
    ),
    dist.MultivariateNormal: NoiseMap(
        randomness.normal,
        lambda d, noise: d.loc + d.scale_tril @ noise,
        lambda d, value, fresh: jax.scipy.linalg.solve_triangular(
            d.scale_tril, value - d.loc, lower=True
        ),
    ),
    dist.BernoulliProbs: _bernoulli(lambda d: jnp.log(d.probs) - jnp.log1p(-d.probs)),
    dist.BernoulliLogits: _bernoulli(lambda d: d.logits),
    dist.CategoricalProbs: _CATEGORICAL,
    dist.CategoricalLogits: _CATEGORICAL,
    dist.GeometricProbs: _GEOMETRIC,
    dist.GeometricLogits: _GEOMETRIC,
    dist.Poisson: NoiseMap(
        logistic_noise,
        lambda d, noise: _per_value(quantile, "(),()->()")(noise, d.rate),
        lambda d, value, fresh: noise_of_count(value, d.rate, fresh),
    ),
}
