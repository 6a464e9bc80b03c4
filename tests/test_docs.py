"""The how-to runs as it stands, and its three ways lead to one posterior."""

import re
from pathlib import Path

import numpy as np
import pytest

import noiseaware as na
from tests.statistical import MAX_Z

PAGE = Path(__file__).parents[1] / "docs" / "your-own-model.md"


@pytest.fixture(scope="module")
def names():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 8
    found: dict = {"results": []}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), found)
        if "draws = " in block:
            found["results"].append(found["draws"])
    return found


def rate(draws):
    row = na.summarize(draws).loc["rate"]
    return row["mean"], row["sd"] / np.sqrt(row["ess_bulk"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_three_ways_and_another_step_have_one_posterior(names):
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
