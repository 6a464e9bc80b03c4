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
}
EACH = CONTINUOUS | DISCRETE


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def double(distribution):
    """As it would be in a fit."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), distribution)


def drawn(distribution, key):
    found = noise_maps.find(distribution)
    noise = found.sample(key, (NUM_DRAWS, *distribution.event_shape))
    return found, noise, jax.vmap(lambda e: found.value(distribution, e))(noise)


@pytest.mark.parametrize("name", EACH)
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


@pytest.mark.parametrize("name", EACH)
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


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name not in ("multivariate",)])
def test_it_inverts_far_in_the_tails(name):
    """Noise at its quantiles 1e-12 and 1 - 1e-12, of the law whose tails are the widest."""
    distribution = double(CONTINUOUS[name])
    found = noise_maps.find(distribution)
    far = {"cauchy": 3e11, "uniform": 1 - 1e-12}.get(name, 28.0)
    is_positive = name in ("half-normal", "exponential", "weibull", "affine", "uniform")
    for noise in (far, 1e-12 if is_positive else -far):
        noise = jnp.full(distribution.event_shape, noise)
        value = found.value(distribution, noise)
        back = found.value(distribution, found.noise(distribution, value, noise))
        assert np.all(np.isfinite(value))
        assert np.all(np.abs(back - value) <= 1e-9 * (1 + np.abs(value)))


def test_a_family_without_a_map_is_none():
    assert noise_maps.find(dist.Beta(1.0, 2.0)) is None
    assert noise_maps.find(dist.Gamma(2.0, 1.0)) is None
    squashed = dist.TransformedDistribution(dist.Beta(1.0, 2.0), dist.transforms.ExpTransform())
    assert noise_maps.find(squashed) is None
