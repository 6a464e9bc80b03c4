"""Every noise map: its value has the distribution's law, and it inverts."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from noiseaware.models import noise_maps
from tests.statistical import MIN_P

NUM_DRAWS = 20_000
CONTINUOUS = {
    "normal": dist.Normal(1.3, 0.4),
    "logistic": dist.Logistic(-2.0, 3.0),
    "laplace": dist.Laplace(0.5, 2.0),
    "cauchy": dist.Cauchy(1.0, 0.3),
    "gumbel": dist.Gumbel(1.0, 2.0),
    "half-normal": dist.HalfNormal(2.5),
    "exponential": dist.Exponential(3.0),
    "weibull": dist.Weibull(2.0, 0.7),
    "uniform": dist.Uniform(-1.0, 3.0),
    "log-normal": dist.LogNormal(0.3, 0.8),
    "log-uniform": dist.LogUniform(0.2, 30.0),
    "pareto": dist.Pareto(2.0, 0.7),
    "power-law": dist.LowerTruncatedPowerLaw(-2.5, 0.3),
    "half-cauchy": dist.HalfCauchy(0.4),
    "soft-laplace": dist.SoftLaplace(1.0, 0.5),
    "levy": dist.Levy(1.0, 2.0),
    "gompertz": dist.Gompertz(0.2, 1.5),
    "dagum": dist.Dagum(0.4, 2.0, 3.0),
    "kumaraswamy": dist.Kumaraswamy(0.5, 0.4),
    "asymmetric-laplace": dist.AsymmetricLaplace(1.0, 2.0, 0.3),
    "gamma": dist.Gamma(0.3, 2.0),
    "gamma-narrow": dist.Gamma(50.0, 0.1),
    "gamma-batch": dist.Gamma(jnp.array([0.3, 7.0]), jnp.array([2.0, 0.1])).to_event(1),
    "chi2": dist.Chi2(3.0),
    "inverse-gamma": dist.InverseGamma(3.0, 2.0),
    "beta": dist.Beta(0.4, 3.0),
    "beta-mirrored": dist.Beta(3.0, 0.4),
    "beta-narrow": dist.Beta(50.0, 70.0),
    "beta-proportion": dist.BetaProportion(0.2, 5.0),
    "student": dist.StudentT(3.0, 1.0, 2.0),
    "student-wide": dist.StudentT(0.5, 1.0, 2.0),
    "affine": dist.TransformedDistribution(
        dist.Exponential(2.0), dist.transforms.AffineTransform(1.0, -3.0)
    ),
    "independent": dist.Normal(jnp.array([0.0, 5.0]), jnp.array([1.0, 0.1])).to_event(1),
    "expanded": dist.Normal(2.0, 0.5).expand([3]).to_event(1),
    "multivariate": dist.MultivariateNormal(
        jnp.array([1.0, -1.0]), jnp.array([[2.0, 0.6], [0.6, 0.5]])
    ),
}
DISCRETE = {
    "bernoulli": dist.Bernoulli(0.03),
    "bernoulli-logits": dist.Bernoulli(logits=2.0),
    "categorical": dist.Categorical(jnp.array([0.2, 0.5, 0.3])),
    "categorical-logits": dist.Categorical(logits=jnp.array([0.0, 1.0, -2.0])),
    "geometric": dist.Geometric(0.3),
    "geometric-logits": dist.Geometric(logits=2.0),
    "poisson": dist.Poisson(4.2),
    "ordered": dist.OrderedLogistic(0.4, jnp.array([-1.0, 0.5, 2.0])),
    "discrete-uniform": dist.DiscreteUniform(-2, 4),
    "binomial": dist.Binomial(12, 0.3),
    "binomial-rare": dist.Binomial(1000, 0.002),
    "binomial-logits": dist.Binomial(5, logits=2.0),
    "negative-binomial": dist.NegativeBinomial(2.5, 0.6),
    "negative-binomial-logits": dist.NegativeBinomial(2.5, logits=1.5),
    "negative-binomial-2": dist.NegativeBinomial2(6.0, 0.3),
    "gamma-poisson": dist.GammaPoisson(50.0, 0.5),
}
EACH = CONTINUOUS | DISCRETE
FIRST = ("normal", "weibull", "affine", "gamma", "bernoulli", "categorical", "binomial")


def each_of(names):
    """The others are slow only by their number."""
    marked = [
        name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in names
    ]
    return pytest.mark.parametrize("name", marked)


POSITIVE_NOISE = (
    *("half-normal", "half-cauchy", "exponential", "weibull", "affine", "uniform", "log-uniform"),
    *("pareto", "power-law", "levy", "gompertz", "dagum", "kumaraswamy"),
)
SEARCHED = {
    "gamma-tiny": (dist.Gamma(0.05, 2.0), stats.gamma(0.05, scale=0.5)),
    "gamma": (dist.Gamma(0.3, 2.0), stats.gamma(0.3, scale=0.5)),
    "gamma-narrow": (dist.Gamma(50.0, 0.1), stats.gamma(50, scale=10)),
    "gamma-thousand": (dist.Gamma(1000.0, 1.0), stats.gamma(1000)),
    "chi2": (dist.Chi2(3.0), stats.chi2(3)),
    "inverse-gamma": (dist.InverseGamma(3.0, 2.0), stats.invgamma(3, scale=2)),
    "beta": (dist.Beta(0.4, 3.0), stats.beta(0.4, 3)),
    "beta-mirrored": (dist.Beta(3.0, 0.4), stats.beta(3, 0.4)),
    "beta-edges": (dist.Beta(0.05, 0.05), stats.beta(0.05, 0.05)),
    "beta-narrow": (dist.Beta(50.0, 70.0), stats.beta(50, 70)),
    "beta-skew": (dist.Beta(1000.0, 10.0), stats.beta(1000, 10)),
    "student": (dist.StudentT(3.0, 1.0, 2.0), stats.t(3, 1, 2)),
    "student-wide": (dist.StudentT(0.5, 1.0, 2.0), stats.t(0.5, 1, 2)),
    "student-narrow": (dist.StudentT(30.0, 1.0, 2.0), stats.t(30, 1, 2)),
    "binomial": (dist.Binomial(12, 0.3), stats.binom(12, 0.3)),
    "binomial-rare": (dist.Binomial(12, 1e-9), stats.binom(12, 1e-9)),
    "binomial-thousand": (dist.Binomial(1000, 0.7), stats.binom(1000, 0.7)),
    "negative-binomial": (dist.NegativeBinomial2(6.0, 0.3), stats.nbinom(0.3, 0.3 / 6.3)),
    "negative-binomial-narrow": (dist.GammaPoisson(50.0, 0.5), stats.nbinom(50, 1 / 3)),
}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def double(distribution):
    """As it would be in a fit."""
    return jax.tree.map(
        lambda x: x if jnp.issubdtype(jnp.result_type(x), int) else jnp.asarray(x, float),
        distribution,
    )


def drawn(distribution, key):
    found = noise_maps.find(distribution)
    noise = found.sample(key, (NUM_DRAWS, *distribution.event_shape))
    return found, noise, jax.vmap(lambda e: found.value(distribution, e))(noise)


@each_of(EACH)
def test_values_have_the_law_of_the_distribution(name):
    distribution = double(EACH[name])
    _, _, values = drawn(distribution, jr.key(0))
    others = np.asarray(distribution.sample(jr.key(1), (NUM_DRAWS,)))
    for one, other in zip(columns(values), columns(others), strict=True):
        if name in DISCRETE:
            levels = np.unique(np.concatenate([one, other]))
            table = np.array([[np.sum(x == level) for level in levels] for x in (one, other)])
            common = table.sum(axis=0) >= 20
            assert stats.chi2_contingency(table[:, common]).pvalue > MIN_P
        else:
            assert stats.ks_2samp(one, other).pvalue > MIN_P
            moved = one + 0.1 * stats.iqr(one)
            assert stats.ks_2samp(moved, other).pvalue < MIN_P, "the control"


def columns(values):
    return np.asarray(values, float).reshape(len(values), -1).T


@each_of(EACH)
def test_noise_given_the_value_inverts_and_is_fresh_again(name):
    distribution = double(EACH[name])
    found, noise, values = drawn(distribution, jr.key(0))
    fresh = found.sample(jr.key(2), noise.shape)
    again = jax.vmap(lambda x, e: found.noise(distribution, x, e))(values, fresh)
    rebuilt = jax.vmap(lambda e: found.value(distribution, e))(again)
    if name in DISCRETE:
        assert np.array_equal(rebuilt, values)
    else:
        assert np.all(np.abs(rebuilt - values) <= 1e-9 * (1 + np.abs(values)))
    for one, other in zip(columns(again), columns(fresh), strict=True):
        assert stats.ks_2samp(one, other).pvalue > MIN_P


@each_of([name for name in CONTINUOUS if name != "multivariate"])
def test_it_inverts_far_in_the_tails(name):
    """Noise at its quantiles 1e-12 and 1 - 1e-12, of the law whose tails are the widest."""
    distribution = double(CONTINUOUS[name])
    found = noise_maps.find(distribution)
    far = {
        "cauchy": 3e11,
        "half-cauchy": 6e11,
        "levy": 6e23,
        "uniform": 1 - 1e-12,
        "log-uniform": 1 - 1e-12,
    }.get(name, 28.0)
    is_positive = name in POSITIVE_NOISE
    for noise in (far, 1e-12 if is_positive else -far):
        noise = jnp.full(distribution.event_shape, noise)
        value = found.value(distribution, noise)
        back = found.value(distribution, found.noise(distribution, value, noise))
        assert np.all(np.isfinite(value))
        assert np.all(np.abs(back - value) <= 1e-9 * (1 + np.abs(value)))


@each_of(SEARCHED)
def test_a_search_inverts_between_the_1e_12_tails(name):
    distribution, reference = SEARCHED[name]
    distribution = double(distribution)
    found = noise_maps.find(distribution)
    tails = np.array([1e-12, 1e-6, 0.01, 0.3, 0.5])
    values = np.concatenate([reference.ppf(tails), reference.isf(tails)])
    fresh = jnp.linspace(-3.0, 3.0, values.size)
    noise = jax.vmap(lambda x, e: found.noise(distribution, x, e))(values, fresh)
    back = jax.vmap(lambda e: found.value(distribution, e))(noise)
    if distribution.support.is_discrete:
        assert np.array_equal(back, values)
    else:
        assert np.all(np.abs(back - values) <= 1e-9 * (1 + np.abs(values)))
        log_odds = reference.logcdf(values) - reference.logsf(values)
        is_inside = np.isfinite(log_odds)
        decreasing = -1 if isinstance(distribution, dist.InverseGamma) else 1
        assert np.allclose(noise[is_inside], decreasing * log_odds[is_inside], 1e-6, 1e-6)


@pytest.mark.parametrize("probs", [0.0, 1.0])
def test_a_sure_count_is_found(probs):
    distribution = double(dist.Binomial(7, probs))
    found, noise, values = drawn(distribution, jr.key(0))
    assert np.all(values == 7 * probs)
    again = jax.vmap(lambda x, e: found.noise(distribution, x, e))(values, noise)
    assert np.allclose(again, noise)


def test_a_family_without_a_map_is_none():
    assert noise_maps.find(dist.BetaBinomial(1.0, 2.0, 5)) is None
    assert noise_maps.find(dist.VonMises(0.0, 1.0)) is None
    squashed = dist.TransformedDistribution(dist.VonMises(0.0, 1.0), dist.transforms.ExpTransform())
    assert noise_maps.find(squashed) is None


def test_a_transform_that_is_not_one_to_one_has_none():
    assert noise_maps.find(dist.FoldedDistribution(dist.Normal(1.0, 2.0))) is None
    assert noise_maps.find(dist.ZeroSumNormal(1.0, (3,))) is None
