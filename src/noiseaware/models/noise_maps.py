"""A draw of a NumPyro distribution as ``value = phi(distribution, noise)``, and back.

The law of the noise is free of the distribution's parameters. Location-scale families keep their
natural noise, which loses no digits in the tails; a discrete value is a quantile, and its noise
given the value a draw from those that give it, made from ``fresh`` noise.

Where the quantile has no formula the noise is logistic, the log-odds of the distribution function,
and the value is searched for. Incomplete gamma and beta functions are continued fractions here
(DLMF 8.9, 8.17.22): always of the tail that has all its digits, and many times faster than those of
JAX, which run on until no bit changes.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.nn import log_sigmoid, sigmoid, softplus
from jax.scipy.special import betaln, gammaln
from jaxtyping import Array, Float, PRNGKeyArray

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
    is_folded = any(isinstance(t, dist.transforms.AbsTransform) for t in distribution.transforms)
    if inner is None or is_folded or distribution.shape() != distribution.base_dist.shape():
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


def _half_cauchy(key, shape):
    return jnp.abs(_cauchy(key, shape))


def _soft_laplace(key, shape):
    return jnp.log(jnp.tan(math.pi / 2 * randomness.uniform(key, shape)))


def _levy(key, shape):
    return randomness.normal(key, shape) ** -2


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


def _discrete_uniform_value(d, noise):
    return jnp.floor(d.low + (d.high - d.low + 1) * noise)


def _discrete_uniform_noise(d, value, fresh):
    return (value - d.low + fresh) / (d.high - d.low + 1)


def _inside_unit(value):
    """Away from 0 and 1, to which a float may round: a log-odds of the value is finite."""
    limits = jnp.finfo(jnp.result_type(float))
    return jnp.clip(value, limits.tiny, 1 - limits.epsneg)


def _positive(value):
    return jnp.maximum(value, jnp.finfo(jnp.result_type(float)).tiny)


def _kumaraswamy_value(d, noise):
    return _inside_unit((-jnp.expm1(-noise / d.concentration0)) ** (1 / d.concentration1))


def _kumaraswamy_noise(d, value, fresh):
    log_power = d.concentration1 * jnp.log(_inside_unit(value))
    return -d.concentration0 * jnp.log(-jnp.expm1(log_power))


def _asymmetric_laplace_value(d, noise):
    below = log_sigmoid(noise) - log_sigmoid(2 * jnp.log(d.asymmetry))
    above = log_sigmoid(-noise) - log_sigmoid(-2 * jnp.log(d.asymmetry))
    return d.loc + jnp.where(below < 0, d.left_scale * below, -d.right_scale * above)


def _asymmetric_laplace_noise(d, value, fresh):
    distance = value - d.loc
    sign = jnp.where(distance < 0, -1, 1)
    scale = jnp.where(distance < 0, d.left_scale, d.right_scale)
    tail = log_sigmoid(-2 * sign * jnp.log(d.asymmetry)) - jnp.abs(distance) / scale
    return -sign * _log_odds(tail)


def _log_odds(log_probability):
    return log_probability - jnp.log1p(-jnp.exp(log_probability))


def _gamma_odds(shape: Float[Array, ""], x: Float[Array, ""]) -> Float[Array, ""]:
    """Of a standard gamma value below x."""
    is_upper = x > shape + 2

    def terms(m):
        at = shape + 2 * m
        return (
            jnp.where(is_upper, (m + 1 - shape) / x, -(shape + m) * x / (at * (at + 1))),
            jnp.where(is_upper, (m + 1) / x, (m + 1) * x / ((at + 1) * (at + 2))),
        )

    scale = _fraction(terms) * jnp.where(is_upper, x, shape)
    return _odds_of_tail(shape * jnp.log(x) - x - gammaln(shape) - jnp.log(scale), is_upper)


def _beta_odds(
    a: Float[Array, ""], b: Float[Array, ""], logit: Float[Array, ""]
) -> Float[Array, ""]:
    """Of a Beta(a, b) value below ``sigmoid(logit)``."""
    log_power = a * log_sigmoid(logit) + b * log_sigmoid(-logit) - betaln(a, b)
    is_upper = sigmoid(logit) > (a + 1) / (a + b + 2)
    a, b, x = (
        jnp.where(is_upper, b, a),
        jnp.where(is_upper, a, b),
        sigmoid(jnp.where(is_upper, -logit, logit)),
    )

    def terms(m):
        at = a + 2 * m
        return (
            -(a + m) / at * (a + b + m) / (at + 1) * x,
            (m + 1) / (at + 1) * (b - m - 1) / (at + 2) * x,
        )

    return _odds_of_tail(log_power - jnp.log(a) - jnp.log(_fraction(terms)), is_upper)


def _odds_of_tail(log_tail, is_upper):
    odds = _log_odds(jnp.minimum(log_tail, -jnp.finfo(log_tail.dtype).epsneg))
    return jnp.where(is_upper, -odds, odds)


def _fraction(terms: Callable) -> Float[Array, ""]:
    """``1 + t_1 / (1 + t_2 / (1 + ...))`` by Lentz's method; ``terms(m)`` is the m-th pair."""
    limits = jnp.finfo(jnp.result_type(float))

    def step(at):
        m, front, back, value, _ = at
        factor = 1.0
        for term in terms(m):
            front, back = 1 + term / front, 1 / (1 + term * back)
            front = jnp.where(front == 0, limits.tiny, front)
            factor *= front * back
        return m + 1, front, back, value * factor, factor

    def is_moving(at):
        return (jnp.abs(at[4] - 1) > 4 * limits.eps) & (at[0] < MAX_TERMS)

    one = jnp.ones(())
    return jax.lax.while_loop(is_moving, step, (0 * one, one, 0 * one, one, 2 * one))[3]


