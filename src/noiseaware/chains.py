"""Chains from a release: start, warm up, draw. One compiled loop serves all of it.

Every chain starts from its own draw of the prior. Warm-up runs in windows of draws. After each
window the shape of the interweaving move is learned from the later half of all windows, over
all chains, and if the window's smallest effective size is below ``TARGET_EFFICIENCY`` of its
draws, the number of sweeps between draws doubles. Warm-up ends at the first window that is
efficient enough; then shape and sweeps are frozen, so that the draws kept come from one
invariant kernel.

Draw number i of a chain takes its random numbers from the chain's key and i alone. So chunks may
be of any length, and a run that goes on from a checkpoint gives the draws it would have given.
"""

import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from noiseaware.draws import bulk_ess
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.running import Checkpoint, Progress, num_cores
from noiseaware.samplers import interweaving, record_augmentation
from noiseaware.samplers.interweaving import Shape
from noiseaware.samplers.proposals import Proposal
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.statistics import Statistic

CHUNK_DRAWS = 500  # room for so many draws a call
CHUNK_SECONDS = 0.5  # what a call should take: the bar moves, and Ctrl-C is heard
NUM_PRIOR_DRAWS = 4000
WINDOW_DRAWS = 50
MIN_WINDOWS, MAX_WINDOWS = 4, 20
TARGET_EFFICIENCY = 0.5
MAX_SWEEPS_PER_DRAW = 10_000


class Problem(eqx.Module):
    """All that the compiled loop reads; its numbers are traced, so they never recompile."""

    model: Model
    statistic: Statistic
    mechanism: Mechanism
    released: np.ndarray
    proposal: Proposal


class Draw(NamedTuple):
    """What one kept draw records."""

    params: Params
    free: Float[Array, " d"]
    replicated: Float[Array, " m"]
    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]


@eqx.filter_jit
def start(key: PRNGKeyArray, model: Model, num_records: int, num_chains: int):
    """Draws of the prior, a state a chain from the first of them, and the prior's shape."""
    key_prior, key_states = jr.split(key)
    num_draws = max(NUM_PRIOR_DRAWS, num_chains)
    prior = jax.vmap(model.sample_prior)(jr.split(key_prior, num_draws))
    free = jax.vmap(lambda params: unconstrain(model.supports, params)[0])(prior)
    init = functools.partial(record_augmentation.init, model=model, num_records=num_records)
    first_params = jax.tree.map(lambda draws: draws[:num_chains], prior)
    states = jax.vmap(init)(jr.split(key_states, num_chains), first_params)
    # Under a vague prior some draws round to the edge of the support: infinite when unconstrained.
    is_finite = jnp.all(jnp.isfinite(free), axis=1)
    first = jnp.argsort(~is_finite)  # the finite draws, then repeated in place of the others
    finite = free[first[jnp.arange(len(free)) % jnp.maximum(jnp.sum(is_finite), 1)]]
    return prior, states, interweaving.learn_shape(finite)


@eqx.filter_jit
def run_chunk(
    keys: PRNGKeyArray,
    states: RecordAugmentationState,
    shape: Shape,
    sweeps_per_draw: Int[np.ndarray, ""],
    first: Int[np.ndarray, ""],
    count: Int[np.ndarray, ""],
    *,
    problem: Problem,
    kernel: str,
    capacity: int = CHUNK_DRAWS,
) -> tuple[RecordAugmentationState, Draw]:
    """Draws ``first`` to ``first + count`` of some chains, in room for ``capacity``."""
    model, statistic = problem.model, problem.statistic
    bound: dict[str, Any] = {
        "model": model,
        "contribution": statistic,
        "log_density": functools.partial(problem.mechanism.log_density, problem.released),
        "proposal": problem.proposal,
    }
    step: Callable = functools.partial(record_augmentation.step, **bound)
    if kernel == "interweaving":
        step = functools.partial(interweaving.step, shape=shape, **bound)

    def sweep(index, carry):
        key, state, sum_of_rates, min_log_ratio, _ = carry
        state, info = step(jr.fold_in(key, index), state)
        min_log_ratio = jnp.minimum(min_log_ratio, info.min_log_ratio)
        return key, state, sum_of_rates + info.acceptance_rate, min_log_ratio, info.log_density

    def draw(key, state):
        key_sweeps, key_records, key_noise = jr.split(key, 3)
        carry = (key_sweeps, state, *[jnp.zeros(())] * 3)
        _, state, sum_of_rates, min_log_ratio, log_density = jax.lax.fori_loop(
            0, sweeps_per_draw, sweep, carry
        )
        num_records = len(next(iter(state.records.values())))
        fresh = model.sample_records(key_records, state.params, num_records)
        replicated = problem.mechanism.simulate(
            key_noise, jnp.sum(jax.vmap(statistic)(fresh), axis=0)
        )
        free, _ = unconstrain(model.supports, state.params)
        rate = sum_of_rates / sweeps_per_draw
        return state, Draw(state.params, free, replicated, rate, min_log_ratio, log_density)

    def chain(key, state):
        def fill(index, carry):
            state, room = carry
            state, drawn = draw(jr.fold_in(key, first + index), state)
            return state, jax.tree.map(lambda all, one: all.at[index].set(one), room, drawn)

        one = jax.eval_shape(draw, key, state)[1]
        room = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
        return jax.lax.fori_loop(0, count, fill, (state, room))

    return jax.vmap(chain)(keys, states)


