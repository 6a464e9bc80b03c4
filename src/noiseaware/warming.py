"""What warm-up learns, a window of draws at a time.

After each window the shape of the interweaving move is learned from the later half of all draws,
over all chains of a data set, and how many records stand for all in it from how often it is
accepted. A params' step that has a size gets the scale of ``p(params | records)`` from the
information of the chains' records, and moves its step towards its acceptance rate. If the window's
smallest effective size is below ``TARGET_EFFICIENCY`` of that of independent draws, the number of
sweeps between draws doubles. From ``SWEEPS_APART`` on it does not where every chain alone has
``EFFICIENCY_APART``: chains in modes of their own, of which R-hat will tell. If it is not, and the
moves were a third or less of what made the draws differ, a window is tried without them; they come
back if that one is inefficient, with less than half the effective size of the one before: of few
records a sweep with moves takes as long as two without, or longer. Warm-up ends at an efficient
window, or at one of chains apart; then all of this is frozen, so that the draws kept come from one
invariant kernel.

A batch of data sets has one number of sweeps: enough for all but ``SHARE_LEFT`` of them.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from noiseaware.chains import Tuning
from noiseaware.convergence import bulk_ess, finite
from noiseaware.elliptical_slice import Shape

WINDOW_DRAWS = 50
MIN_WINDOWS, MAX_WINDOWS = 4, 20
TARGET_EFFICIENCY = 0.5
EFFICIENCY_APART, SWEEPS_APART = 0.6, 256
SHARE_LEFT = 0.05
LOW_MOVE_RATE, HIGH_MOVE_RATE = 0.5, 0.8
MIN_MOVE_SIZE = 0.7  # of all moves between two draws, in squared units of the shape
MIN_SHARE_WITHOUT = 0.5  # of the effective size that draws have with moves
MAX_SWEEPS_PER_DRAW = 10_000
STEP_GAIN = 2.0  # log step of the params' kernel over a window, by acceptance above the target


class Limits(NamedTuple):
    """What warm-up keeps to: sweeps that were asked for, how many segments there are, the rate at
    which the params' step should be accepted if it has a size, windows, and how effective draws
    must be, however many params there are, for the fit to have enough of them.
    """

    has_fixed_sweeps: bool
    all_stand_in: int
    target_rate: float | None = None
    min_windows: int = MIN_WINDOWS
    max_windows: int = MAX_WINDOWS
    min_efficiency: float = 0.0


class Lesson(NamedTuple):
    tuning: Tuning
    is_warm: bool
    was_idle: bool


def learn(
    free: np.ndarray,
    moves: np.ndarray,
    tuning: Tuning,
    was_idle: bool,
    limits: Limits,
    information: np.ndarray | None = None,
) -> Lesson:
    """At the end of a window, from all draws until then.

    ``free`` has the unconstrained params, ``[set, chain, draw, d]``, and ``moves`` how often and
    how far they moved, and how often in the step given records, ``[set, chain, draw, 3]``;
    ``was_idle`` says that the moves were left out once; ``information`` is that of chains at the
    end of the window, for a params' step with a size.
    """
    shape, sweeps, num_stand_ins, is_moving, cholesky, step_size = tuning
    num_windows = free.shape[2] // WINDOW_DRAWS
    together, alone = _efficiencies(finite(free[:, :, -WINDOW_DRAWS:]), limits.min_efficiency)
    efficiency = float(np.quantile(together, SHARE_LEFT))
    is_efficient = efficiency >= TARGET_EFFICIENCY
    is_done = (together >= TARGET_EFFICIENCY) | (alone >= EFFICIENCY_APART)
    are_apart = (
        not is_efficient and sweeps >= SWEEPS_APART and bool(np.mean(is_done) >= 1 - SHARE_LEFT)
    )
    move_rate, move_size, params_rate = np.mean(moves[:, :, -WINDOW_DRAWS:], axis=(0, 1, 2))
    is_last = num_windows == limits.max_windows
    # Nearly independent draws differ by 2 shapes squared, once the shape is that of the draws: the
    # move may be idle where it is a third of that. It gets one trial without, and one more window.
    is_idle = (
        num_windows >= limits.min_windows
        and is_moving
        and is_efficient
        and sweeps * move_size < MIN_MOVE_SIZE
        and not (was_idle or is_last or limits.has_fixed_sweeps)
    )
    is_settled = (is_efficient and not is_idle) or are_apart or limits.has_fixed_sweeps
    is_warm = is_last or (num_windows >= limits.min_windows and is_settled)
    if not (is_moving or is_efficient) and efficiency < MIN_SHARE_WITHOUT * _before(free, limits):
        is_moving = True
    elif not (is_efficient or are_apart or limits.has_fixed_sweeps):
        sweeps = min(2 * sweeps, MAX_SWEEPS_PER_DRAW)
    elif is_warm and is_efficient and not limits.has_fixed_sweeps:
        sweeps = max(1, round(sweeps * TARGET_EFFICIENCY / efficiency))
    if is_moving and move_rate < LOW_MOVE_RATE and num_windows > 1:  # at first the anchor is far
        num_stand_ins = min(4 * num_stand_ins, limits.all_stand_in)
    elif move_rate > HIGH_MOVE_RATE and not is_warm:
        num_stand_ins = max(num_stand_ins // 4, 1)
    if information is not None and limits.target_rate is not None:
        cholesky = params_cholesky(shape, information)
        step_size *= float(np.exp(STEP_GAIN * (params_rate - limits.target_rate)))
    later = free[:, :, free.shape[2] // 2 :]
    shape = learn_shape(later.reshape(len(free), -1, free.shape[-1]), otherwise=shape)
    is_moving = is_moving and not is_idle
    tuning = Tuning(shape, sweeps, num_stand_ins, is_moving, cholesky, step_size)
    return Lesson(tuning, is_warm, was_idle or is_idle)


def params_cholesky(shape: Shape, information: np.ndarray) -> np.ndarray:
    """A factor of the covariance of ``p(params | records)``, from the mean information of chains,
    ``[set, chain, d, d]`` in whitened coordinates of the shape.

    Records say more than their release: information below 1, that of the private posterior, is an
    accident of where chains are, or of a density that is not concave there.
    """
    is_finite = np.all(np.isfinite(information), axis=(2, 3), keepdims=True)
    count = np.maximum(np.sum(is_finite, axis=1), 1)
    mean = np.sum(np.where(is_finite, information, 0.0), axis=1) / count
    curvatures, axes = np.linalg.eigh((mean + mean.swapaxes(1, 2)) / 2)
    root = shape.cholesky @ (axes / np.sqrt(np.maximum(curvatures, 1.0))[:, None, :])
    return np.linalg.cholesky(root @ root.swapaxes(1, 2))


def _efficiencies(window: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Smallest effective size of each data set, of all chains together and of chains alone, whether
    they agree or not, over that of independent draws: the smallest of many estimates is low. One
    slow param among many is not seen like this, but the share of draws that is effective is at
    least ``least`` where the target is met.
    """
    together, alone = _smallest_sizes(window)
    of_together, of_alone = _smallest_sizes_if_independent(*window.shape[1:])
    of_target = together / math.prod(window.shape[1:3]) * TARGET_EFFICIENCY / max(least, 1e-9)
    return np.minimum(together / of_together, of_target), alone / of_alone


