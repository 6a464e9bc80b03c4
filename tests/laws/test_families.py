"""Exponential families: their parts describe one density, also within bounds far in a tail, and
sums drawn by normal laws lead near the posterior.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

import noiseaware as na
from noiseaware.models.domain import NUM_WHOLE, Levels, Wholes
from noiseaware.models.support import unconstrain
from noiseaware.samplers import statistic_gibbs
from noiseaware.schema import FEATURES
from tests.laws.members import FAMILIES
from tests.statistical import MAX_Z, MIN_P, z_score

# In the fast tests; the others are slow, by their number.
FIRST = ("beta-bernoulli", "exponential-redacted", "normal-redacted")
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST), id=name) for name in FAMILIES
]
each_family = pytest.mark.parametrize(
    ("model", "statistic"),
    [pytest.param(*FAMILIES[case.id], marks=case.marks, id=case.id) for case in CASES],
)


def sum_law(model, statistic):
    return functools.partial(
        statistic_gibbs.sum_law, model=model, contribution=statistic, bounds=statistic.bounds
    )


@each_family
def test_points_have_the_moments_that_autodiff_gives(model, statistic):
    """Mean and covariance of t are gradient and Hessian of the log-partition."""

    @jax.jit
    @jax.vmap
    def look(key):
        params = model.sample_prior(key)
        law = sum_law(model, statistic)(params)
        size = len(model.features)
        natural = model.natural(params)
        return (
            (jax.nn.logsumexp(model.law(params, statistic.bounds)[1]), jnp.zeros(())),
            (law.mean[-size:], jax.grad(model.log_partition)(natural)),
            (
                law.factor[-size:] @ law.factor[-size:].T,
                jax.hessian(model.log_partition)(natural),
            ),
        )

    for found, expected in look(jr.split(jr.key(0), 200)):
        scale = 1 + np.abs(expected)
        assert np.max(np.abs(found - expected) / scale) < 1e-9


@each_family
def test_density_is_of_the_exponential_form(model, statistic):
    @jax.jit
    def look():
        params = model.sample_prior(jr.key(1))
        x = model.sample_records(jr.key(2), params, 100)[model.column]
        natural = model.natural(params)

        def by_parts(x):
            return model.log_base(x) + natural @ model.sufficient(x) - model.log_partition(natural)

        found = jax.vmap(lambda x: model.log_record(params, {model.column: x}))(x)
        return found, jax.vmap(by_parts)(jnp.asarray(x, float))

    assert np.allclose(*look(), rtol=1e-9, atol=1e-9)


@each_family
def test_sums_of_records_have_the_law(model, statistic):
    """Mean and covariance of what is released and what is sufficient, jointly."""
    count = 100_000

    @jax.jit
    def look():
        params = model.sample_prior(jr.key(1))
        records = model.sample_records(jr.key(2), params, count)
        released = jax.vmap(statistic)(records)
        sufficient = jax.vmap(model.sufficient)(jnp.asarray(records[model.column], float))
        values = jnp.concatenate([released, sufficient], axis=1)
        return values, sum_law(model, statistic)(params)

    values, law = jax.tree.map(np.asarray, look())
    centred = values - law.mean
    products = centred[:, :, None] * centred[:, None, :]
    assert np.max(np.abs(z_score(centred))) < MAX_Z
    spread = np.sqrt(np.mean(products**2, axis=0) / count)
    excess = np.abs(np.mean(products, axis=0) - law.factor @ law.factor.T)
    assert np.all(excess <= MAX_Z * spread + 1e-12)


# SciPy's law at some params, where intervals are stated in its standard deviations.
TRUNCATED = {
    "normal": (FAMILIES["normal"][0], {"mean": 3.0, "stddev": 2.0}, stats.norm(3, 2)),
    "normal far from 0": (
        FAMILIES["normal"][0],
        {"mean": 3e4, "stddev": 2.0},
        stats.norm(3e4, 2),
    ),
    "exponential": (FAMILIES["exponential"][0], {"rate": 2.5}, stats.expon(scale=1 / 2.5)),
    "gamma": (FAMILIES["gamma"][0], {"rate": 2.5}, stats.gamma(0.7, scale=1 / 2.5)),
    "gamma of shape 2.5": (
        FAMILIES["gamma-redacted"][0],
        {"rate": 0.3},
        stats.gamma(2.5, scale=1 / 0.3),
    ),
    "pareto": (FAMILIES["pareto"][0], {"exponent": 2.5}, stats.pareto(2.5, scale=2)),
    "poisson": (FAMILIES["poisson"][0], {"rate": 7.0}, stats.poisson(7.0)),
    "poisson of many": (FAMILIES["poisson"][0], {"rate": 180.0}, stats.poisson(180.0)),
    "geometric": (FAMILIES["geometric"][0], {"probability": 0.2}, stats.geom(0.2, loc=-1)),
    "binomial": (FAMILIES["binomial"][0], {"probability": 0.3}, stats.binom(5, 0.3)),
}
INTERVALS = [(-1.0, 0.5), (-0.5, 40.0), (8.0, 9.0), (8.0, 60.0), (-9.0, -8.0), (0.3, 0.301)]


def reference_moments(model, law, lower, upper):
    """Mean and variance of each feature within [lower, upper], by quadrature or by sums."""
    features = [FEATURES[name].function for name in model.features]
    if isinstance(model.domain, (Wholes, Levels)):
        x = np.arange(np.ceil(lower), min(np.floor(upper), np.ceil(lower) + 5000) + 1)
        weight = special.softmax(law.logpmf(x))
        values = np.stack([np.asarray(feature(x), float) for feature in features], axis=1)
        mean = weight @ values
        return mean, weight @ (values - mean) ** 2
    inner = np.linspace(lower, upper, 4001)
    inner = inner[np.isfinite(law.logpdf(inner))]
    level = np.max(law.logpdf(inner))
    inner = inner[law.logpdf(inner) > level - 60]
    lower, upper = inner[0], inner[-1]

    def integral(function):
        pieces = np.linspace(lower, upper, 41)
        return sum(
            integrate.quad(
                lambda x: function(x) * np.exp(law.logpdf(x) - level), a, b, epsabs=0, epsrel=1e-13
            )[0]
            for a, b in itertools.pairwise(pieces)
        )

    total = integral(lambda x: 1.0)
    mean = np.array([integral(feature) for feature in features]) / total
    variance = [
        integral(lambda x, f=feature, m=m: (f(x) - m) ** 2)
        for feature, m in zip(features, mean, strict=True)
    ]
    return mean, np.array(variance) / total


@functools.cache
def _within(case):
    """Mean and variance of each feature between two bounds."""
    model, params, _ = TRUNCATED[case]

    @jax.jit
    def moments(lower, upper):
        at = {name: jnp.asarray(value) for name, value in params.items()}
        x, log_mass = (rows[len(rows) // 2] for rows in model.law(at, (lower, upper)))
        if isinstance(model.domain, Levels):
            log_mass = jnp.where((lower <= x) & (x <= upper), log_mass, -jnp.inf)
        weight = jax.nn.softmax(log_mass)
        values = jax.vmap(model.sufficient)(x)
        mean = weight @ values
        return mean, weight @ (values - mean) ** 2

    return moments


def _cases():
    """Every law with every interval in which it has something."""
    for case, (model, _, law) in TRUNCATED.items():
        centre, variance = law.stats()
        spread = np.sqrt(variance) if np.isfinite(variance) else 1.0
        low, high = law.support()
        for interval in INTERVALS:
            lower, upper = (float(centre + end * spread) for end in interval)
            if isinstance(model.domain, (Wholes, Levels)):
                lower, upper = np.ceil(lower), np.ceil(upper)
            else:
                lower = max(lower, low + 0.01)  # where a density is infinite, SciPy loses digits
            if lower < upper and upper > low and lower < high:
                yield pytest.param(case, lower, upper, id=f"{case} {interval}")


@pytest.mark.parametrize(("case", "lower", "upper"), _cases())
def test_truncated_moments_are_those_of_quadrature(case, lower, upper):
    model, _, law = TRUNCATED[case]
    mean, variance = _within(case)(lower, upper)
    expected_mean, expected_variance = reference_moments(model, law, lower, upper)
    assert np.allclose(mean, expected_mean, rtol=1e-8, atol=0)
    assert np.allclose(variance, expected_variance, rtol=1e-8, atol=0)


@pytest.mark.slow
def test_many_whole_numbers_are_summed_by_few_points():
    """Windows of 1,100 and 35,000 whole numbers."""
    model = FAMILIES["poisson"][0]
    for rate in (4e3, 4e6):
        spread = np.sqrt(rate)
        for end in (-1.0, 0.5, 4.0):
            upper = np.floor(rate + end * spread)
            bounds = (jnp.asarray(0.0), jnp.asarray(upper))
            x, log_mass = model.law({"rate": jnp.asarray(rate)}, bounds)
            assert x.shape[1] == NUM_WHOLE
            within = np.exp(jax.nn.logsumexp(log_mass[1]))
            assert within == pytest.approx(stats.poisson(rate).cdf(upper), rel=1e-8)


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), num_records=st.integers(1, 10**9), centre=st.floats(-1, 1))
def test_no_params_of_the_prior_make_a_number_go_missing(case, seed, num_records, centre):
    """Neither do sums far from what they make likely."""
    with jax.enable_x64(True):
        params, *numbers = _looks(case)(jr.key(seed), float(num_records), centre)
        free, _ = unconstrain(FAMILIES[case][0].supports, params)
        if np.all(np.isfinite(free)):  # a draw that does not round to the edge of its support
            for number in numbers:
                assert np.all(np.isfinite(number))


@functools.cache
def _looks(case):
    model, statistic = FAMILIES[case]
    mechanism = na.Laplace(np.ones(len(statistic.labels)))
    low, high = statistic.contribution_bounds()

    @jax.jit
    def look(key, num_records, centre):
        key_params, key_step = jr.split(key)
        params = model.sample_prior(key_params)
        law = sum_law(model, statistic)(params)
        released = num_records * ((low + high) / 2 + centre * (high - low))
        state = statistic_gibbs.init(
            params, num_records=num_records, law=sum_law(model, statistic), size=len(low)
        )
        after, _ = statistic_gibbs.step(
            key_step,
            state,
            model=model,
            num_records=num_records,
            released=released,
            law=sum_law(model, statistic),
            sample_variances=mechanism.sample_variances,
            log_density=functools.partial(mechanism.log_density, released),
        )
        return params, law.mean, law.factor, state.sums, after.total, after.sums

    return look


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_laplace_noise_is_a_normal_of_random_variance(scale):
    """The noise's variance is exponential of mean 2 b^2, and the noise given it normal."""
    mechanism = na.Laplace(scale)
    noise = mechanism.simulate(jr.key(0), jnp.zeros(100_000))
    variances = np.asarray(mechanism.sample_variances(jr.key(1), noise))
    assert stats.kstest(variances, stats.expon(scale=2 * scale**2).cdf).pvalue > MIN_P
    assert stats.kstest(noise / np.sqrt(variances), stats.norm.cdf).pvalue > MIN_P
    correlation = z_score(np.abs(noise / np.sqrt(variances)) * (variances - 2 * scale**2))
    assert abs(correlation) < MAX_Z


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-9, 1e-3, 30.0, 1e9])
def test_variances_given_a_noise_have_their_law(noise):
    """``1 / variance`` is inverse Gaussian; as the noise falls to 0, ``variance / b^2`` is
    chi-squared.
    """
    scale = 1.7
    drawn = na.Laplace(scale).sample_variances(jr.key(2), jnp.full(50_000, noise))
    drawn = np.asarray(drawn)
    assert np.all(np.isfinite(drawn) & (drawn > 0))
    if noise < 1e-6:
        assert stats.kstest(drawn / scale**2, stats.chi2(1).cdf).pvalue > MIN_P
    else:
        mean, shape = 1 / (scale * noise), 1 / scale**2
        law = stats.invgauss(mean / shape, scale=shape)
        assert stats.kstest(1 / drawn, law.cdf).pvalue > MIN_P


