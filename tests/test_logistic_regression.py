"""A model without a conjugate step, against importance sampling over params and records."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware.convergence import bulk_ess
from tests.statistical import MAX_Z

NUM_RECORDS, NUM_WEIGHTED = 8, 400_000
MODEL = na.LogisticRegression(
    "y",
    ["x"],
    coefficients=na.NormalPrior([0.0, 0.0], [1.5, 2.0]),
    predictor_means=0.3,
    predictor_covariance=[[1.0]],
)
STATISTIC = na.RegressionMoments("y", ["x"], {"x": (-2.0, 2.0), "y": (0.0, 1.0)})
RELEASE = na.Release(
    [2.0, 4.0, 7.0, 5.0, 4.5], STATISTIC, na.Laplace(0.8), neighbours="replace",
    num_records=NUM_RECORDS,
)  # fmt: skip


def importance_sampled(release):
    """Means of params under ``p(params, records | release)`` and their variances: draws of the
    model weighed by the noise's density, which knows no kernel, noise map or slice.
    """

    def draw(key):
        key_params, key_records = jr.split(key)
        params = MODEL.sample_prior(key_params)
        records = MODEL.sample_records(key_records, params, NUM_RECORDS)
        total = jnp.sum(jax.vmap(STATISTIC)(records), axis=0)
        return params["coefficients"], release.mechanism.log_density(release.values, total)

    with jax.enable_x64(True):
        drawn, log_weights = jax.jit(jax.vmap(draw))(jr.split(jr.key(1), NUM_WEIGHTED))
        weights = np.asarray(jax.nn.softmax(log_weights))
    values = np.tanh(np.asarray(drawn))
    mean = weights @ values
    return mean, weights**2 @ (values - mean) ** 2


def worst(draws, expected, variance):
    values = np.tanh(draws.posterior["coefficients"].values)
    error = np.sqrt(values.var(axis=(0, 1)) / bulk_ess(values) + variance)
    return np.max(np.abs(values.mean(axis=(0, 1)) - expected) / error)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["interweaving", "record_augmentation"])
def test_posterior_is_that_of_importance_sampling(method):
    expected, variance = importance_sampled(RELEASE)
    quiet = {"seed": 0, "draws": 2_000, "progress": False, "method": method}
    assert worst(na.fit(RELEASE, MODEL, **quiet), expected, variance) < MAX_Z
    other = na.Release(
        RELEASE.values, STATISTIC, na.Laplace(3.0), neighbours="replace", num_records=NUM_RECORDS
    )
    assert worst(na.fit(other, MODEL, **quiet), expected, variance) > MAX_Z, "the control"


def test_it_has_no_step_of_its_own_and_says_so():
    assert not MODEL.has_posterior_step
    with pytest.raises(NotImplementedError, match="LogisticRegression has no step for params"):
        MODEL.sample_posterior(jr.key(0), {}, {})


def test_scores_far_out_keep_their_noise_finite_and_on_its_side():
    with jax.enable_x64(True):
        params = {"coefficients": jnp.array([0.0, 1.0])}
        x = jnp.array([-700.0, -40.0, -1e-9, 0.0, 40.0, 700.0])
        for y in (0.0, 1.0):
            records = {"x": x, "y": jnp.full(len(x), y)}
            noise = MODEL.noises(jr.key(2), params, records)
            assert np.all(np.isfinite(noise["response"]))
            assert np.array_equal(MODEL.records(params, noise)["y"], records["y"])


# From a noisy contingency table: summed over every table that six records can have.

TABLE_MODEL = na.CategoricalLogisticRegression(
    "y", {"a": ("u", "v")}, coefficients=na.NormalPrior([0.3, -0.5], [1.0, 1.5]), concentration=2.0
)
TABLE_RELEASE = na.Release(
    [3.4, -0.6, 0.8, 2.9], na.ContingencyTable({"a": ("u", "v"), "y": 2}), na.Laplace(0.6),
    neighbours="replace", num_records=6,
)  # fmt: skip


def table_posterior(release):
    """E[tanh(coefficients) | release] and its variance, from prior draws with exact weights."""
    with jax.enable_x64(True):
        params = jax.vmap(TABLE_MODEL.sample_prior)(jr.split(jr.key(2), 100_000))
    coefficients, p = (np.asarray(params[name]) for name in ("coefficients", "probabilities"))
    rates = 1 / (1 + np.exp(-np.stack([coefficients[:, 0], coefficients.sum(axis=1)], axis=1)))
    cells = np.stack([p * (1 - rates), p * rates], axis=2).reshape(-1, 4)
    weights = np.zeros(len(cells))
    for table in itertools.product(range(7), repeat=4):
        if sum(table) == 6:
            noise = stats.laplace.pdf(release.values, table, 0.6).prod()
            weights += stats.multinomial.pmf(table, 6, cells) * noise
    weights /= weights.sum()
    values = np.tanh(coefficients)
    mean = weights @ values
    return mean, weights**2 @ (values - mean) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["interweaving", "record_augmentation"])
def test_posterior_given_a_table_is_the_enumerated_one(method):
    quiet = {"seed": 0, "draws": 2_000, "progress": False, "method": method}
    draws = na.fit(TABLE_RELEASE, TABLE_MODEL, **quiet)
    assert worst(draws, *table_posterior(TABLE_RELEASE)) < MAX_Z
    flipped = eqx.tree_at(lambda it: it.values, TABLE_RELEASE, TABLE_RELEASE.values[[1, 0, 2, 3]])
    assert worst(draws, *table_posterior(flipped)) > MAX_Z, "another table, another posterior"
