"""Chains from a release: start, warm up, draw. One compiled loop serves all of it.

Every chain starts from its own draw of the prior. Warm-up runs in windows of kept draws. After
each window the shape of the interweaving move is learned from the later half of all windows,
over all chains, and if the window's smallest effective size is below ``TARGET_EFFICIENCY`` of
its draws, the number of sweeps between draws doubles. Warm-up ends at the first window that is
efficient enough; then shape and sweeps are frozen, so that the draws kept come from one
invariant kernel.
"""

import concurrent.futures
import functools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware.draws import bulk_ess
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.running import Progress
from noiseaware.samplers import interweaving, record_augmentation
from noiseaware.samplers.interweaving import Shape
from noiseaware.samplers.proposals import Proposal
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.statistics import Statistic

CHUNK_DRAWS = 25
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
def _start(key: PRNGKeyArray, model: Model, num_records: int, num_chains: int):
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
    sweeps_per_draw: np.ndarray,
    *,
    problem: Problem,
    kernel: str,
    num_draws: int,
) -> tuple[RecordAugmentationState, Draw]:
    """``num_draws`` kept draws of some chains: the one loop that warm-up and sampling share."""
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

    def draw(state, key):
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
        return jax.lax.scan(draw, state, jr.split(key, num_draws))

    return jax.vmap(chain)(keys, states)


class _Chains:
    """The chains' states, in groups of equal size that run side by side, one thread a core.

    What a chain draws depends on its own key alone, not on how chains are grouped.
    """

    def __init__(self, chunk: Callable, states: RecordAugmentationState, num_chains: int):
        self._chunk, self._num_chains = chunk, num_chains
        is_cpu = jax.default_backend() == "cpu"
        cores = (os.cpu_count() or 1) if is_cpu else 1
        num_groups = max(k for k in range(1, num_chains + 1) if num_chains % k == 0 and k <= cores)
        size = num_chains // num_groups
        self._slices = [slice(start, start + size) for start in range(0, num_chains, size)]
        self._groups = [jax.tree.map(lambda x, part=part: x[part], states) for part in self._slices]
        self._is_compiled = False

    def advance(self, key: PRNGKeyArray, shape: Shape, sweeps_per_draw: int) -> Draw:
        """One chunk of every chain."""
        keys = jr.split(key, self._num_chains)

        def advance_group(index: int):
            with jax.enable_x64(True):  # a thread's own setting
                states, drawn = self._chunk(
                    keys[self._slices[index]],
                    self._groups[index],
                    shape,
                    np.asarray(sweeps_per_draw),
                )
                self._groups[index] = states
                return jax.tree.map(np.asarray, drawn)

        indices = range(len(self._slices))
        if self._is_compiled:
            with concurrent.futures.ThreadPoolExecutor(len(indices)) as pool:
                drawn = list(pool.map(advance_group, indices))
        else:  # one after the other, so that only one of them compiles
            drawn = [advance_group(index) for index in indices]
            self._is_compiled = True
        return jax.tree.map(lambda *parts: np.concatenate(parts), *drawn)

    def records(self) -> dict[str, np.ndarray]:
        columns = [group.records for group in self._groups]
        return jax.tree.map(lambda *parts: np.concatenate([np.asarray(x) for x in parts]), *columns)


class Run(NamedTuple):
    """All that ``fit`` reports; arrays lead with (chain, draw)."""

    draws: Draw
    prior: Params
    records: dict[str, np.ndarray] | None
    warm_up_sweeps: int
    sweeps_per_draw: int
    warm_up_seconds: float
    sampling_seconds: float


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
) -> Run:
    key_start, key_warm_up, key_draws = jr.split(key, 3)
    # Imputed records are taken at the ends of chunks, so a chunk must not span two of them.
    chunk_draws = min(CHUNK_DRAWS, num_draws // keep_records) if keep_records else CHUNK_DRAWS
    chunk = functools.partial(run_chunk, problem=problem, kernel=kernel, num_draws=chunk_draws)
    begin = time.perf_counter()
    bar.say("compiling")
    prior, states, shape = _start(key_start, problem.model, num_records, num_chains)
    chains = _Chains(chunk, states, num_chains)
    warm = _warm_up(key_warm_up, chains, shape, chunk_draws, sweeps_per_draw, bar)
    warmed_up = time.perf_counter()
    bar.say(f"drawing, {warm.sweeps_per_draw} sweeps a draw")
    bar.expect(num_draws)
    draws, records = _draw(key_draws, chains, warm, chunk_draws, num_draws, keep_records, bar)
    return Run(
        draws,
        prior,
        records,
        warm.num_sweeps,
        warm.sweeps_per_draw,
        warmed_up - begin,
        time.perf_counter() - warmed_up,
    )


class _WarmUp(NamedTuple):
    shape: Shape
    sweeps_per_draw: int
    num_sweeps: int


def _warm_up(key, chains: _Chains, shape, chunk_draws, fixed_sweeps, bar: Progress) -> _WarmUp:
    """Learn the shape of the move, and how many sweeps make draws nearly independent."""
    sweeps, num_sweeps = fixed_sweeps or 1, 0
    windows: list[np.ndarray] = []
    for window in range(MAX_WINDOWS):
        key_window = jr.fold_in(key, window)
        free = []
        for index in range(-(-WINDOW_DRAWS // chunk_draws)):
            free.append(chains.advance(jr.fold_in(key_window, index), shape, sweeps).free)
            bar.say(f"warming up, window {window + 1}, {sweeps} sweeps a draw")
            bar.advance(chunk_draws)
        windows.append(np.concatenate(free, axis=1))
        num_sweeps += sweeps * windows[-1].shape[1]
        shape = _learned(np.concatenate(windows[len(windows) // 2 :]), otherwise=shape)
        finite = np.clip(windows[-1], -1e300, 1e300)
        efficiency = float(np.min(bulk_ess(finite))) / windows[-1][..., 0].size
        is_efficient = efficiency >= TARGET_EFFICIENCY
        if window + 1 >= MIN_WINDOWS and (is_efficient or fixed_sweeps):
            break
        if not is_efficient and not fixed_sweeps:
            sweeps = min(2 * sweeps, MAX_SWEEPS_PER_DRAW)
    if is_efficient and not fixed_sweeps:
        sweeps = int(np.ceil(sweeps * TARGET_EFFICIENCY / efficiency))
    return _WarmUp(shape, sweeps, num_sweeps)


def _learned(free_draws: np.ndarray, *, otherwise: Shape) -> Shape:
    """The shape of these draws, unless they did not move in every direction."""
    pooled = free_draws.reshape(-1, free_draws.shape[-1])
    shape = interweaving.learn_shape(jnp.asarray(pooled))
    is_regular = all(bool(jnp.all(jnp.isfinite(part))) for part in shape)
    return shape if is_regular else otherwise


def _draw(key, chains: _Chains, warm: _WarmUp, chunk_draws, num_draws, keep_records, bar):
    collected, snapshots = [], []
    num_chunks = -(-num_draws // chunk_draws)
    snapshot_after = set(np.linspace(num_chunks, 0, keep_records, endpoint=False).astype(int))
    for index in range(num_chunks):
        collected.append(chains.advance(jr.fold_in(key, index), warm.shape, warm.sweeps_per_draw))
        if index + 1 in snapshot_after:
            snapshots.append(chains.records())
        bar.advance(chunk_draws)
    draws = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1)[:, :num_draws], *collected)
    if not snapshots:
        return draws, None
    return draws, jax.tree.map(lambda *columns: np.stack(columns, axis=1), *snapshots)