def _search(odds: Callable, noise: Float[Array, ""], start) -> Float[Array, ""]:
    """Where the odds, which increase, are the noise: secants. The scale of the argument is to be one
    in which they are nearly linear far out on both sides.
    """
    tolerance = jnp.finfo(jnp.result_type(float)).eps ** 0.5

    def step(at):
        place, last_step, last_odds, count = at
        now = odds(place)
        slope = (now - last_odds) / last_step
        move = jnp.where(slope > 0, (noise - now) / slope, 0.0)
        return place + move, move, now, count + 1

    def is_moving(at):
        return (jnp.abs(at[1]) > tolerance * (1 + jnp.abs(at[0]))) & (at[3] < MAX_SECANTS)

    first = (start + FIRST_STEP, jnp.full_like(start, FIRST_STEP), odds(start), 0)
    return jax.lax.while_loop(is_moving, step, first)[0]


MAX_TERMS = 5000  # some square roots of the largest parameter
MAX_SECANTS = 60
MAX_SCORE = 700.0
FIRST_STEP = 0.01


def _gamma_value(d, noise):
    def quantile(shape, noise):
        unit = jnp.maximum(shape, 1.0)
        start = jnp.log(jnp.expm1(shape / unit))
        found = _search(lambda at: _gamma_odds(shape, _positive(unit * softplus(at))), noise, start)
        return unit * softplus(found)

    return _positive(_per_value(quantile, "(),()->()")(d.concentration, noise) / d.rate)


def _gamma_noise(d, value, fresh):
    return _per_value(_gamma_odds, "(),()->()")(d.concentration, _positive(value * d.rate))


def _beta_logit(a, b, noise):
    return _search(lambda at: _beta_odds(a, b, at), noise, jnp.log(a) - jnp.log(b))


def _beta_value(d, noise):
    quantile = _per_value(_beta_logit, "(),(),()->()")
    return _inside_unit(sigmoid(quantile(d.concentration1, d.concentration0, noise)))


def _beta_noise(d, value, fresh):
    value = _inside_unit(value)
    logit = jnp.log(value) - jnp.log1p(-value)
    return _per_value(_beta_odds, "(),(),()->()")(d.concentration1, d.concentration0, logit)


def _student_value(d, noise):
    """``t^2 / (df + t^2)`` is Beta(1/2, df/2), and the sign of t that of the noise."""

    def size(df, noise):
        noise = _positive(jnp.abs(noise))
        odds = jnp.log(jnp.tanh(noise / 2)) - math.log(2) - log_sigmoid(-noise)
        return jnp.sqrt(df) * jnp.exp(_beta_logit(0.5, df / 2, odds) / 2)

    return d.loc + d.scale * jnp.sign(noise) * _per_value(size, "(),()->()")(d.df, noise)


def _student_noise(d, value, fresh):
    def size(df, score):
        odds = _beta_odds(0.5, df / 2, 2 * jnp.log(_positive(jnp.abs(score))) - jnp.log(df))
        return jnp.log1p(sigmoid(odds)) - log_sigmoid(-odds)

    score = (value - d.loc) / d.scale
    return jnp.sign(score) * _per_value(size, "(),()->()")(d.df, score)


def _binomial_odds(after: Float[Array, ""], total, score) -> Float[Array, ""]:
    """Of a count less than ``after``."""
    return _beta_odds(_positive(total + 1 - after), _positive(after), -score)


def _binomial_place(at, total, score):
    return (total + 1) * sigmoid(at + score)


def _negative_binomial_odds(after: Float[Array, ""], shape, score) -> Float[Array, ""]:
    return _beta_odds(shape, _positive(after), -score)


def _negative_binomial_place(at, shape, score):
    return (1 + shape * jnp.exp(score)) * softplus(at)


