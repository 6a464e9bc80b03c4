"""Calibration, coverage and checks: right where the fit is, and failing where it is not."""

import dataclasses

import numpy as np
import pandas
import pytest
from scipy import stats

import noiseaware as na
from noiseaware import diagnostics
from noiseaware.diagnostics.calibration import _turned, source_of
from noiseaware.diagnostics.fits import fits_of
from noiseaware.diagnostics.release_check import _Distance

slow = pytest.mark.slow
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


def test_ranks_of_fits_take_half_the_draws_that_are_effective():
    rng = np.random.default_rng(0)
    draws = np.broadcast_to(np.arange(40.0).reshape(2, 20, 1, 1), (2, 20, 500, 1))
    u = diagnostics.ranks_of_fits(draws, np.full((500, 1), 1e9), np.full(500, 16.0), rng)
    assert 8 / 9 < u.min() < 8 / 9 + 0.01, "above all of eight"


def test_ranks_among_dependent_draws_are_uniform():
    """Of truths and chains with one law. Among all draws that are effective, so one autocorrelation
    time apart, they are not: their normal scores have an sd of 1.01.
    """
    rng, keep, (num_chains, num_draws) = np.random.default_rng(3), 0.8, (2, 45)
    shape = (num_chains, 1, 150_000)  # as quantities of one set, which are ranked together
    draws = [rng.normal(size=shape)]
    for _ in range(num_draws - 1):
        draws.append(keep * draws[-1] + np.sqrt(1 - keep**2) * rng.normal(size=shape))
    draws, truth = np.stack(draws, axis=1), rng.normal(size=shape[1:])
    effective = np.array([num_chains * num_draws * (1 - keep) / (1 + keep)])
    found, control = (
        diagnostics.uniformity(diagnostics.ranks_of_fits(draws, truth, factor * effective, rng)[0])
        for factor in (1, 2)
    )
    assert found.p > 1e-3
    assert control.p < 1e-6


@slow
@pytest.mark.parametrize("scale", [4.0, 0.4])
def test_a_right_fit_is_calibrated(scale):
    """Of a count with little noise, log g has few values, which the truth shares with draws."""
    found = na.sbc(MODEL, STATISTIC, na.Laplace(scale), **FAST)
    assert found.quantities == ("probability", "log g", "probability, by release")
    assert found.is_calibrated
    assert found.verdict == "calibrated"
    assert 0.4 < found.contraction[0] < 0.95
    assert "calibrated: 400 fits" in str(found)
    _, share, low, high = found.ecdf("probability", level=0.01)
    assert np.all((low <= share) & (share <= high))


def test_rounding_does_not_tell_equal_densities_of_counts_apart():
    """Else the last digit, not chance, would say which of a truth and its draws is larger."""
    fits = fits_of(source_of(MODEL, STATISTIC, MECHANISM, 20, None), MODEL, 1, "auto")
    log_density = np.array([-1.3, np.nextafter(-1.3, 0), -1.2])
    _, compared = fits._together({"probability": np.full(3, 0.3)}, log_density).T
    assert compared[0] == compared[1] < compared[2]


def a_third(release):
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
        ({"told": a_third}, "log g"),
        pytest.param({"method": naive, "num_fits": 150}, "probability", marks=slow),
        pytest.param(
            {"method": from_prior, "num_fits": 150}, "probability, by release", marks=slow
        ),
        pytest.param({"data_model": na.BetaBernoulli("x", 6, 3)}, "probability", marks=slow),
    ],
)
def test_controls_are_not_calibrated(change, worst):
    found = na.sbc(MODEL, STATISTIC, MECHANISM, **FAST | change)
    assert not found.is_calibrated
    assert found.uniformities[worst].p < 1e-4
    assert "NOT calibrated" in str(found)


@slow
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


def test_ranks_by_release_are_uniform_where_a_release_says_little():
    """Exact posteriors of a normal mean given five noisy sums: how often the test of the mean
    rejects at 0.05.
    """
    rng, rejected, count = np.random.default_rng(2), 0, 800
    for _ in range(count):
        truth = rng.normal(size=(200, 1))
        values = 0.1 * truth + rng.normal(size=(200, 5))
        precision = 1 + 5 * 0.01
        mean = 0.1 * values.sum(axis=1, keepdims=True) / precision
        rank = stats.norm.cdf((truth - mean) * np.sqrt(precision))
        turned = _turned({"values": values, "truth": truth, "rank": rank})
        turned = turned[np.isfinite(turned)]
        assert len(turned) == 100
        rejected += diagnostics.uniformity(turned).mean_p < 0.05
    assert stats.binomtest(rejected, count, 0.05).pvalue > 1e-3


@slow
def test_known_columns_are_given_as_fit_takes_them():
    model = na.HierarchicalBernoulli(
        "y", "g", ("u", "v"), center=na.NormalPrior(0.5, 1.0), spread=na.StddevPrior(0.8, 4.0)
    )
    found = na.sbc(
        model, na.ContingencyTable({"g": ("u", "v"), "y": 2}), MECHANISM, draws=20,
        known={"g": ["u", "v"] * 10}, **FAST | {"num_fits": 60},
    )  # fmt: skip
    assert found.p > 1e-3