class _Chains:
    """The chains' states, in groups of equal size that run side by side, one thread a core.

    What a chain draws depends on its own key alone, not on how chains are grouped.
    """

    def __init__(self, chunk: Callable, keys: PRNGKeyArray, states: RecordAugmentationState):
        self._chunk = chunk
        num_chains = len(keys)
        cores = num_cores() if jax.default_backend() == "cpu" else 1
        num_groups = max(k for k in range(1, num_chains + 1) if num_chains % k == 0 and k <= cores)
        self._size = num_chains // num_groups
        self._keys = keys.reshape(num_groups, self._size)
        self.states = states
        self._pool = concurrent.futures.ThreadPoolExecutor(num_groups)
        self._num_calls = 0
        self._seconds_per_sweep = np.inf

    @property
    def states(self) -> RecordAugmentationState:
        return jax.tree.map(lambda *parts: np.concatenate(parts), *self._groups)

    @states.setter
    def states(self, states: RecordAugmentationState) -> None:
        self._groups = [
            jax.tree.map(lambda x, at=at: x[at : at + self._size], states)
            for at in range(0, self._keys.size, self._size)
        ]

    def advance(self, first: int, limit: int, shape: Shape, sweeps_per_draw: int) -> Draw:
        """At least one draw of every chain, and at most ``limit``: as many as are quick."""
        affordable = CHUNK_SECONDS / (self._seconds_per_sweep * sweeps_per_draw)
        count = int(np.clip(affordable, 1, min(limit, CHUNK_DRAWS)))

        def advance_group(keys, states):
            with jax.enable_x64(True):  # a thread's own setting
                numbers = (np.asarray(number) for number in (sweeps_per_draw, first, count))
                states, drawn = self._chunk(keys, states, shape, *numbers)
                return states, jax.tree.map(lambda x: np.asarray(x)[:, :count], drawn)

        begin = time.perf_counter()
        # The first call compiles: one group after the other, so that only one of them does.
        in_order = map if self._num_calls == 0 else self._pool.map
        done = list(in_order(advance_group, self._keys, self._groups))
        if self._num_calls > 0:
            self._seconds_per_sweep = (time.perf_counter() - begin) / (count * sweeps_per_draw)
        self._num_calls += 1
        self._groups = [states for states, _ in done]  # all of them or, if interrupted, none
        return jax.tree.map(lambda *parts: np.concatenate(parts), *[drawn for _, drawn in done])


class Run(NamedTuple):
    """All that ``fit`` reports; arrays lead with (chain, draw)."""

    draws: Draw
    prior: Params
    records: dict[str, np.ndarray] | None
    warm_up_sweeps: int
    sweeps_per_draw: int
    warm_up_seconds: float
    sampling_seconds: float
    is_complete: bool


@dataclasses.dataclass
class _Journey:
    """How far a run has come: with the chains' states, all that a checkpoint must hold.

    Draws are numbered through warm-up and sampling. ``warm`` has the unconstrained draws of
    warm-up, ``kept`` the draws since, ``snapshots`` the records at some of those.
    """

    shape: Shape
    sweeps_per_draw: int
    is_warm: bool = False
    warm_up_sweeps: int = 0
    warm_up_seconds: float = 0.0
    sampling_seconds: float = 0.0
    warm: list[np.ndarray] = dataclasses.field(default_factory=list)
    kept: list[Draw] = dataclasses.field(default_factory=list)
    snapshots: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)

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
    prior, states, shape = start(key_start, problem.model, num_records, num_chains)
    journey = _Journey(shape, sweeps_per_draw or 1)
    if (saved := checkpoint.load()) is not None:
        states, journey = _from_tree(saved)
    chunk = functools.partial(run_chunk, problem=problem, kernel=kernel)
    chains = _Chains(chunk, jr.split(key_chains, num_chains), states)
    while not journey.is_warm:
        _warm_up(journey, chains, is_fixed=sweeps_per_draw is not None, bar=bar)
        journey.warm_up_seconds += time.perf_counter() - begin
        begin = time.perf_counter()
        checkpoint.save(lambda: _as_tree(chains.states, journey))
    bar.say(f"drawing, {journey.sweeps_per_draw} sweeps a draw")
    bar.expect(num_draws, journey.num_kept)
    try:
        while journey.num_kept < num_draws:
            _draw(journey, chains, num_draws, keep_records, bar=bar)
            journey.sampling_seconds += time.perf_counter() - begin
            begin = time.perf_counter()
            checkpoint.save(lambda: _as_tree(chains.states, journey))
    except KeyboardInterrupt:
        if not journey.kept:
            raise
    checkpoint.save(lambda: _as_tree(chains.states, journey), is_last=True)
    return Run(
        journey.kept_draws(),
        prior,
        journey.kept_records(),
        journey.warm_up_sweeps,
        journey.sweeps_per_draw,
        journey.warm_up_seconds,
        journey.sampling_seconds,
        is_complete=journey.num_kept == num_draws,
    )