def _count(odds: Callable, place: Callable, size: Callable, score: Callable) -> NoiseMap:
    """The odds are continuous in the count: it is found as a real number on the scale ``place``,
    and those of the whole number nearest to it then tell on which side of that the noise is.
    """

    def params(d):
        return size(d), jnp.clip(score(d), -MAX_SCORE, MAX_SCORE)

    def value(noise, *params):
        found = _search(lambda at: odds(place(at, *params), *params), noise, jnp.zeros(()))
        nearest = jnp.round(place(found, *params))
        return jnp.where(odds(nearest, *params) < noise, nearest, nearest - 1)

    def noise(value, fresh, *params):
        below, above = odds(value, *params), odds(value + 1, *params)

        def log_mean(sign):
            return jnp.logaddexp(
                log_sigmoid(-fresh) + log_sigmoid(sign * below),
                log_sigmoid(fresh) + log_sigmoid(sign * above),
            )

        return log_mean(1) - log_mean(-1)

    return NoiseMap(
        logistic_noise,
        lambda d, e: _per_value(value, "(),(),()->()")(e, *params(d)),
        lambda d, x, fresh: _per_value(noise, "(),(),(),()->()")(x, fresh, *params(d)),
    )


def _binomial(score: Callable) -> NoiseMap:
    return _count(_binomial_odds, _binomial_place, lambda d: d.total_count, score)


def _score(d):
    return jnp.log(d.probs) - jnp.log1p(-d.probs)


_CATEGORICAL = NoiseMap(randomness.uniform, _categorical_value, _categorical_noise)
_GEOMETRIC = NoiseMap(randomness.exponential, _geometric_value, _geometric_noise)

_BETA = NoiseMap(logistic_noise, _beta_value, _beta_noise)
_GAMMA = NoiseMap(logistic_noise, _gamma_value, _gamma_noise)
_NEGATIVE_BINOMIAL = _count(
    _negative_binomial_odds,
    _negative_binomial_place,
    lambda d: d.concentration,
    lambda d: -jnp.log(d.rate),
)

MAPS: dict[type, NoiseMap] = {
    dist.Normal: _location_scale(randomness.normal),
    dist.Logistic: _location_scale(logistic_noise),
    dist.Laplace: _location_scale(_laplace),
    dist.Cauchy: _location_scale(_cauchy),
    dist.Gumbel: _location_scale(_gumbel),
    dist.SoftLaplace: _location_scale(_soft_laplace),
    dist.Levy: _location_scale(_levy),
    dist.HalfNormal: _scale(_half_normal),
    dist.HalfCauchy: _scale(_half_cauchy),
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
    dist.Gompertz: NoiseMap(
        randomness.exponential,
        lambda d, noise: jnp.log1p(noise / d.concentration) / d.rate,
        lambda d, value, fresh: d.concentration * jnp.expm1(d.rate * value),
    ),
    dist.Dagum: NoiseMap(
        randomness.exponential,
        lambda d, noise: d.scale * jnp.expm1(noise / d.concentration) ** (-1 / d.sharpness),
        lambda d, value, fresh: d.concentration * jnp.log1p((value / d.scale) ** -d.sharpness),
    ),
    dist.LowerTruncatedPowerLaw: NoiseMap(
        randomness.exponential,
        lambda d, noise: d.low * jnp.exp(-noise / (1 + d.alpha)),
        lambda d, value, fresh: -(1 + d.alpha) * jnp.log(value / d.low),
    ),
    dist.Kumaraswamy: NoiseMap(randomness.exponential, _kumaraswamy_value, _kumaraswamy_noise),
    dist.AsymmetricLaplace: NoiseMap(
        logistic_noise, _asymmetric_laplace_value, _asymmetric_laplace_noise
    ),
    dist.Gamma: _GAMMA,
    dist.Chi2: _GAMMA,
    dist.Beta: _BETA,
    dist.BetaProportion: _BETA,
    dist.StudentT: NoiseMap(logistic_noise, _student_value, _student_noise),
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
    dist.BernoulliProbs: _bernoulli(_score),
    dist.BernoulliLogits: _bernoulli(lambda d: d.logits),
    dist.CategoricalProbs: _CATEGORICAL,
    dist.CategoricalLogits: _CATEGORICAL,
    dist.OrderedLogistic: _CATEGORICAL,
    dist.DiscreteUniform: NoiseMap(
        randomness.uniform, _discrete_uniform_value, _discrete_uniform_noise
    ),
    dist.BinomialProbs: _binomial(_score),
    dist.BinomialLogits: _binomial(lambda d: d.logits),
    dist.GammaPoisson: _NEGATIVE_BINOMIAL,
    dist.NegativeBinomialProbs: _NEGATIVE_BINOMIAL,
    dist.NegativeBinomialLogits: _NEGATIVE_BINOMIAL,
    dist.NegativeBinomial2: _NEGATIVE_BINOMIAL,
    dist.GeometricProbs: _GEOMETRIC,
    dist.GeometricLogits: _GEOMETRIC,
    dist.Poisson: NoiseMap(
        logistic_noise,
        lambda d, noise: _per_value(quantile, "(),()->()")(noise, d.rate),
        lambda d, value, fresh: noise_of_count(value, d.rate, fresh),
    ),
}