def test_few_fits_decide_nothing():
    found = na.Calibration(
        ("a",), np.array([[0.2], [0.4], [0.7]]), np.ones(1), np.ones(3), np.ones(3), 0
    )
    assert found.verdict == "undecided"


def test_unconverged_fits_decide_nothing():
    rng = np.random.default_rng(0)
    ranks, r_hat = rng.uniform(size=(100, 1)), np.where(np.arange(100) < 20, 2.0, 1.0)
    found = na.Calibration(("a",), ranks, np.ones(1), r_hat, np.ones(100), 0)
    assert found.verdict == "undecided"
    assert not found.is_calibrated
    assert "undecided" in str(found)


def test_a_folder_is_of_one_function_and_one_setting():
    def fits(told=None, method="auto", seed=1, **options):
        source = source_of(MODEL, STATISTIC, MECHANISM, 20, None)
        return fits_of(source, MODEL, seed, method, told, options=options).identity

    assert fits() == fits()
    assert fits(told=a_third) == fits(told=a_third)
    others = [
        fits(seed=2), fits(draws=7), fits(told=a_third), fits(told=lambda release: release),
        fits(method=naive), fits(method="interweaving"),
    ]  # fmt: skip
    assert len({fits(), *others}) == 1 + len(others)


def checked(**changed):
    calibration = na.Calibration(
        ("mean",), np.random.default_rng(0).uniform(size=(64, 1)), np.ones(1), np.ones(64),
        np.full(64, 99.0), 0,
    )  # fmt: skip
    summary = pandas.DataFrame({"r_hat": [1.0], "sd_ratio": [0.5]}, index=["mean"])
    usual = {
        "calibration": calibration, "distance": 1.0, "predictive_p": 0.4,
        "sum_scores": {"x": 0.3, "x^2": -0.2}, "summary": summary, "method": "interweaving",
    }  # fmt: skip
    return na.Check(**usual | changed)


def test_what_a_check_says():
    assert checked().can_be_trusted
    assert "the model makes such releases" in str(checked())
    assert "cannot show whether the model is right" in str(checked(sum_scores={"x": 0.1}))
    ranks = np.random.default_rng(0).uniform(0.3, 0.7, size=(64, 1))
    off = dataclasses.replace(checked().calibration, ranks=ranks)
    for changed, sentence in [
        ({"calibration": off}, "Do not trust it: posteriors of releases like it are off"),
        ({"predictive_p": 1e-3}, "Do not trust it: the model does not make releases like it"),
        ({"distance": 9.0}, "Cannot say: few simulated releases are like it"),
        (
            {"calibration": dataclasses.replace(checked().calibration, r_hat=np.full(64, 2.0))},
            "Cannot say: chains disagree in 100 % of the fits",
        ),
    ]:
        assert str(checked(**changed)).startswith(sentence)
        assert not checked(**changed).can_be_trusted


def test_distance_does_not_depend_on_units():
    rng = np.random.default_rng(0)
    replicated = rng.normal(size=(1000, 2)) * [1.0, 1e9]
    away = _Distance(replicated)(np.array([[10.0, 0.0]]))[0]
    assert 9 < away < 11


def test_scores_are_of_a_sum_given_the_others():
    """Each a little off, in a way that the two never are together: sd ``sqrt(1 - 0.9^2)``."""
    rng = np.random.default_rng(1)
    replicated = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], 200_000) * [1.0, 1e9]
    scores = _Distance(replicated).scores(np.array([-1.0, 1.0e9]))
    expected = (1 + 0.9) / np.sqrt(1 - 0.9**2)
    assert np.allclose(scores, [-expected, expected], rtol=0.02)


@slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_a_check_trusts_a_right_model_and_no_other():
    options = {"seed": 2, "num_fits": 64, "processes": 0, "progress": False}
    found = na.check(released(1.0), NORMAL, **options)
    assert found.can_be_trusted
    assert str(found).startswith("Trust it: in 64 simulated releases nearest")
    assert found.distance < 2
    wrong = na.check(released(3.0), NORMAL, **options)
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
        (lambda: na.sbc(MODEL, na.Count("y"), MECHANISM, **FAST), "model must have the column 'y'"),
        (
            lambda: na.sbc(MODEL, STATISTIC, MECHANISM, **FAST | {"method": "bogus"}),
            "method must be one of",
        ),
        (lambda: na.check(MODEL, STATISTIC, seed=1), "release must be a Release"),
        (
            lambda: na.coverage(MODEL, STATISTIC, MECHANISM, {"probability": 1.7}, **FAST),
            "params must lie in their supports",
        ),
        (lambda: diagnostics.band(100, 1e-4, np.array([0.5])), "level must be from"),
        (
            lambda: na.check(
                na.Release([5e8], STATISTIC, MECHANISM, neighbours="replace", num_records=10**9),
                MODEL,
                seed=1,
            ),
            "num_records must be at most",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