def _warm_up(journey: _Journey, chains: _Chains, *, is_fixed: bool, bar: Progress) -> None:
    """A few more draws and, where they fill a window, what it teaches."""
    window, done = divmod(journey.num_warm, WINDOW_DRAWS)
    sweeps = journey.sweeps_per_draw
    drawn = chains.advance(journey.num_warm, WINDOW_DRAWS - done, journey.shape, sweeps)
    count = drawn.free.shape[1]
    journey.warm.append(np.asarray(drawn.free))
    journey.warm_up_sweeps += sweeps * count
    bar.say(f"warming up, window {window + 1}, {sweeps} sweeps a draw")
    bar.advance(count)
    if done + count == WINDOW_DRAWS:
        _close_window(journey, window + 1, is_fixed)


def _close_window(journey: _Journey, num_windows: int, is_fixed: bool) -> None:
    """Learn the shape of the move, and how many sweeps make draws nearly independent."""
    warm = np.concatenate(journey.warm, axis=1)
    later_half = warm[:, num_windows // 2 * WINDOW_DRAWS :]
    journey.shape = _learned(later_half, otherwise=journey.shape)
    finite = np.clip(warm[:, -WINDOW_DRAWS:], -1e300, 1e300)
    efficiency = float(np.min(bulk_ess(finite))) / finite[..., 0].size
    is_efficient = efficiency >= TARGET_EFFICIENCY
    is_last = num_windows == MAX_WINDOWS
    journey.is_warm = is_last or (num_windows >= MIN_WINDOWS and (is_efficient or is_fixed))
    if is_fixed:
        return
    sweeps = journey.sweeps_per_draw
    if not is_efficient:
        journey.sweeps_per_draw = min(2 * sweeps, MAX_SWEEPS_PER_DRAW)
    elif journey.is_warm:
        journey.sweeps_per_draw = max(1, round(sweeps * TARGET_EFFICIENCY / efficiency))


def _learned(free_draws: np.ndarray, *, otherwise: Shape) -> Shape:
    """The shape of these draws, unless they did not move in every direction."""
    pooled = free_draws.reshape(-1, free_draws.shape[-1])
    shape = interweaving.learn_shape(jnp.asarray(pooled))
    is_regular = all(bool(jnp.all(jnp.isfinite(part))) for part in shape)
    return shape if is_regular else otherwise


def _draw(
    journey: _Journey, chains: _Chains, num_draws: int, keep_records: int, *, bar: Progress
) -> None:
    """A few more draws, up to the next at which the records are kept too."""
    snapshot_at = np.linspace(num_draws, 0, keep_records, endpoint=False).astype(int)
    done = journey.num_kept
    end = min([num_draws, *snapshot_at[snapshot_at > done]])
    first = journey.num_warm + done
    drawn = chains.advance(first, end - done, journey.shape, journey.sweeps_per_draw)
    journey.kept.append(drawn)
    if journey.num_kept in snapshot_at:
        journey.snapshots.append(chains.states.records)
    bar.advance(drawn.free.shape[1])


_NUMBERS = ("sweeps_per_draw", "is_warm", "warm_up_sweeps", "warm_up_seconds", "sampling_seconds")


def _as_tree(states: RecordAugmentationState, journey: _Journey) -> dict[str, Any]:
    """Nested dicts of arrays and numbers, for a checkpoint."""
    tree: dict[str, Any] = {name: getattr(journey, name) for name in _NUMBERS}
    tree |= {"states": states._asdict(), "shape": journey.shape._asdict()}
    tree["warm"] = np.concatenate(journey.warm, axis=1)
    if journey.kept:
        tree["kept"] = journey.kept_draws()._asdict()
    if journey.snapshots:
        tree["snapshots"] = journey.kept_records()
    return tree


def _from_tree(tree: dict[str, Any]) -> tuple[RecordAugmentationState, _Journey]:
    journey = _Journey(Shape(**tree["shape"]), **{name: tree[name] for name in _NUMBERS})
    journey.warm = [tree["warm"]]
    if "kept" in tree:
        journey.kept = [Draw(**tree["kept"])]
    columns = tree.get("snapshots", {})
    for index in range(next(iter(columns.values())).shape[1] if columns else 0):
        journey.snapshots.append({name: column[:, index] for name, column in columns.items()})
    return RecordAugmentationState(**tree["states"]), journey
