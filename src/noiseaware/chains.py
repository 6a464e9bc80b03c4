"""Chains from a release: start, warm up, draw. One compiled loop serves all of it.

Every chain starts from its own draw of the prior. Warm-up runs in windows of draws. After each
window the shape of the interweaving move is learned from the later half of all draws, over all
chains, and how many records stand for all in it from how often it is accepted. If the window's
smallest effective size is below ``TARGET_EFFICIENCY`` of its draws, the number of sweeps between
draws doubles. If it is not, and the moves were a small part of what made the draws differ, a
window is tried without them; they come back if that one is inefficient. Warm-up ends at an
efficient window; then all of this is frozen, so that the draws kept come from one invariant kernel.

Draw number i of a chain takes its random numbers from the chain's key and i alone. So chunks may
be of any length, and a run that goes on from a checkpoint gives the draws it would have given.
"""

import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from noiseaware.convergence import bulk_ess
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.running import Checkpoint, Progress, num_cores
from noiseaware.samplers import interweaving, record_augmentation
from noiseaware.samplers.interweaving import Shape
from noiseaware.samplers.layout import Layout, split
from noiseaware.samplers.layout import choose as choose_layout
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.statistics import Statistic

CHUNK_DRAWS = 500  # room for so many draws a call
CHUNK_SECONDS = 0.5  # what a call should take: the bar moves, and Ctrl-C is heard
NUM_PRIOR_DRAWS = 4000
NUM_CANDIDATES, RECORDS_A_CANDIDATE = 1000, 32
WINDOW_DRAWS = 50
MIN_WINDOWS, MAX_WINDOWS = 4, 20
TARGET_EFFICIENCY = 0.5
LOW_MOVE_RATE, HIGH_MOVE_RATE = 0.5, 0.8
FIRST_STAND_INS = 64  # segments
MIN_MOVE_SIZE = 0.1  # of all moves between two draws, in squared units of the shape
MAX_SWEEPS_PER_DRAW = 10_000


class Problem(eqx.Module):
    """All that the compiled loop reads; its numbers are traced, so they never recompile."""

    model: Model
    statistic: Statistic
    mechanism: Mechanism
    released: np.ndarray
    proposal: Proposal


class Tuning(NamedTuple):
    """What warm-up learns, then frozen."""

    shape: Shape
    sweeps_per_draw: Any
    num_stand_ins: Any
    is_moving: Any = True


Groups = tuple[RecordAugmentationState, ...]


class Draw(NamedTuple):
    """What one kept draw records."""

    params: Params
    free: Float[Array, " d"]
    replicated: Float[Array, " m"]
    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]
    move_rate: Float[Array, ""]
    move_size: Float[Array, ""]


class Start(NamedTuple):
    """Draws of the prior, a state a chain from the first of them, and what they say of scales."""

    prior: Params
    states: RecordAugmentationState
    shape: Shape
    swap_variance: Float[Array, ""]


@eqx.filter_jit
def start(key: PRNGKeyArray, problem: Problem, num_records: int, num_chains: int) -> Start:
    model = problem.model
    key_prior, key_states, key_swaps = jr.split(key, 3)
    num_draws = max(NUM_PRIOR_DRAWS, num_chains)
    prior = jax.vmap(model.sample_prior)(jr.split(key_prior, num_draws))
    free = jax.vmap(lambda params: unconstrain(model.supports, params)[0])(prior)
    init = functools.partial(record_augmentation.init, model=model, num_records=num_records)
    # Under a vague prior some draws round to the edge of the support: infinite when unconstrained.
    is_finite = jnp.all(jnp.isfinite(free), axis=1)
    order = jnp.argsort(~is_finite)  # the finite draws, then repeated in place of the others
    order = order[jnp.arange(num_draws) % jnp.maximum(jnp.sum(is_finite), 1)]
    first_params = jax.tree.map(lambda draws: draws[order[:num_chains]], prior)
    states = jax.vmap(init)(jr.split(key_states, num_chains), first_params)
    variance = swap_variance(key_swaps, problem, prior, num_records)
    return Start(prior, states, interweaving.learn_shape(free[order]), variance)


