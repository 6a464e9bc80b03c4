"""A pilot changes where a large fit starts, and what it costs; not where it ends."""

import numpy as np
import pytest

import noiseaware as na
from noiseaware import journeys, pilot
from noiseaware.elliptical_slice import Shape
from tests.statistical import MAX_Z

PRIOR_SD, SD, NOISE_SD = 2.0, 1.5, 30.0


def posterior_of_mean(total, num_records, noise_sd):
    """``s | mean ~ N(n mean, n sd^2 + noise_sd^2)`` and a N(1, 2^2) prior."""
    variance = num_records * SD**2 + noise_sd**2
    precision = 1 / PRIOR_SD**2 + num_records**2 / variance
    return (1.0 / PRIOR_SD**2 + num_records * total / variance) / precision, precision**-0.5


def test_a_scaled_problem_has_the_same_centre_and_the_width_that_is_undone():
    num_records, total, ratio = 1_000_000, 1_300_000.0, 0.01
    centre, width = posterior_of_mean(total, num_records, NOISE_SD)
    small_centre, small_width = posterior_of_mean(
        total * ratio, num_records * ratio, NOISE_SD * np.sqrt(ratio)
    )
    assert abs(small_centre - centre) < 0.01 * small_width  # the prior pulls a little more
    prior = Shape(np.array([[1.0]]), np.array([[[PRIOR_SD]]]))
    small = Shape(np.array([[small_centre]]), np.array([[[small_width]]]))
    start = np.array([[[small_centre + small_width]]])
    shape, starts = pilot.transfer(prior, small, start, 1 / ratio)
    assert np.isclose(shape.cholesky[0, 0, 0], width, rtol=1e-9)
    assert np.isclose(starts[0, 0, 0] - small_centre, pilot.START_SPREAD * width, rtol=1e-9)


def test_directions_the_release_says_nothing_of_keep_their_width():
    """Two params, their sum known to 0.1, their difference as wide as the prior."""
    rotation = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
    covariance = rotation @ np.diag([0.01, 0.95]) @ rotation.T
    prior = Shape(np.zeros((1, 2)), np.eye(2)[None])
    small = Shape(np.zeros((1, 2)), np.linalg.cholesky(covariance)[None])
    starts = (rotation @ np.array([0.1, 1.0]))[None, None]
    shape, starts = pilot.transfer(prior, small, starts, 100.0)
    found = rotation.T @ shape.cholesky[0] @ shape.cholesky[0].T @ rotation
    expected_sum = 1 / (1 + (1 / 0.01 - 1) * 100)
    assert np.allclose(found, np.diag([expected_sum, 0.95]), atol=1e-12)
    along_sum = pilot.START_SPREAD * np.sqrt(expected_sum)
    assert np.allclose(rotation.T @ starts[0, 0], [along_sum, 1.0])


@pytest.mark.slow
def test_a_fit_after_two_pilots_reaches_the_closed_form(monkeypatch):
    monkeypatch.setattr(journeys, "PILOT_FROM", 2_000)
    monkeypatch.setattr(journeys, "MIN_PILOT_RECORDS", 200)
    monkeypatch.setattr(journeys, "PILOT_SHARE", 4)
    sizes, begin = [], journeys._begin

    def watched(batch, settings, *args, **kwargs):
        sizes.append(settings.num_records)
        return begin(batch, settings, *args, **kwargs)

    monkeypatch.setattr(journeys, "_begin", watched)
    model = na.Normal("x", na.NormalPrior(1.0, PRIOR_SD), SD)
    wide = na.Clamped("x", 1.0 - 12 * 2.5, 1.0 + 12 * 2.5)
    release = na.Release(
        [-9_000.0], wide, na.Gaussian(NOISE_SD), neighbours="replace", num_records=9_000
    )
    draws = na.fit(release, model, seed=2, draws=300, progress=False)
    assert sizes == [9_000, 2_250, 562]
    mean, width = posterior_of_mean(-9_000.0, 9_000, NOISE_SD)
    row = na.summarize(draws).loc["mean"]
    assert row["r_hat"] < 1.02
    assert abs(row["mean"] - mean) < MAX_Z * width / np.sqrt(row["ess_bulk"])
    assert abs(row["sd"] / width - 1) < MAX_Z / np.sqrt(2 * row["ess_bulk"])


@pytest.mark.slow
def test_a_fit_after_a_pilot_is_resumed_without_another(monkeypatch, tmp_path):
    monkeypatch.setattr(journeys, "PILOT_FROM", 400)
    monkeypatch.setattr(journeys, "MIN_PILOT_RECORDS", 100)
    monkeypatch.setattr(journeys, "CHUNK_DRAWS", 30)
    monkeypatch.setattr("noiseaware.running.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("noiseaware.running.MAX_SHARE_OF_TIME", 1.0)
    release = na.Release(
        [170.0], na.Count("x"), na.Laplace(5.0), neighbours="replace", num_records=400
    )
    model, path = na.BetaBernoulli("x", 2.0, 3.0), tmp_path / "checkpoint"
    settings = {"seed": 1, "draws": 200, "progress": False}
    expected = na.fit(release, model, **settings)
    draw_more, calls = journeys._draw_more, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("stopped")
        return draw_more(*args)

    with monkeypatch.context() as patch:
        patch.setattr(journeys, "_draw_more", interrupted)
        with pytest.raises(RuntimeError, match="stopped"):
            na.fit(release, model, checkpoint=path, **settings)
    monkeypatch.setattr(journeys, "_pilot", None)
    assert na.fit(release, model, checkpoint=path, **settings).posterior.equals(expected.posterior)