@pytest.mark.parametrize("case", [*FIRST, "dirichlet-categorical", "normal"])
def test_sums_are_drawn_from_the_conditional_normal(case):
    model, statistic = FAMILIES[case]
    num_records = 100.0
    law = jax.jit(lambda: sum_law(model, statistic)(model.sample_prior(jr.key(1))))()
    size = len(statistic.labels)
    mean = np.asarray(num_records * law.mean)
    covariance = np.asarray(num_records * law.factor @ law.factor.T)
    variances = 0.5 * np.maximum(np.diag(covariance)[:size], 1e-3) * np.arange(1, size + 1)
    released = mean[:size] + np.sqrt(variances)
    gain = covariance[:, :size] @ np.linalg.inv(covariance[:size, :size] + np.diag(variances))
    expected_mean = mean + gain @ (released - mean[:size])
    expected = covariance - gain @ covariance[:size]
    draw = jax.jit(
        jax.vmap(lambda key: statistic_gibbs._draw_sums(key, law, num_records, released, variances))
    )
    drawn, centre = np.split(np.asarray(draw(jr.split(jr.key(3), 20_000))), [-1], axis=1)
    np.testing.assert_allclose(centre[0, 0], expected_mean, rtol=1e-9)
    drawn = drawn.reshape(-1, len(mean))
    error = np.sqrt(np.diag(expected) / len(drawn))
    assert np.all(np.abs(np.mean(drawn, axis=0) - expected_mean) <= MAX_Z * error + 1e-9)
    found = np.cov(drawn.T)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2)
    assert np.all(np.abs(found - expected) <= MAX_Z * scale / np.sqrt(len(drawn)) + 1e-9)