@functools.cache
def _smallest_sizes_if_independent(num_chains: int, num_draws: int, size: int) -> list[float]:
    num_sets = max(5, 4000 // (num_chains * size))
    window = np.random.default_rng(0).normal(size=(num_sets, num_chains, num_draws, size))
    return [float(np.mean(sizes)) for sizes in _smallest_sizes(window)]


def _smallest_sizes(window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over params, of draws ``[set, chain, draw, d]``: of all chains together, and the mean of
    chains alone, where one that mostly stood still has none.
    """
    together = np.min(bulk_ess(np.moveaxis(window, 0, -2)), axis=-1)
    of_chains = bulk_ess(np.moveaxis(window, 2, 0)[None])  # each its own scalar
    has_moved = np.mean(np.diff(window, axis=2) != 0, axis=2) > 0.5
    of_chains = np.where(has_moved, of_chains, 0.0)
    return together, np.min(np.mean(of_chains, axis=1), axis=-1)


def _before(free: np.ndarray, limits: Limits) -> float:
    """The efficiency of the window before the last; without one, moves were never tried."""
    if free.shape[2] < 2 * WINDOW_DRAWS:
        return np.inf
    window = finite(free[:, :, -2 * WINDOW_DRAWS : -WINDOW_DRAWS])
    together, _ = _efficiencies(window, limits.min_efficiency)
    return float(np.quantile(together, SHARE_LEFT))


def learn_shape(free: np.ndarray, *, otherwise: Shape | None = None) -> Shape:
    """Mean and covariance of unconstrained draws ``[set, draw, d]``.

    Correlations are shrunk by ``d / (n + d)``, which keeps the factor regular for few draws.
    ``otherwise`` serves the data sets whose draws did not move in every direction.
    """
    num_draws, size = free.shape[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        location = np.mean(free, axis=1)
        spread = np.std(free, axis=1, ddof=1)
        is_regular = np.all(np.isfinite(spread) & (spread > 0), axis=1)[:, None]
        scaled = (free - location[:, None]) / spread[:, None]
    scaled = np.where(is_regular[..., None], scaled, 0.0)
    weight = size / (num_draws + size)
    correlation = np.einsum("snd,sne->sde", scaled, scaled) / (num_draws - 1)
    factor = np.linalg.cholesky((1 - weight) * correlation + weight * np.eye(size))
    learned = Shape(location, spread[..., None] * factor)
    if otherwise is None:
        return learned
    return Shape(
        np.where(is_regular, learned.location, otherwise.location),
        np.where(is_regular[..., None], learned.cholesky, otherwise.cholesky),
    )
