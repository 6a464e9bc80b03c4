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


class _Odds(NamedTuple):
    """Log-odds of a value below a place, and their slope in the logarithm or logit of the place."""

    odds: Float[Array, ""]
    slope: Float[Array, ""]


def _gamma_odds(shape: Float[Array, ""], log_x: Float[Array, ""]) -> _Odds:
    x = jnp.exp(log_x)
    is_upper = x > shape + 2

    def terms(m):
        at = shape + 2 * m
        return (
            jnp.where(is_upper, (m + 1 - shape) / x, -(shape + m) / at * x / (at + 1)),
            jnp.where(is_upper, (m + 1) / x, (m + 1) / (at + 1) * x / (at + 2)),
        )

    log_power = shape * log_x - x - gammaln(shape)
    return _odds(log_power, jnp.where(is_upper, x, shape), terms, is_upper)


def _beta_odds(a: Float[Array, ""], b: Float[Array, ""], logit: Float[Array, ""]) -> _Odds:
    log_power = a * log_sigmoid(logit) + b * log_sigmoid(-logit) - betaln(a, b)
    is_upper = sigmoid(logit) > (a + 1) / (a + b + 2)
    x = sigmoid(jnp.where(is_upper, -logit, logit))
    a, b = jnp.where(is_upper, b, a), jnp.where(is_upper, a, b)

    def terms(m):
        at = a + 2 * m
        return (
            -(a + m) / at * (a + b + m) / (at + 1) * x,
            (m + 1) / (at + 1) * (b - m - 1) / (at + 2) * x,
        )

    return _odds(log_power, a, terms, is_upper)


def _odds(log_power, divisor, terms, is_upper) -> _Odds:
    """A tail is ``power / (divisor * fraction)``, and the other the rest of 1."""
    tail = log_power - jnp.log(divisor) - jnp.log(_fraction(terms))
    tail = jnp.minimum(tail, -jnp.finfo(tail.dtype).epsneg)
    rest = jnp.log1p(-jnp.exp(tail))
    return _Odds(jnp.where(is_upper, rest - tail, tail - rest), jnp.exp(log_power - tail - rest))


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
    """Where the odds are the noise, by Newton's steps. On the scale of the place they are to be
    nearly linear far out on both sides.
    """
    tolerance = jnp.finfo(jnp.result_type(float)).eps ** 0.5

    def step(at):
        place, _, count = at
        now = odds(place)
        move = (noise - now.odds) / now.slope
        return place + move, move, count + 1

    def is_moving(at):
        return (jnp.abs(at[1]) > tolerance * (1 + jnp.abs(at[0]))) & (at[2] < MAX_STEPS)

    return jax.lax.while_loop(is_moving, step, (start, jnp.ones_like(start), 0))[0]


MAX_TERMS = 5000  # some square roots of the largest parameter
MAX_STEPS = 100
MAX_SCORE = 700.0


def _gamma_value(d, noise):
    def quantile(shape, noise):
        unit = jnp.maximum(shape, 1.0)

        def log_place(at):
            return jnp.where(at < -40, at, jnp.log(softplus(at)))

        def odds(at):
            found = _gamma_odds(shape, jnp.log(unit) + log_place(at))
            return found._replace(slope=found.slope * jnp.exp(log_sigmoid(at) - log_place(at)))

        return unit * softplus(_search(odds, noise, jnp.log(jnp.expm1(shape / unit))))

    return _positive(_per_value(quantile, "(),()->()")(d.concentration, noise) / d.rate)


def _gamma_noise(d, value, fresh):
    odds = _per_value(lambda shape, log_x: _gamma_odds(shape, log_x).odds, "(),()->()")
    return odds(d.concentration, jnp.log(_positive(value * d.rate)))


def _beta_logit(a, b, noise):
    return _search(lambda at: _beta_odds(a, b, at), noise, jnp.log(a) - jnp.log(b))


def _beta_value(d, noise):
    quantile = _per_value(_beta_logit, "(),(),()->()")
    return _inside_unit(sigmoid(quantile(d.concentration1, d.concentration0, noise)))


