"""Baselines are what they say: closed forms, labels, and no draws from before convergence."""

import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware.diagnostics import ranks, squared_mmd, thinned, uniformity
from tests.statistical import MIN_P

MODEL = na.BetaBernoulli("x", 2, 3)
RECORDS = {"x": np.repeat([1, 0], [30, 70])}


def law_of(drawn, law):
    """The p-value of nearly independent draws against a law of SciPy."""
    return stats.kstest(np.ravel(drawn), law.cdf).pvalue


def test_records_give_the_posterior_without_noise():
    draws = na.fit_records(RECORDS, MODEL, seed=0)
    assert draws.attrs["exactness"].startswith("baseline, not private")
    assert law_of(draws.posterior["probability"].values, stats.beta(32, 73)) > MIN_P


def test_a_gibbs_step_has_converged():
    """A vague prior, from which the first draws are far away."""
    model = na.Normal("x", na.NormalPrior(0.0, 1e4), na.StddevPrior(1e3, 0.01))
    x = np.random.default_rng(0).normal(5.0, 1.0, size=20)
    drawn = na.fit_records({"x": x}, model, seed=0).posterior["mean"].values
    assert np.max(np.abs(drawn - np.mean(x))) < 100  # 20 posterior sds, a hundredth of the prior's


def count_release(value, num_records=100):
    return na.Release(
        [value], na.Count("x"), na.Laplace(5.0), neighbours="replace", num_records=num_records
    )


@pytest.mark.parametrize(("value", "taken"), [(30.5, 30.5), (-8.0, 0.0), (130.0, 100.0)])
def test_naive_takes_the_nearest_possible_sum_for_true(value, taken):
    draws = na.fit_naive(count_release(value), MODEL, seed=0)
    assert draws.attrs["exactness"] == "baseline, wrong: ignores the noise"
    law = stats.beta(2 + taken, 3 + 100 - taken)
    assert law_of(draws.posterior["probability"].values, law) > MIN_P


def test_naive_takes_sums_that_were_never_published():
    model = na.Exponential("x", na.GammaPrior(8.0, 2.0))
    drawn = na.fit_naive([25.0], model, seed=0, num_records=100).posterior["rate"].values
    assert law_of(drawn, stats.gamma(108, scale=1 / 27)) > MIN_P
    with pytest.raises(ValueError, match="num_records must be given"):
        na.fit_naive([25.0], model, seed=0)
    release = na.Release(
        [3.0], na.Redacted("x", 0.0, 1.0, ("1",)), na.Laplace(1.0), neighbours="replace",
        num_records=9,
    )  # fmt: skip
    with pytest.raises(ValueError, match="release must have the sums"):
        na.fit_naive(release, model, seed=0)


@pytest.mark.parametrize("ones", [5, 30, 100])
def test_one_posterior_samples_are_of_the_tempered_law_within_its_bounds(ones):
    """Also where all of the law lies outside: as quick."""
    records = {"x": np.repeat([1, 0], [ones, 100 - ones])}
    draws = na.fit_one_posterior_samples(
        records, MODEL, seed=0, epsilon=1000.0, draws=1000, lower=0.1, upper=0.9
    )
    assert "not for release" in draws.attrs["exactness"]
    weight = 1.0 / (2 * np.log(9.0))
    law = stats.beta(1 + weight * (1 + ones), 1 + weight * (2 + 100 - ones))
    drawn = draws.posterior["probability"].values.ravel()
    assert np.all((drawn > 0.1) & (drawn < 0.9))
    low, high = law.cdf([0.1, 0.9])
    assert stats.kstest((law.cdf(drawn) - low) / (high - low), "uniform").pvalue > MIN_P


def test_one_posterior_sampling_bound_is_that_of_the_densities():
    """No pair of neighbours changes a draw's log density by more than epsilon a draw."""
    lower, upper, epsilon = 0.2, 0.7, 0.5
    weight = epsilon / (2 * np.log(max(upper / (1 - upper), (1 - lower) / lower)))
    grid = np.linspace(lower, upper, 2001)

    def log_density(ones):
        values = weight * stats.beta(2 + ones, 3 + 10 - ones).logpdf(grid)
        return values - np.log(np.trapezoid(np.exp(values), grid))

    largest = max(np.max(np.abs(log_density(k) - log_density(k + 1))) for k in range(10))
    assert 0.4 * epsilon < largest <= epsilon


def test_ranks_of_a_right_posterior_are_uniform_and_of_a_narrow_one_are_not():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=4000)
    seen = truth + rng.normal(size=4000)
    draws = seen / 2 + rng.normal(scale=np.sqrt(0.5), size=(40, 4000))
    assert uniformity(ranks(draws, truth, rng)).p > 1e-3
    narrow = uniformity(ranks(seen / 2 + 0.8 * (draws - seen / 2), truth, rng))
    assert narrow.p < 1e-3
    assert narrow.sd > 1.1


def test_ties_and_too_few_draws():
    rng = np.random.default_rng(2)
    truth = rng.integers(3, size=4000).astype(float)
    assert uniformity(ranks(rng.integers(3, size=(9, 4000)), truth, rng)).p > 1e-3
    draws = np.zeros((4, 10, 3))
    assert thinned(draws, np.array([20.0, 40.0, 40.0])).shape == (20, 3)
    with pytest.raises(ValueError, match="draws are too dependent to thin"):
        thinned(draws, np.array([3.9, 40.0, 40.0]))
    with pytest.raises(ValueError, match="draws must be one or more"):
        ranks(np.zeros((0, 3)), np.zeros(3), rng)


def test_mmd_is_that_of_the_closed_form():
    """Between N(0, 1) and N(m, 1), normal kernel of bandwidth 1."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 2000, 1))
    shift = 1.5
    expected = 2 / np.sqrt(3) * (1 - np.exp(-(shift**2) / 6))
    assert squared_mmd(x, y + shift, 1.0) == pytest.approx(expected, abs=0.03)
    assert abs(squared_mmd(x, y, 1.0)) < 0.005
