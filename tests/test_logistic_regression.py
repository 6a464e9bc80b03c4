"""A model without a conjugate step, against importance sampling over params and records."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

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


@pytest.mark.parametrize(
    "method", ["interweaving", pytest.param("record_augmentation", marks=pytest.mark.slow)]
)
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