def _beta_noise(d, value, fresh):
    value = _inside_unit(value)
    logit = jnp.log(value) - jnp.log1p(-value)
    odds = _per_value(lambda a, b, x: _beta_odds(a, b, x).odds, "(),(),()->()")
    return odds(d.concentration1, d.concentration0, logit)


def _student_value(d, noise):
    """``t^2 / (df + t^2)`` is Beta(1/2, df/2), and the sign of t that of the noise."""

    def size(df, noise):
        noise = _positive(jnp.abs(noise))
        odds = jnp.log(jnp.tanh(noise / 2)) - math.log(2) - log_sigmoid(-noise)
        return jnp.sqrt(df) * jnp.exp(_beta_logit(0.5, df / 2, odds) / 2)

    return d.loc + d.scale * jnp.sign(noise) * _per_value(size, "(),()->()")(d.df, noise)


def _student_noise(d, value, fresh):
    def size(df, score):
        odds = _beta_odds(
            jnp.asarray(0.5), df / 2, 2 * jnp.log(_positive(jnp.abs(score))) - jnp.log(df)
        ).odds
        return jnp.log1p(sigmoid(odds)) - log_sigmoid(-odds)

    score = (value - d.loc) / d.scale
    return jnp.sign(score) * _per_value(size, "(),()->()")(d.df, score)


def _count(odds: Callable, highest: Callable, params: Callable) -> NoiseMap:
    """``odds(count, *params)`` are those of at most so many. The value is the first count at which
    they reach the noise: bounds of it are halved, the upper one found by doubling.
    """

    def value(noise, highest, *params):
        def step(at):
            low, high, count = at
            middle = jnp.where(jnp.isinf(high), 2 * low + 4, jnp.floor((low + high) / 2))
            reaches = odds(middle, *params) >= noise
            return jnp.where(reaches, low, middle), jnp.where(reaches, middle, high), count + 1

        def is_wide(at):
            return (at[1] - at[0] > 1) & (at[2] < MAX_STEPS)

        return jax.lax.while_loop(is_wide, step, (-jnp.ones(()), highest, 0))[1]

    def noise(value, fresh, highest, *params):
        below, above = odds(value - 1, *params), odds(value, *params)

        def log_mean(sign):
            return jnp.logaddexp(
                log_sigmoid(-fresh) + log_sigmoid(sign * below),
                log_sigmoid(fresh) + log_sigmoid(sign * above),
            )

        return log_mean(1) - log_mean(-1)

    def all_params(d):
        size, score = params(d)
        score = jnp.clip(score, -MAX_SCORE, MAX_SCORE)
        return jnp.asarray(highest(d), float), jnp.asarray(size, float), score

    return NoiseMap(
        logistic_noise,
        lambda d, e: _per_value(value, "(),(),(),()->()")(e, *all_params(d)),
        lambda d, x, fresh: _per_value(noise, "(),(),(),(),()->()")(x, fresh, *all_params(d)),
    )


def _binomial_odds(count: Float[Array, ""], total, score) -> Float[Array, ""]:
    return _beta_odds(_positive(total - count), _positive(count + 1), -score).odds


def _negative_binomial_odds(count: Float[Array, ""], shape, score) -> Float[Array, ""]:
    return _beta_odds(shape, _positive(count + 1), -score).odds


def _binomial(score: Callable) -> NoiseMap:
    return _count(_binomial_odds, lambda d: d.total_count, lambda d: (d.total_count, score(d)))


def _score(d):
    return jnp.log(d.probs) - jnp.log1p(-d.probs)


_CATEGORICAL = NoiseMap(randomness.uniform, _categorical_value, _categorical_noise)
_GEOMETRIC = NoiseMap(randomness.exponential, _geometric_value, _geometric_noise)

_BETA = NoiseMap(logistic_noise, _beta_value, _beta_noise)
_GAMMA = NoiseMap(logistic_noise, _gamma_value, _gamma_noise)
_NEGATIVE_BINOMIAL = _count(
    _negative_binomial_odds, lambda d: jnp.inf, lambda d: (d.concentration, -jnp.log(d.rate))
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
