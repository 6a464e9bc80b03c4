"""The how-tos run as they stand, and what they say of their results is so."""

import re
from pathlib import Path

import numpy as np
import pytest

import noiseaware as na
from tests.statistical import MAX_Z

pytestmark = pytest.mark.optimized

DOCS = Path(__file__).parents[1] / "docs"


def names_of(page, num_blocks):
    """All that its blocks define, run one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) == num_blocks
    found: dict = {"results": []}
    for block in blocks:
        exec(compile(block, page, "exec"), found)
        if "draws = " in block:
            found["results"].append(found["draws"])
    return found


def rate(draws):
    row = na.summarize(draws).loc["rate"]
    return row["mean"], row["sd"] / np.sqrt(row["ess_bulk"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_three_ways_and_another_step_have_one_posterior():
    names = names_of("your-own-model.md", 8)
    by_region, by_blackjax, noisy_mean = names["results"]
    fits = [*names["fits"].values(), by_blackjax]
    assert len(fits) == 4
    for one in fits:
        for other in fits:
            (a, error_a), (b, error_b) = rate(one), rate(other)
            assert abs(a - b) < MAX_Z * np.hypot(error_a, error_b)
    assert "params step" in by_blackjax.attrs["exactness"]
    assert by_region.posterior["log_odds"].shape == (4, 1000, 3)
    precision = 1 / 4 + 1 / (1 / 100 + 1 / 9)
    row = na.summarize(noisy_mean).loc["mean"]
    expected = -2.1 / (1 / 100 + 1 / 9) / precision
    assert abs(row["mean"] - expected) < MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])


@pytest.mark.slow
def test_sums_in_place_of_records(capsys):
    names = names_of("exponential-families.md", 3)
    assert "statistic_gibbs against interweaving: both on the release" in capsys.readouterr().out
    for draws in names["results"]:
        assert draws.attrs["exactness"] == "approximate: CLT on the statistic"
        assert na.summarize(draws)["r_hat"].max() < 1.01


@pytest.mark.slow
def test_private_chains(capsys):
    names = names_of("private-chains.md", 2)
    assert "private at its cost" in capsys.readouterr().out
    draws, of_batches = names["results"]
    assert draws.attrs["cost_epsilon"] <= 2.0
    owners = names["homes"]["owns"].sum()
    mean = (1 + owners) / 50_002
    off = draws.posterior["probability"].mean() - mean
    assert abs(off) < 2 * np.sqrt(mean * (1 - mean) / 50_000)
    assert na.summarize(draws)["r_hat"].iloc[0] < 1.2
    assert of_batches.attrs["cost_epsilon"] <= 4.0
    row, tempered_sd = na.summarize(of_batches).iloc[0], np.sqrt(mean * (1 - mean) / 1_000)
    assert abs(row["mean"] - mean) < tempered_sd
    assert 0.6 < row["sd"] / tempered_sd < 1.6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_checks_and_the_failure_gallery(capsys, monkeypatch):
    monkeypatch.setattr("noiseaware.studies.num_cores", lambda: 1)  # other tests have the others
    names = names_of("trust.md", 8)
    assert names["calibration"].is_calibrated
    assert "Trust it" in capsys.readouterr().out
    assert names["ignored"].uniformities["probability"].sd > 1.2
    assert names["mistaken"].worst == "log g"
    for caught in ("ignored", "mistaken", "misread"):
        assert not names[caught].is_calibrated
    assert na.summarize(names["stuck"])["r_hat"].max() > 1.01
    misfit = names["misfit"]
    assert not misfit.can_be_trusted
    assert misfit.calibration.is_calibrated
    assert "the model does not make releases like it" in str(misfit)
    assert all(abs(score) > 3 for score in misfit.sum_scores.values()), "each, given the other"


def test_the_page_of_results_is_that_of_the_results():
    from experiments import page

    assert page.PAGE.read_text() == page.page(), "run python -m experiments.page"