@pytest.mark.parametrize("case", ["normal-redacted", "dirichlet-categorical"])
def test_starts_are_weighed_by_the_normal_likelihood(case):
    """Also where the covariance is singular. Twice the scale is another likelihood."""
    model, statistic = FAMILIES[case]
    size, num_records, scales = len(statistic.labels), 50.0, np.array([3.0, 5.0, 9.0])

    @jax.jit
    @jax.vmap
    def look(key):
        law = sum_law(model, statistic)(model.sample_prior(key))
        found = statistic_gibbs.log_likelihood(law, num_records, jnp.ones(size), scales)
        return law.mean[:size], law.factor[:size] @ law.factor[:size].T, found

    means, covariances, found = map(np.asarray, look(jr.split(jr.key(0), 5)))

    def expected(scales):
        noise = np.diag(scales**2)
        values = [
            stats.multivariate_normal(num_records * mean, num_records * covariance + noise)
            .logpdf(np.ones(size))
            for mean, covariance in zip(means, covariances, strict=True)
        ]  # fmt: skip
        return values - values[0]

    assert np.allclose(found - found[0], expected(scales), rtol=1e-8, atol=1e-8)
    assert not np.allclose(found - found[0], expected(2 * scales), rtol=0.01, atol=0.01)


def test_starts_are_drawn_by_their_weight_and_no_missing_number_is_one():
    weights = np.concatenate([np.full(40, 1.0), np.full(40, 3.0), np.full(20, np.nan)])
    choose = jax.jit(jax.vmap(lambda key: statistic_gibbs.choose_starts(key, np.log(weights), 1)))
    chosen = np.asarray(choose(jr.split(jr.key(0), 8_000)))[:, 0]
    assert np.all(chosen < 80)
    assert abs(z_score((chosen >= 40).astype(float), 0.75)) < MAX_Z
    assert abs(z_score((chosen >= 40).astype(float), 0.5)) > MAX_Z
    # One draw far above all others: still four chains from four draws.
    alone = np.where(np.arange(100) == 7, 0.0, -1e6 - np.arange(100))
    assert len(set(np.asarray(statistic_gibbs.choose_starts(jr.key(1), alone, 4)))) == 4


