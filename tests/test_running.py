"""Long runs: whatever interrupts them, the draws are those of an uninterrupted run."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import noiseaware as na
from noiseaware import journeys, running

pytestmark = pytest.mark.optimized  # as in the processes that are killed

MODEL = na.Normal("x", na.NormalPrior(0.0, 2.0), 1.0)
RELEASE = na.Release(
    [4.0, 9.0], na.Clamped("x", -3, 3, ("x", "x^2")), na.Laplace(1.0), neighbours="replace",
    num_records=10,
)  # fmt: skip
# Fixed sweeps make every draw slow enough to be interrupted.
FIT = {"seed": 5, "draws": 400, "sweeps_per_draw": 3, "keep_records": 4, "progress": False}


def fitted(**settings):
    return na.fit(RELEASE, MODEL, **FIT | settings)


def assert_same_draws(found, expected):
    for group in ("posterior", "sample_stats", "posterior_predictive", "imputed_records"):
        assert found[group].equals(expected[group]), group
    assert found.attrs["sweeps_per_draw"] == expected.attrs["sweeps_per_draw"]


@pytest.fixture(scope="module")
def uninterrupted():
    return fitted()


def test_draws_do_not_depend_on_the_length_of_chunks(uninterrupted, monkeypatch):
    monkeypatch.setattr(journeys, "CHUNK_SECONDS", 1e-9)
    assert_same_draws(fitted(), uninterrupted)


def test_draws_are_numbered_once_and_kept_under_one_tuning(monkeypatch):
    """No random number serves twice, and nothing is learned from the draws that are kept."""
    advance, calls = journeys._Crew.advance, []

    def watched(self, groups, first, limit, tuning):
        groups, drawn = advance(self, groups, first, limit, tuning)
        calls.append((first, drawn.free.shape[2], tuning))
        return groups, drawn

    monkeypatch.setattr(journeys, "CHUNK_DRAWS", 30)
    monkeypatch.setattr(journeys._Crew, "advance", watched)
    draws = fitted()
    firsts, counts, tunings = zip(*calls, strict=True)
    assert list(firsts) == [sum(counts[:i]) for i in range(len(counts))]
    num_warm = draws.attrs["warm_up_sweeps"] // FIT["sweeps_per_draw"]
    kept = [tuning for first, tuning in zip(firsts, tunings, strict=True) if first >= num_warm]
    assert sum(counts) - num_warm == FIT["draws"]
    assert all(tuning is kept[0] for tuning in kept)


SCRIPT = """
import sys
from noiseaware import journeys, running
from tests.test_running import fitted
running.CHECKPOINT_SECONDS, running.MAX_SHARE_OF_TIME = 0.0, 1.0
journeys.CHUNK_SECONDS = 1e-9
fitted(checkpoint=sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_fit_goes_on_to_the_same_draws(uninterrupted, tmp_path, monkeypatch):
    """Killed with SIGKILL at random moments, three times, then let run."""
    path = tmp_path / "checkpoint"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    sizes = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, path], env=environment)
        before = path.stat().st_mtime_ns if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "killed before it was done"
        sizes.append(running.Checkpoint(path, {}).load()["warm"].shape[2])
    assert sizes == sorted(sizes)
    assert_same_draws(fitted(checkpoint=path), uninterrupted)
    monkeypatch.setattr(journeys._Crew, "advance", None)  # a finished run draws nothing more
    assert_same_draws(fitted(checkpoint=path), uninterrupted)


def test_ctrl_c_returns_the_draws_so_far(uninterrupted, tmp_path, monkeypatch):
    advance, calls = journeys._Crew.advance, []

    def interrupted(self, groups, first, *args):
        if first >= uninterrupted.attrs["warm_up_sweeps"] // 3 + 150:
            signal.raise_signal(signal.SIGINT)  # in this thread, at once
        calls.append(first)
        return advance(self, groups, first, *args)

    path = tmp_path / "checkpoint"
    monkeypatch.setattr(journeys, "CHUNK_DRAWS", 50)
    monkeypatch.setattr(journeys._Crew, "advance", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    with pytest.warns(na.IncompleteWarning, match=r"interrupted after \d+ of 400 draws a chain"):
        found = fitted(checkpoint=path)
    signal.signal(signal.SIGINT, before)
    assert found.attrs["is_complete"] == 0
    made = found.posterior.sizes["draw"]
    assert 100 <= made < 400
    expected = uninterrupted.posterior["mean"].values[:, :made]
    assert np.array_equal(found.posterior["mean"].values, expected)
    monkeypatch.setattr(journeys._Crew, "advance", advance)
    assert_same_draws(fitted(checkpoint=path), uninterrupted)


def test_ctrl_c_before_any_draw_is_kept_is_raised(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(journeys._Crew, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted()


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"folder must be one that can be written, got .*inside"):
        na.cache_compilations(tmp_path / "file" / "inside")


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    assert fitted(checkpoint=path).attrs["is_resumed"] == 0
    assert fitted(checkpoint=path).attrs["is_resumed"] == 1
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"belongs to a fit with draws 400, got 500"):
        fitted(checkpoint=path, draws=500)
    with pytest.raises(ValueError, match=r"belongs to a fit with seed 5, got 6"):
        fitted(checkpoint=path, seed=6)
    with pytest.raises(ValueError, match=r"of another release, model or proposal: give"):
        na.fit(RELEASE, na.Normal("x", na.NormalPrior(0.0, 2.5), 1.0), checkpoint=path, **FIT)
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match=r"checkpoint .* is not one of a fit"):
        fitted(checkpoint=path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint .* is not one of a fit"):
        fitted(checkpoint=path)
    path.write_bytes(before[: len(before) // 2])
    assert path.read_bytes() == before[: len(before) // 2], "a refused file is left alone"
