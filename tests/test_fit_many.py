"""Many releases at once: each as if it were alone."""

import json
import warnings

import numpy as np
import pytest

import noiseaware as na
from noiseaware import journeys
from noiseaware.samplers.layout import Layout
from tests.laws.test_samplers import bernoulli_posterior_mean
from tests.statistical import MAX_Z

MODEL = na.BetaBernoulli("x", 2.0, 3.0)
QUIET = {"seed": 5, "draws": 500, "progress": False}


def release_of(value, scale=1.0, num_records=10):
    return na.Release(
        [value], na.Count("x"), na.Laplace(scale), neighbours="replace", num_records=num_records
    )


RELEASES = [release_of(-1.0), release_of(4.0, 0.5), release_of(9.5, 3.0)]


@pytest.fixture(scope="module")
def in_turn():
    return na.fit_many(RELEASES, MODEL, **QUIET)


def test_each_fit_reaches_its_own_posterior(in_turn):
    for index, release in enumerate(RELEASES):
        draws = in_turn.posterior["probability"].isel(fit=index).values
        expected = bernoulli_posterior_mean(release.mechanism, release.values[0], 10)
        error = draws.std() / np.sqrt(in_turn.fits["ess_bulk"].values[index])
        assert abs(draws.mean() - expected) < MAX_Z * error


@pytest.mark.slow
@pytest.mark.optimized
def test_a_fit_does_not_depend_on_its_company():
    """With sweeps fixed: left to warm-up, some fits choose them in common."""
    fixed = QUIET | {"sweeps_per_draw": 2}
    together = na.fit_many(RELEASES * 2, MODEL, **fixed)  # two batches, the second filled up
    for count in (1, 3):
        fewer = na.fit_many(RELEASES[:count], MODEL, **fixed).posterior["probability"]
        assert np.allclose(fewer, together.posterior["probability"].isel(fit=range(count)))


@pytest.mark.slow
def test_a_release_with_little_noise_sets_the_blocks_of_all():
    """Blocks chosen for its company would leave it with 7 acceptances in 100."""
    model = na.Normal("x", na.NormalPrior(0.0, 1.0), 1.0)
    sharp, *vague = [
        na.Release(
            [0.0], na.Clamped("x", -0.5, 0.5), na.Laplace(scale),
            neighbours="replace", num_records=1000,
        )
        for scale in (0.5, 1e4, 1e4)
    ]  # fmt: skip
    fixed = QUIET | {"sweeps_per_draw": 1, "draws": 50}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)
        draws = na.fit_many([sharp, *vague], model, **fixed)
    assert draws.attrs["block_size"] == 1
    assert float(draws.sample_stats["acceptance_rate"].isel(fit=0).mean()) > 0.5


@pytest.mark.slow
def test_side_by_side_gives_the_same_draws_as_in_turn(monkeypatch):
    """With sweeps and layout fixed: an accelerator takes one number for all, and larger blocks."""
    monkeypatch.setattr(journeys, "choose_layout", lambda *args: Layout())
    fixed = QUIET | {"sweeps_per_draw": 2}
    in_turn = na.fit_many(RELEASES, MODEL, **fixed)
    monkeypatch.setattr(journeys, "_is_cpu", lambda: False)
    together = na.fit_many(RELEASES, MODEL, **fixed)
    assert np.allclose(together.posterior["probability"], in_turn.posterior["probability"])


def test_the_container_is_that_of_one_fit_with_a_dimension_more(in_turn):
    alone = na.fit(RELEASES[1], MODEL, **QUIET)
    for group in ("posterior", "prior", "sample_stats", "observed_data", "posterior_predictive"):
        one, many = alone[group], in_turn[group].isel(fit=1)
        assert set(one.data_vars) == set(many.data_vars)
        assert {name: v.dims for name, v in one.data_vars.items()} == {
            name: v.dims for name, v in many.data_vars.items()
        }
    assert np.array_equal(in_turn.observed_data["release"].values.ravel(), [-1.0, 4.0, 9.5])
    assert set(alone.attrs) - set(in_turn.attrs) == {
        "warm_up_sweeps", "sweeps_per_draw", "has_params_move", "warm_up_seconds",
        "sampling_seconds", "is_complete", "is_resumed", "sd_ratio",
    }  # fmt: skip
    assert {"warm_up_sweeps", "sweeps_per_draw", "has_params_move"} < set(in_turn.fits.data_vars)


@pytest.mark.slow
def test_fits_that_have_not_converged_are_counted():
    with pytest.warns(na.ConvergenceWarning, match=r"2 of 2 fits have .* Worst: fit [01], R-hat"):
        na.fit_many(RELEASES[:2], MODEL, chains=2, **QUIET | {"draws": 20})


@pytest.mark.parametrize(
    ("releases", "message"),
    [
        (RELEASES[0], "releases must be several: for one Release use fit"),
        ([], "releases must hold at least one Release, got none"),
        ([RELEASES[0], 3], "release must be a Release, got 3"),
        (
            [RELEASES[0], release_of(4.0, num_records=11)],
            "releases must have one number of records, 10 as in the first, got 11 in release 1",
        ),
        (
            [
                RELEASES[0],
                na.Release(
                    [4.0], na.Count("x"), na.Gaussian(1.0), neighbours="replace", num_records=10
                ),
            ],
            "releases must be of one shape, as the first .*Count.* by Laplace.* in release 1",
        ),
    ],
)
def test_releases_that_do_not_go_together_are_refused(releases, message):
    with pytest.raises(ValueError, match=message):
        na.fit_many(releases, MODEL, **QUIET)


def test_every_fit_has_its_own_cost(in_turn):
    costs = [json.loads(cost)["epsilon"] for cost in json.loads(in_turn.attrs["cost"])]
    assert costs == [release.cost.epsilon for release in RELEASES]
    assert len(set(costs)) == 3


@pytest.mark.parametrize(
    "chunk",
    [500, pytest.param(20, marks=pytest.mark.slow)],
    ids=["in a thread", "in the first batch, halfway"],
)
def test_ctrl_c_ends_all_fits(monkeypatch, chunk):
    monkeypatch.setattr(journeys, "CHUNK_DRAWS", chunk)
    calls, draw_more = [], journeys._draw_more

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw_more(*args)

    monkeypatch.setattr(journeys, "_draw_more", interrupted)
    with pytest.raises(KeyboardInterrupt):
        na.fit_many(RELEASES * 20, MODEL, **QUIET)
    assert len(calls) < 30, "the others stopped soon"
