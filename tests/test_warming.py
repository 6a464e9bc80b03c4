"""What warm-up makes of a window of draws."""

import numpy as np
import pytest

from noiseaware import warming
from noiseaware.chains import Tuning
from noiseaware.convergence import bulk_ess
from noiseaware.elliptical_slice import Shape

NUM_CHAINS, NUM_DRAWS = 4, 4 * warming.WINDOW_DRAWS
SWEEPS = warming.SWEEPS_APART


def lesson(draws, sweeps=SWEEPS, *, is_moving=True, min_efficiency=0.0):
    """From draws ``[chain, draw]`` or ``[chain, draw, param]`` of one data set, the last window's
    with or without moves of params.
    """
    free = draws.reshape(1, *draws.shape[:2], -1)
    size = free.shape[-1]
    shape = Shape(np.zeros((1, size)), np.eye(size)[None])
    tuning = Tuning(shape, sweeps, num_stand_ins=1, is_moving=is_moving)
    limits = warming.Limits(has_fixed_sweeps=False, all_stand_in=1, min_efficiency=min_efficiency)
    return warming.learn(free, np.zeros((*free.shape[:3], 3)), tuning, True, limits)


def correlated(rng, correlation, num_chains=NUM_CHAINS, size=()):
    noise = rng.normal(size=(num_chains, NUM_DRAWS, *size)) * np.sqrt(1 - correlation**2)
    draws = np.zeros_like(noise)
    for at in range(NUM_DRAWS):
        draws[:, at] = correlation * draws[:, at - 1] + noise[:, at]
    return draws


def test_warm_up_ends_at_an_efficient_window(rng):
    assert lesson(correlated(rng, 0.0)).is_warm
    assert lesson(correlated(rng, 0.0)).tuning.sweeps_per_draw <= SWEEPS


def test_sweeps_double_where_draws_remember(rng):
    found = lesson(correlated(rng, 0.9))
    assert not found.is_warm
    assert found.tuning.sweeps_per_draw == 2 * SWEEPS


def test_the_smallest_size_of_many_params_is_held_against_that_of_independent_draws(rng):
    draws = correlated(rng, 0.1, size=(60,))  # 0.82 of the draws
    smallest = bulk_ess(draws[:, -warming.WINDOW_DRAWS :]).min()
    assert smallest < 0.5 * NUM_CHAINS * warming.WINDOW_DRAWS, "of 60 estimates"
    assert lesson(draws, sweeps=8).is_warm
    found = lesson(correlated(rng, 0.5, size=(60,)), sweeps=8)  # 0.33 of the draws
    assert not found.is_warm
    assert found.tuning.sweeps_per_draw == 16


def test_draws_are_as_effective_as_the_fit_needs_whatever_many_params_seem(rng):
    draws = correlated(rng, 0.1, size=(60,))
    window = draws[:, -warming.WINDOW_DRAWS :]
    share = bulk_ess(window).min() / (NUM_CHAINS * warming.WINDOW_DRAWS)
    assert lesson(draws, sweeps=8, min_efficiency=0.9 * share).is_warm
    assert not lesson(draws, sweeps=8, min_efficiency=1.1 * share).is_warm


def test_sweeps_do_not_double_where_chains_are_in_modes_of_their_own(rng):
    apart = 20.0 * np.array([0.0, 0.0, 1.0, 1.0])[:, None]
    found = lesson(correlated(rng, 0.0) + apart)
    assert found.is_warm
    assert found.tuning.sweeps_per_draw == SWEEPS
    found = lesson(correlated(rng, 0.9) + apart)
    assert not found.is_warm, "slow in its own mode, too"
    found = lesson(correlated(rng, 0.0) + apart, sweeps=8)
    assert found.tuning.sweeps_per_draw == 16, "with so few, more may join them"


def test_chains_that_stand_still_are_not_apart(rng):
    still = np.repeat(rng.normal(size=(NUM_CHAINS, 4)), NUM_DRAWS // 4, axis=1)
    assert not lesson(still).is_warm


@pytest.mark.parametrize(
    ("correlation", "is_back"),
    [(0.45, False), (0.7, True)],  # effective sizes of 0.38 and 0.18 of the draws
)
def test_moves_come_back_where_draws_without_them_are_worth_less_than_half(
    rng, correlation, is_back
):
    before = correlated(rng, 0.25, num_chains=100)  # 0.6 of the draws
    without = correlated(rng, correlation, num_chains=100)
    trial = np.concatenate(
        [before[:, : -warming.WINDOW_DRAWS], without[:, -warming.WINDOW_DRAWS :]], axis=1
    )
    found = lesson(trial, sweeps=8, is_moving=False)
    assert found.tuning.is_moving == is_back
    assert found.tuning.sweeps_per_draw == (8 if is_back else 16)
    assert not found.is_warm


def test_moves_come_back_at_a_first_window_without_them(rng):
    found = lesson(correlated(rng, 0.9)[:, : warming.WINDOW_DRAWS], sweeps=8, is_moving=False)
    assert found.tuning.is_moving
    assert found.tuning.sweeps_per_draw == 8


@pytest.fixture
def rng():
    return np.random.default_rng(3)
