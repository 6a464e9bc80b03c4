"""However a fit is run, its draws come from one posterior: by the plain sweep or interweaved, alone
or in a batch, in long or short chunks, in one go or resumed.
"""

import warnings

import jax
import jax.random as jr
import numpy as np
import pytest

import noiseaware as na
from noiseaware import journeys
from noiseaware.convergence import bulk_ess
from tests.laws.chains import joint_start, total_of
from tests.laws.members import CASES, known_levels
from tests.laws.test_samplers import FIRST_CASES, mechanism_for
from tests.statistical import MAX_Z

NUM_RECORDS = 6
FIT = {"seed": 3, "draws": 500, "progress": False}


def release_of(case, seed):
    """From the joint law, at params that are no rarity."""
    model, statistic = CASES[case]
    mechanism = mechanism_for(statistic)
    with jax.enable_x64(True):
        key_start, key_noise = jr.split(jr.key(seed))
        total = total_of(statistic, joint_start(key_start, model, NUM_RECORDS).records)
        values = np.asarray(mechanism.simulate(key_noise, total))
    return na.Release(values, statistic, mechanism, neighbours="replace", num_records=NUM_RECORDS)


def features(draws):
    """What is compared: params and the replicated release, bounded, ``[chain, draw, k]``."""
    groups = [*draws.posterior.data_vars.values(), draws.posterior_predictive["release"]]
    flat = [group.values.reshape(*group.shape[:2], -1) for group in groups]
    return np.tanh(np.concatenate(flat, axis=2))


def largest_z(found, expected):
    """Between the means of two runs, in standard errors from their effective sizes."""
    means = [draws.mean(axis=(0, 1)) for draws in (found, expected)]
    errors = [draws.var(axis=(0, 1)) / bulk_ess(draws) for draws in (found, expected)]
    return np.max(np.abs(means[0] - means[1]) / np.sqrt(errors[0] + errors[1] + 1e-24))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_way_to_run_a_fit_gives_one_posterior(case, tmp_path, monkeypatch):
    warnings.simplefilter("ignore", na.ConvergenceWarning)
    model, _ = CASES[case]
    fixed = FIT | {"known": known_levels(model, NUM_RECORDS)}
    release, other = release_of(case, 0), release_of(case, 1)
    plain = features(na.fit(release, model, method="record_augmentation", **fixed))
    alone = na.fit(release, model, **fixed)
    assert largest_z(features(alone), plain) < MAX_Z
    # Side by side, as an accelerator runs them.
    with monkeypatch.context() as patch:
        patch.setattr(journeys, "_is_cpu", lambda: False)
        batch = na.fit_many([other, release], model, **fixed)
    assert largest_z(features(batch.isel(fit=1)), plain) < MAX_Z
    assert largest_z(features(batch.isel(fit=0)), plain) > MAX_Z, "two releases, two posteriors"
    if case in FIRST_CASES:  # one after the other, a core each, as a CPU runs them
        in_turn = na.fit_many([other, release], model, **fixed)
        assert largest_z(features(in_turn.isel(fit=1)), plain) < MAX_Z
    # In short chunks, interrupted in the middle and resumed: the same draws.
    calls = []

    def interrupted(crew, *args):
        calls.append(args)
        if len(calls) == 10:
            raise RuntimeError("stopped")
        return advance(crew, *args)

    path, advance = tmp_path / "checkpoint", journeys._Crew.advance
    monkeypatch.setattr(journeys, "CHUNK_SECONDS", 0.01)
    monkeypatch.setattr(journeys, "CHUNK_DRAWS", 20)  # at least ten calls, however quick they are
    monkeypatch.setattr("noiseaware.running.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("noiseaware.running.MAX_SHARE_OF_TIME", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(journeys._Crew, "advance", interrupted)
        with pytest.raises(RuntimeError, match="stopped"):
            na.fit(release, model, checkpoint=path, **fixed)
    resumed = na.fit(release, model, checkpoint=path, **fixed)
    assert resumed.posterior.equals(alone.posterior)