RATES = np.linspace(2.5, 6.0, 300)  # around one mode: a second one is near 1
SUMS = np.linspace(120.0, 450.0, 1000)
EXPONENTIAL = na.Exponential("x", na.GammaPrior(8.0, 2.0))
# From 2.5 to 97.5 % of records at the prior's mean rate.
MIDDLE = na.Redacted("x", *(stats.expon(scale=1 / 4).ppf([0.025, 0.975])), ("x",))


def joint_moments(rate):
    """Mean and covariance of (T, S) for one record."""
    law = sum_law(EXPONENTIAL, MIDDLE)({"rate": jnp.asarray(rate)})
    return law.mean, law.factor @ law.factor.T


def joint_moments_of_independent_parts(rate):
    """The slip: three parts of a sum as if they did not exclude each other."""
    x, log_mass = EXPONENTIAL.law({"rate": jnp.asarray(rate)}, MIDDLE.bounds)
    mass = jnp.exp(log_mass)
    share = jnp.sum(mass, axis=1)
    means = jnp.sum(mass * x, axis=1) / share
    squares = jnp.sum(mass * x**2, axis=1)
    variances = squares - (share * means) ** 2
    mean = jnp.stack([share[1] * means[1], jnp.sum(share * means)])
    inside = variances[1]
    return mean, jnp.array([[inside, inside], [inside, jnp.sum(variances)]])


