"""Groups and covariates that are known of every record, given beside the model."""

import jax
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import noiseaware as na
from noiseaware import pilot
from noiseaware.chains import Problem
from noiseaware.convergence import bulk_ess
from noiseaware.samplers.proposals import from_model
from tests.statistical import MAX_Z

GROUPS = ("u", "v", "w")
KNOWN = {"g": ["u", "v", "u", "w", "v", "u", "u", "v"]}
SIZES = [4, 3, 1]
MODEL = na.HierarchicalBernoulli(
    "y", "g", GROUPS, center=na.NormalPrior(0.5, 1.0), spread=na.StddevPrior(0.8, 4.0)
)
TABLE = na.ContingencyTable({"g": GROUPS, "y": 2})
RELEASE = na.Release(
    [0.2, 4.5, 3.4, -0.9, 1.5, 0.8], TABLE, na.Laplace(0.7), neighbours="replace", num_records=8
)
QUIET = {"seed": 2, "progress": False}


def hierarchical(g):
    center = numpyro.sample("center", dist.Normal(0.5, 1.0))
    variance = numpyro.sample("variance", dist.InverseGamma(2.0, 2.0 * 0.8**2))
    with numpyro.plate("groups", 3):
        log_odds = numpyro.sample("log_odds", dist.Normal(center, variance**0.5))
    numpyro.sample("y", dist.Bernoulli(logits=log_odds[g]))


TWIN = na.NumpyroModel(hierarchical, ["y"], known={"g": GROUPS})


def enumerated_mean(sizes):
    """E[tanh(log_odds) | release] and its variance: prior draws, each weighed by its likelihood,
    summed over how many records of each group are 1.
    """
    with jax.enable_x64(True):
        params = jax.vmap(MODEL.sample_prior)(jr.split(jr.key(1), 200_000))
    log_odds = np.asarray(params["log_odds"])
    weight = np.ones(len(log_odds))
    for index, size in enumerate(sizes):
        ones = np.arange(size + 1)
        rates = 1 / (1 + np.exp(-log_odds[:, index, None]))
        zero_cell, one_cell = RELEASE.values[2 * index : 2 * index + 2]
        noise = stats.laplace.pdf(zero_cell, size - ones, 0.7)
        noise *= stats.laplace.pdf(one_cell, ones, 0.7)
        weight *= stats.binom.pmf(ones, size, rates) @ noise
    weight /= weight.sum()
    values = np.tanh(log_odds)
    mean = weight @ values
    return mean, weight**2 @ (values - mean) ** 2


def worst(draws, sizes):
    expected, variance = enumerated_mean(sizes)
    values = np.tanh(draws.posterior["log_odds"].values)
    error = np.sqrt(values.var(axis=(0, 1)) / bulk_ess(values) + variance)
    return np.max(np.abs(values.mean(axis=(0, 1)) - expected) / error)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        pytest.param(MODEL, "interweaving", marks=pytest.mark.slow),
        pytest.param(MODEL, "record_augmentation", marks=pytest.mark.slow),
        pytest.param(TWIN, "interweaving", marks=pytest.mark.slow),
    ],
    ids=["built-in", "built-in-plain", "numpyro"],
)
def test_posterior_is_the_enumerated_one(model, method):
    draws = na.fit(RELEASE, model, known=KNOWN, method=method, **QUIET)
    assert worst(draws, SIZES) < MAX_Z
    assert worst(draws, [1, 3, 4]) > MAX_Z, "other groups, another posterior"


def test_numpyro_densities_are_those_of_the_twin():
    with jax.enable_x64(True):
        params = MODEL.sample_prior(jr.key(0))
        record = {"g": np.array(1), "y": np.array(1.0)}
        expected = MODEL.log_record(params, record)
        assert np.allclose(TWIN.log_record(params | {"variance": 1.0}, record), expected)
    assert TWIN.columns == MODEL.columns
    assert TWIN.known == MODEL.known


def test_known_columns_stand_in_the_imputed_records():
    draws = na.fit(
        RELEASE, MODEL, known=KNOWN, draws=20, chains=2, sweeps_per_draw=1, keep_records=3, **QUIET
    )
    codes = [GROUPS.index(name) for name in KNOWN["g"]]
    assert np.array_equal(draws.imputed_records["g"].values, np.broadcast_to(codes, (2, 3, 8)))


def test_a_pilot_takes_known_columns_from_all_along():
    groups = np.repeat([0, 1, 2, 3], 250)
    problem = Problem(MODEL, TABLE, na.Laplace(1.0), np.zeros(6), from_model, {"g": groups})
    assert np.array_equal(pilot.scaled(problem, 0.02).known["g"], np.repeat([0, 1, 2, 3], 5))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (None, r"known must give \['g'\] of every record"),
        ({"h": [0] * 8}, r"calls known, got \['h'\]"),
        ({"g": ["u"] * 7}, "must be the release's 8, got 7"),
        ({"g": ["u"] * 7 + ["z"]}, "column 'g' must hold one of 'u', 'v', 'w', got 'z'"),
    ],
)
def test_wrong_known_columns_are_refused(known, message):
    with pytest.raises(ValueError, match=message):
        na.fit(RELEASE, MODEL, known=known, **QUIET)


def test_known_columns_of_a_model_without_any_are_refused():
    release = na.Release([3.0], na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=5)
    with pytest.raises(ValueError, match=r"calls known, got \['g'\]"):
        na.fit(release, na.BetaBernoulli("x"), known=KNOWN, **QUIET)


def both(g):
    numpyro.sample("g", dist.Normal())


def prior_of_known(g):
    p = numpyro.sample("p", dist.Beta(1.0 + g, 1.0))
    numpyro.sample("y", dist.Bernoulli(p))


@pytest.mark.parametrize(
    ("function", "known", "message"),
    [
        (hierarchical, None, r"it takes \['g'\], and known= says \[\]"),
        (both, {"g": na.Real()}, "'g' must not be both a site and a known column"),
        (prior_of_known, {"g": na.Real()}, "'p' must not depend on the known columns"),
        (hierarchical, {"g": "abc"}, "column 'g' must be Real"),
    ],
)
def test_wrong_functions_of_known_columns_are_refused(function, known, message):
    with pytest.raises(ValueError, match=message):
        na.NumpyroModel(function, ["y"], known=known)
