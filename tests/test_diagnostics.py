"""Calibration, coverage and checks: right where the fit is, and failing where it is not."""

import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware import diagnostics

MODEL, STATISTIC, MECHANISM = na.BetaBernoulli("x", 2, 3), na.Count("x"), na.Laplace(4.0)
FAST = {"num_records": 20, "num_fits": 400, "seed": 5, "processes": 0, "progress": False}


def test_a_band_holds_all_points_together_at_its_level():
    rng, at = np.random.default_rng(0), np.linspace(0.01, 0.99, 99)
    low, high = diagnostics.band(200, 0.1, at)
    outside = 0
    for _ in range(2000):
        share = np.searchsorted(np.sort(rng.uniform(size=200)), at, side="right") / 200
        outside += np.any((share < low) | (share > high))
    assert stats.binomtest(outside, 2000, 0.1).pvalue > 1e-3


def test_ranks_of_fits_take_no_more_draws_than_are_effective():
    rng = np.random.default_rng(0)
    draws = np.arange(40.0).reshape(2, 20, 1, 1)
    (u,) = diagnostics.ranks_of_fits(draws, np.array([[1e9]]), np.array([8.0]), rng)[0]
    assert 8 / 9 < u < 1  # above all of eight


def test_a_right_fit_is_calibrated():
    found = na.sbc(MODEL, STATISTIC, MECHANISM, **FAST)
    assert found.quantities == ("probability", "log g", "probability, by release")
    assert found.is_calibrated
    assert found.unconverged < 0.2
    assert 0.5 < found.contraction[0] < 0.95
    assert "calibrated: 400 fits" in str(found)
    _, share, low, high = found.ecdf("probability", level=1e-4)
    assert np.all((low <= share) & (share <= high))


def halved(release):
    return na.Release(
        release.values, release.statistic, na.Laplace(release.mechanism.scale / 3),
        neighbours="replace", num_records=release.num_records, noise="simulated",
    )  # fmt: skip


def naive(release, model, seed):
    return na.fit_naive(release, model, seed=seed, chains=2, draws=50)


def from_prior(release, model, seed):
    """What looks at nothing."""
    rng = np.random.default_rng(seed)
    draws = naive(release, model, seed)
    changed = {"probability": rng.beta(2, 3, size=(2, 50))}
    return draws.map(lambda group: group.copy(data=changed), groups="posterior")


@pytest.mark.parametrize(
    ("change", "worst"),
    [
        ({"told": halved}, "log g"),
        ({"method": naive, "num_fits": 150}, "probability"),
        ({"method": from_prior, "num_fits": 150}, "probability, by release"),
        ({"data_model": na.BetaBernoulli("x", 6, 3)}, "probability"),
    ],
)
def test_controls_are_not_calibrated(change, worst):
    found = na.sbc(MODEL, STATISTIC, MECHANISM, **FAST | change)
    assert not found.is_calibrated
    assert found.uniformities[worst].p < 1e-4
    assert "NOT calibrated" in str(found)


def test_coverage_is_that_of_the_enumerated_posterior():
    """With so little noise that the posterior is the conjugate one."""
    truth, count = 0.3, 20
    found = na.coverage(
        MODEL, STATISTIC, na.Laplace(0.02), {"probability": truth}, draws=500,
        **FAST | {"num_fits": 200},
    )  # fmt: skip
    ones = np.arange(count + 1)
    low, high = stats.beta(2 + ones, 3 + count - ones).ppf([[0.05], [0.95]])
    expected = stats.binom(count, truth).pmf(ones) @ ((low <= truth) & (truth <= high))
    hits = int(found.covered.sum())
    assert stats.binomtest(hits, 200, expected).pvalue > 1e-3
    row = found.table().loc["probability"]
    assert row["low"] < hits / 200 == row["covered"] < row["high"]


NORMAL = na.Normal("x", na.NormalPrior(0.0, 3.0), 1.0)
MOMENTS = na.Clamped("x", -10.0, 10.0, ("x", "x^2"))


def released(stddev):
    x = np.random.default_rng(1).normal(2.0, stddev, 200)
    return na.simulate_release(4, {"x": x}, MOMENTS, na.Laplace([10.0, 40.0]), neighbours="replace")


@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_a_check_trusts_a_right_model_and_no_other():
    options = {"seed": 2, "num_fits": 64, "processes": 0, "progress": False}
    found = na.check(released(1.0), NORMAL, **options)
    assert found.can_be_trusted
    assert str(found).startswith("Trust it: in 64 simulated releases nearest")
    assert found.distance < 2
    wrong = na.check(released(2.0), NORMAL, **options)
    assert not wrong.can_be_trusted
    assert wrong.predictive_p < 1e-3
    assert "the model does not make releases like it" in str(wrong)
    assert wrong.calibration.is_calibrated, "the fit is right, the model is not"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: na.sbc(MODEL, STATISTIC, MECHANISM, **FAST | {"num_fits": 0}), "num_fits must be"),
        (
            lambda: na.sbc(MODEL, STATISTIC, MECHANISM, **FAST | {"num_records": -1}),
            "num_records must be",
        ),
        (lambda: na.coverage(MODEL, STATISTIC, MECHANISM, {"p": 0.5}, **FAST), "params must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