def swap_variance(key: PRNGKeyArray, problem: Problem, prior: Params, num_records: int):
    """The variance of a swap's change of T in units of the noise, summed over coordinates.

    At those of some prior draws that explain the release best: records of a vague prior vary
    more than those behind the release.
    """
    candidates = jax.tree.map(lambda draws: draws[:NUM_CANDIDATES], prior)

    def look(key, params):
        records = problem.model.sample_records(key, params, RECORDS_A_CANDIDATE)
        contributions = jax.vmap(problem.statistic)(records)
        expected = num_records * jnp.mean(contributions, axis=0)
        variances = 2 * jnp.var(contributions, axis=0, ddof=1) / problem.mechanism.spread() ** 2
        fit = -jnp.sum(jnp.abs(problem.released - expected) / problem.mechanism.spread())
        return fit, jnp.sum(variances)

    fits, variances = jax.vmap(look)(jr.split(key, NUM_CANDIDATES), candidates)
    _, best = jax.lax.top_k(jnp.nan_to_num(fits, nan=-jnp.inf), NUM_CANDIDATES // 50)
    return jnp.mean(variances[best])


@eqx.filter_jit
def run_chunk(
    keys: PRNGKeyArray,
    states: RecordAugmentationState,
    tuning: Tuning,
    first: Int[np.ndarray, ""],
    count: Int[np.ndarray, ""],
    *,
    problem: Problem,
    kernel: str,
    layout: Layout = Layout(),
    capacity: int = CHUNK_DRAWS,
) -> tuple[RecordAugmentationState, Draw]:
    """Draws ``first`` to ``first + count`` of some chains, in room for ``capacity``."""
    model, statistic = problem.model, problem.statistic
    bound: dict[str, Any] = {
        "model": model,
        "contribution": statistic,
        "log_density": functools.partial(problem.mechanism.log_density, problem.released),
        "proposal": problem.proposal,
        "layout": layout,
    }
    step: Callable = functools.partial(record_augmentation.step, **bound)
    if kernel == "interweaving":
        step = functools.partial(
            interweaving.step,
            shape=tuning.shape,
            num_stand_ins=tuning.num_stand_ins,
            is_moving=tuning.is_moving,
            **bound,
        )

    def sweep(index, carry):
        key, state, sums, min_log_ratio, _ = carry
        state, info = step(jr.fold_in(key, index), state)
        moves = [getattr(info, name, jnp.zeros(())) for name in ("move_rate", "move_size")]
        sums += jnp.stack([info.acceptance_rate, *moves])
        return key, state, sums, jnp.minimum(min_log_ratio, info.min_log_ratio), info.log_density

    def draw(key, state):
        key_sweeps, key_records, key_noise = jr.split(key, 3)
        carry = (key_sweeps, state, jnp.zeros(3), jnp.zeros(()), jnp.zeros(()))
        _, state, sums, min_log_ratio, log_density = jax.lax.fori_loop(
            0, tuning.sweeps_per_draw, sweep, carry
        )
        replicated = problem.mechanism.simulate(
            key_noise, _total_of_fresh(key_records, problem, state, layout.segment_size)
        )
        free, _ = unconstrain(model.supports, state.params)
        rate, *moves = sums / tuning.sweeps_per_draw
        return state, Draw(state.params, free, replicated, rate, min_log_ratio, log_density, *moves)

    def chain(key, state):
        def fill(index, carry):
            state, room = carry
            state, drawn = draw(jr.fold_in(key, first + index), state)
            return state, jax.tree.map(lambda all, one: all.at[index].set(one), room, drawn)

        one = jax.eval_shape(draw, key, state)[1]
        room = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
        return jax.lax.fori_loop(0, count, fill, (state, room))

    return jax.vmap(chain)(keys, states)


def _total_of_fresh(key, problem: Problem, state: RecordAugmentationState, segment_size: int):
    """T of as many new records at the state's params."""
    num_records, num_segments, size = split(state.records, segment_size)

    def total(key, num_records):
        fresh = problem.model.sample_records(key, state.params, num_records)
        return jnp.sum(jax.vmap(problem.statistic)(fresh), axis=0)

    rest = total(jr.fold_in(key, 0), num_records - (num_segments - 1) * size)
    if num_segments == 1:
        return rest
    return jax.lax.fori_loop(
        1, num_segments, lambda index, sum: sum + total(jr.fold_in(key, index), size), rest
    )


class _Chains:
    """Runs groups of chains of equal size side by side, one thread a core.

    What a chain draws depends on its own key; how chains are grouped only changes rounding.
    """

    def __init__(self, chunk: Callable, keys: PRNGKeyArray):
        self._chunk = chunk
        num_chains = len(keys)
        cores = num_cores() if jax.default_backend() == "cpu" else 1
        num_groups = max(k for k in range(1, num_chains + 1) if num_chains % k == 0 and k <= cores)
        self._keys = keys.reshape(num_groups, num_chains // num_groups)
        self._pool = concurrent.futures.ThreadPoolExecutor(num_groups)
        self._num_calls = 0
        self._seconds_per_sweep = np.inf

    def groups_of(self, states: RecordAugmentationState) -> Groups:
        size = self._keys.shape[1]
        return tuple(
            jax.tree.map(lambda x, at=at: x[at : at + size], states)
            for at in range(0, self._keys.size, size)
        )

    def advance(
        self, groups: Groups, first: int, limit: int, tuning: Tuning
    ) -> tuple[Groups, Draw]:
        """At least one draw of every chain, and at most ``limit``: as many as are quick."""
        affordable = CHUNK_SECONDS / (self._seconds_per_sweep * tuning.sweeps_per_draw)
        count = int(np.clip(affordable, 1, min(limit, CHUNK_DRAWS)))

        def advance_group(keys, states):
            with jax.enable_x64(True):  # a thread's own setting
                traced = Tuning(tuning.shape, *map(np.asarray, tuning[1:]))
                states, drawn = self._chunk(keys, states, traced, *map(np.asarray, (first, count)))
                return states, jax.tree.map(lambda x: np.asarray(x)[:, :count], drawn)

        begin = time.perf_counter()
        # The first call compiles: one group after the other, so that only one of them does.
        in_order = map if self._num_calls == 0 else self._pool.map
        done = list(in_order(advance_group, self._keys, groups))
        if self._num_calls > 0:
            elapsed = time.perf_counter() - begin
            self._seconds_per_sweep = elapsed / (count * tuning.sweeps_per_draw)
        self._num_calls += 1
        return tuple(states for states, _ in done), _joined([drawn for _, drawn in done])


def _joined(groups: Sequence) -> Any:
    return jax.tree.map(lambda *parts: np.concatenate(parts), *groups)


class Run(NamedTuple):
    """All that ``fit`` reports; arrays lead with (chain, draw)."""

    draws: Draw
    prior: Params
    records: dict[str, np.ndarray] | None
    warm_up_sweeps: int
    tuning: Tuning
    layout: Layout
    warm_up_seconds: float
    sampling_seconds: float
    is_complete: bool


@dataclasses.dataclass(frozen=True)
class _Journey:
    """How far a run has come: all that a checkpoint must hold. Each chunk makes a new one, so that
    an interrupt finds the old or the new, never a mixture.

    Draws are numbered through warm-up and sampling. ``warm`` has the unconstrained draws of
    warm-up, ``moves`` how often and how far params moved, ``kept`` the draws since, ``snapshots``
    the records at some of those.
    """

    groups: Groups
    tuning: Tuning
    is_warm: bool = False
    was_idle: bool = False
    warm_up_sweeps: int = 0
    warm_up_seconds: float = 0.0
    sampling_seconds: float = 0.0
    warm: tuple[np.ndarray, ...] = ()
    moves: tuple[np.ndarray, ...] = ()
    kept: tuple[Draw, ...] = ()
    snapshots: tuple[dict[str, np.ndarray], ...] = ()

    @property
    def num_warm(self) -> int:
        return sum(part.shape[1] for part in self.warm)

    @property
    def num_kept(self) -> int:
        return sum(part.free.shape[1] for part in self.kept)

    def kept_draws(self) -> Draw:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *self.kept)

    def kept_records(self) -> dict[str, np.ndarray] | None:
        if not self.snapshots:
            return None
        return jax.tree.map(lambda *columns: np.stack(columns, axis=1), *self.snapshots)


def run_chains(
    key: PRNGKeyArray,
    problem: Problem,
    *,
    kernel: str,
    num_records: int,
    num_chains: int,
    num_draws: int,
    sweeps_per_draw: int | None,
    keep_records: int,
    bar: Progress,
    checkpoint: Checkpoint,
) -> Run:
    """All the draws or, after Ctrl-C, those kept until then."""
    key_start, key_chains = jr.split(key)
    begin = time.perf_counter()
    bar.say("compiling")
    prior, states, shape, swap_variance = start(key_start, problem, num_records, num_chains)
    # Only of fresh records is it known how a block's acceptance falls with its size.
    variance = float(swap_variance) if problem.proposal is from_model else np.nan
    is_gpu = jax.default_backend() != "cpu"
    layout = choose_layout(is_gpu, num_records, num_chains, variance)
    chunk = functools.partial(run_chunk, problem=problem, kernel=kernel, layout=layout)
    chains = _Chains(chunk, jr.split(key_chains, num_chains))
    all_stand_in = -(-num_records // layout.stand_in_size)
    tuning = Tuning(shape, sweeps_per_draw or 1, min(all_stand_in, FIRST_STAND_INS))
    seconds = time.perf_counter() - begin
    journey = _Journey(chains.groups_of(states), tuning, warm_up_seconds=seconds)
    if (saved := checkpoint.load()) is not None:
        journey = _from_tree(saved, chains)
    while not journey.is_warm:
        journey = _warm_up(journey, chains, all_stand_in, sweeps_per_draw is not None, bar)
        checkpoint.save(functools.partial(_as_tree, journey))
    bar.say(f"drawing, {journey.tuning.sweeps_per_draw} sweeps a draw")
    bar.expect(num_draws, journey.num_kept)
    try:
        while journey.num_kept < num_draws:
            journey = _draw(journey, chains, num_draws, keep_records, bar)
            checkpoint.save(functools.partial(_as_tree, journey))
    except KeyboardInterrupt:
        if not journey.kept:
            raise
    checkpoint.save(functools.partial(_as_tree, journey), is_last=True)
    return Run(
        journey.kept_draws(),
        prior,
        journey.kept_records(),
        journey.warm_up_sweeps,
        journey.tuning,
        layout,
        journey.warm_up_seconds,
        journey.sampling_seconds,
        is_complete=journey.num_kept == num_draws,
    )


def _warm_up(
    journey: _Journey, chains: _Chains, all_stand_in: int, is_fixed: bool, bar: Progress
) -> _Journey:
    """A few more draws and, where they fill a window, what it teaches."""
    begin = time.perf_counter()
    window, done = divmod(journey.num_warm, WINDOW_DRAWS)
    sweeps = journey.tuning.sweeps_per_draw
    groups, drawn = chains.advance(
        journey.groups, journey.num_warm, WINDOW_DRAWS - done, journey.tuning
    )
    count = drawn.free.shape[1]
    bar.say(f"warming up, window {window + 1}, {sweeps} sweeps a draw")
    bar.advance(count)
    journey = dataclasses.replace(
        journey,
        groups=groups,
        warm=(*journey.warm, np.asarray(drawn.free)),
        moves=(*journey.moves, np.stack([drawn.move_rate, drawn.move_size], axis=-1)),
        warm_up_sweeps=journey.warm_up_sweeps + sweeps * count,
    )
    if done + count == WINDOW_DRAWS:
        journey = _close_window(journey, window + 1, all_stand_in, is_fixed)
    elapsed = time.perf_counter() - begin
    return dataclasses.replace(journey, warm_up_seconds=journey.warm_up_seconds + elapsed)


def _close_window(
    journey: _Journey, num_windows: int, all_stand_in: int, is_fixed: bool
) -> _Journey:
    """Learn the shape of the move, how many sweeps make draws nearly independent, how many
    records must stand for all, and whether the move does anything.
    """
    shape, sweeps, num_stand_ins, is_moving = journey.tuning
    warm = np.concatenate(journey.warm, axis=1)
    window = np.clip(warm[:, -WINDOW_DRAWS:], -1e300, 1e300)
    efficiency = float(np.min(bulk_ess(window))) / window[..., 0].size
    is_efficient = efficiency >= TARGET_EFFICIENCY
    moves = np.concatenate(journey.moves, axis=1)[:, -WINDOW_DRAWS:]
    move_rate, move_size = np.mean(moves, axis=(0, 1))
    is_last = num_windows == MAX_WINDOWS
    # Nearly independent draws differ by 2 shapes squared, once the shape is that of the draws: the
    # move is idle where it is a small part of that. It gets one trial without, and one more window.
    is_idle = (
        num_windows >= MIN_WINDOWS
        and is_moving
        and is_efficient
        and sweeps * move_size < MIN_MOVE_SIZE
        and not (journey.was_idle or is_last or is_fixed)
    )
    is_settled = (is_efficient and not is_idle) or is_fixed
    is_warm = is_last or (num_windows >= MIN_WINDOWS and is_settled)
    if not is_moving and not is_efficient:
        is_moving = True
    elif not is_efficient and not is_fixed:
        sweeps = min(2 * sweeps, MAX_SWEEPS_PER_DRAW)
    elif is_warm and not is_fixed:
        sweeps = max(1, round(sweeps * TARGET_EFFICIENCY / efficiency))
    if is_moving and move_rate < LOW_MOVE_RATE and num_windows > 1:  # at first the anchor is far
        num_stand_ins = min(4 * num_stand_ins, all_stand_in)
    elif move_rate > HIGH_MOVE_RATE and not is_warm:
        num_stand_ins = max(num_stand_ins // 4, 1)
    shape = _learned(warm[:, warm.shape[1] // 2 :], otherwise=shape)
    return dataclasses.replace(
        journey,
        tuning=Tuning(shape, sweeps, num_stand_ins, is_moving and not is_idle),
        is_warm=is_warm,
        was_idle=journey.was_idle or is_idle,
    )


def _learned(free_draws: np.ndarray, *, otherwise: Shape) -> Shape:
    """The shape of these draws, unless they did not move in every direction."""
    pooled = free_draws.reshape(-1, free_draws.shape[-1])
    shape = interweaving.learn_shape(jnp.asarray(pooled))
    is_regular = all(bool(jnp.all(jnp.isfinite(part))) for part in shape)
    return shape if is_regular else otherwise


def _draw(
    journey: _Journey, chains: _Chains, num_draws: int, keep_records: int, bar: Progress
) -> _Journey:
    """A few more draws, up to the next at which the records are kept too."""
    begin = time.perf_counter()
    snapshot_at = np.linspace(num_draws, 0, keep_records, endpoint=False).astype(int)
    done = journey.num_kept
    end = min([num_draws, *snapshot_at[snapshot_at > done]])
    groups, drawn = chains.advance(
        journey.groups, journey.num_warm + done, end - done, journey.tuning
    )
    count = drawn.free.shape[1]
    snapshots = journey.snapshots
    if done + count in snapshot_at:
        snapshots = (*snapshots, _joined([group.records for group in groups]))
    bar.advance(count)
    return dataclasses.replace(
        journey,
        groups=groups,
        kept=(*journey.kept, drawn),
        snapshots=snapshots,
        sampling_seconds=journey.sampling_seconds + time.perf_counter() - begin,
    )


_NUMBERS = ("is_warm", "was_idle", "warm_up_sweeps", "warm_up_seconds", "sampling_seconds")


def _as_tree(journey: _Journey) -> dict[str, Any]:
    """Nested dicts of arrays and numbers, for a checkpoint."""
    tree: dict[str, Any] = {name: getattr(journey, name) for name in _NUMBERS}
    tree["states"] = _joined(journey.groups)._asdict()
    tree["tuning"] = journey.tuning._asdict() | {"shape": journey.tuning.shape._asdict()}
    tree["moves"] = np.concatenate(journey.moves, axis=1)
    tree["warm"] = np.concatenate(journey.warm, axis=1)
    if journey.kept:
        tree["kept"] = journey.kept_draws()._asdict()
    if journey.snapshots:
        tree["snapshots"] = journey.kept_records()
    return tree


def _from_tree(tree: dict[str, Any], chains: _Chains) -> _Journey:
    columns = tree.get("snapshots", {})
    num_snapshots = next(iter(columns.values())).shape[1] if columns else 0
    return _Journey(
        chains.groups_of(RecordAugmentationState(**tree["states"])),
        Tuning(**tree["tuning"] | {"shape": Shape(**tree["tuning"]["shape"])}),
        **{name: tree[name] for name in _NUMBERS},
        warm=(tree["warm"],),
        moves=(tree["moves"],),
        kept=(Draw(**tree["kept"]),) if "kept" in tree else (),
        snapshots=tuple(
            {name: column[:, index] for name, column in columns.items()}
            for index in range(num_snapshots)
        ),
    )