def mean_and_sd(weights):
    mean = weights @ RATES
    return mean, np.sqrt(weights @ (RATES - mean) ** 2)


def invariant(moments, released, stddev, num_records=1000):
    """Mean and sd of the rate under the law that the sweep leaves invariant, on a grid."""
    means, covariances = map(np.asarray, jax.vmap(moments)(RATES))
    means, covariances = num_records * means, num_records * covariances
    gain = covariances[:, 1, 0] / (covariances[:, 0, 0] + stddev**2)
    centre = means[:, 1] + gain * (released - means[:, 0])
    spread = np.sqrt(covariances[:, 1, 1] - gain * covariances[:, 0, 1])
    to_sums = stats.norm.pdf(SUMS, centre[:, None], spread[:, None])
    to_rates = stats.gamma.pdf(RATES, 8 + num_records, scale=1 / (2 + SUMS[:, None]))
    kernel = to_sums / to_sums.sum(1, keepdims=True) @ (to_rates / to_rates.sum(1, keepdims=True))
    return mean_and_sd(np.linalg.matrix_power(kernel, 4096)[0])


def posterior(released, stddev, num_records=1000):
    """Of the rate given T's normal law and normal noise, on the same grid."""
    means, covariances = map(np.asarray, jax.vmap(joint_moments)(RATES))
    spread = np.sqrt(num_records * covariances[:, 0, 0] + stddev**2)
    log_weights = stats.gamma.logpdf(RATES, 8, scale=1 / 2) + stats.norm.logpdf(
        released, num_records * means[:, 0], spread
    )
    return mean_and_sd(special.softmax(log_weights))


def test_parts_of_a_sum_exclude_each_other():
    """On grids, with nothing drawn: the sweep's invariant law is near the posterior, and further
    from it if the three parts are taken as independent.
    """
    stddev = np.sqrt(2) * 1.0
    released = 1000 * float(joint_moments(4.0)[0][0])
    expected = posterior(released, stddev)
    found = invariant(joint_moments, released, stddev)
    slipped = invariant(joint_moments_of_independent_parts, released, stddev)
    assert abs(found[0] - expected[0]) < 0.02 * expected[1]
    assert found[1] == pytest.approx(expected[1], rel=0.01)
    assert abs(slipped[1] / expected[1] - 1) > 0.03, "the control"
