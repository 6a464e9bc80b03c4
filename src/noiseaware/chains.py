"""The compiled part of a fit: chains started from a release and a model, and moved along.

Arrays lead with (data set, chain): one compiled program serves one data set and, on an
accelerator, a batch of them side by side. Draw number i of a chain takes its random numbers from
the chain's key and i alone, so it does not matter how a run is cut into calls.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from noiseaware import randomness
from noiseaware.elliptical_slice import Shape
from noiseaware.mechanisms import Mechanism
from noiseaware.models import ExponentialFamily, Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.samplers import interweaving, record_augmentation, statistic_gibbs
from noiseaware.samplers.layout import MIN_RECORDS_FOR_BLOCKS, Layout, split, sum_of, take
from noiseaware.samplers.params_given_records import (
    ParamsKernel,
    UserStep,
    information_of,
    step_of,
)
from noiseaware.samplers.proposals import Proposal
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.schema import Record
from noiseaware.statistics import Statistic

NUM_PRIOR_DRAWS = 4000
CHUNK_DRAWS = 500  # room for so many draws a call
OF_NOISE = 2**32 - 1  # of a chain's key: no draw has this number
NOISES_AT_ONCE = 50
NUM_CANDIDATES, RECORDS_A_CANDIDATE = 1000, 32

State = Any  # RecordAugmentationState, or StatisticGibbsState


class Problem(eqx.Module):
    """All that the compiled loop reads; its numbers are traced, so they never recompile. ``known``
    has the columns that are known of every record; ``num_records`` is there where no array has
    their length.
    """

    model: Model
    statistic: Statistic
    mechanism: Mechanism
    released: np.ndarray
    proposal: Proposal
    known: dict[str, np.ndarray] = eqx.field(default_factory=dict)
    params_step: ParamsKernel | UserStep | None = None
    num_records: np.ndarray | None = None

    @property
    def contribution(self) -> Callable[[Record], Float[Array, " m"]]:
        return self.statistic.given(self.released)

    @property
    def can_replicate(self) -> bool:
        """Whether another release can be drawn, given records."""
        return self.mechanism.can_simulate and not self.statistic.reads_release


def stack(problems: Sequence[Problem]) -> Problem:
    """Problems of one shape as one, its arrays with a leading axis."""
    arrays, rest = zip(*(eqx.partition(problem, eqx.is_array) for problem in problems), strict=True)
    return eqx.combine(jax.tree.map(lambda *leaves: np.stack(leaves), *arrays), rest[0])


class Tuning(NamedTuple):
    """What warm-up learns, then frozen: of each data set a shape and, for a params' step that has
    a size, a factor of the covariance of ``p(params | records)``; the rest in common.
    """

    shape: Shape
    sweeps_per_draw: Any
    num_stand_ins: Any
    is_moving: Any = True
    cholesky: Any = None
    step_size: Any = 1.0


class Draw(NamedTuple):
    """What one kept draw records; ``replicated`` is another release, while a chunk runs still
    without its noise.
    """

    params: Params
    free: Float[Array, " d"]
    replicated: Float[Array, " m"]
    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]
    move_rate: Float[Array, ""]
    move_size: Float[Array, ""]
    params_rate: Float[Array, ""]


class Start(NamedTuple):
    """Draws of the prior, as they are and unconstrained; a state a chain; ``swap_variance``."""

    prior: Params
    free: Float[Array, "draws d"]
    states: State
    swap_variance: Float[Array, ""]


def _over_data_sets(function: Callable, *arrays) -> Any:
    """``function`` of each data set. One alone is not mapped: a batch of one compiles to less."""
    arrays, rest = eqx.partition(arrays, eqx.is_array)

    def call(arrays):
        return function(*eqx.combine(arrays, rest))

    if len(jax.tree.leaves(arrays)[0]) > 1:
        return jax.vmap(call)(arrays)
    result = call(jax.tree.map(lambda x: x[0], arrays))
    return jax.tree.map(lambda x: jnp.asarray(x)[None], result)


@eqx.filter_jit
def start(
    keys: PRNGKeyArray,
    problems: Problem,
    free_params: Float[np.ndarray, "sets chains d"] | None,
    num_records: int,
    num_chains: int,
    kernel: str,
    num_prior_draws: int = NUM_PRIOR_DRAWS,
) -> Start:
    """Every chain from its own draw of the prior or, where given, from these params. Sums, which
    move little given params that do not explain the release, start from draws that do.
    """
    num_prior_draws = max(num_prior_draws, num_chains)

    def one(key: PRNGKeyArray, problem: Problem, free_params) -> Start:
        model = problem.model
        key_prior, key_states, key_swaps = jr.split(key, 3)
        prior = jax.vmap(model.sample_prior)(jr.split(key_prior, num_prior_draws))
        free = jax.vmap(lambda params: unconstrain(model.supports, params)[0])(prior)
        # Under a vague prior some draws round to the edge of the support: infinite when
        # unconstrained. Take the finite ones, and repeat them in place of the others.
        is_finite = jnp.all(jnp.isfinite(free), axis=1)
        order = jnp.argsort(~is_finite)
        order = order[jnp.arange(num_prior_draws) % jnp.maximum(jnp.sum(is_finite), 1)]
        prior_in_order = jax.tree.map(lambda draws: draws[order], prior)
        first: Any = slice(num_chains)
        if kernel == "statistic_gibbs":
            first = _explain(key_states, problem, prior_in_order, num_chains)
        if free_params is None:
            params = jax.tree.map(lambda draws: draws[first], prior_in_order)
        else:
            _, constrain = unconstrain(model.supports, jax.tree.map(lambda x: x[0], prior))
            params, _ = jax.vmap(constrain)(free_params)
        variance = jnp.array(jnp.nan)
        if kernel == "statistic_gibbs":
            start_sums = functools.partial(
                statistic_gibbs.init,
                num_records=problem.num_records,
                law=_sum_law(problem),
                size=len(problem.released),
            )
            return Start(prior, free[order], jax.vmap(start_sums)(params), variance)
        init = functools.partial(
            record_augmentation.init, model=model, num_records=num_records, known=problem.known
        )
        states = jax.vmap(init)(jr.split(key_states, num_chains), params)
        if jax.default_backend() != "cpu" or num_records >= MIN_RECORDS_FOR_BLOCKS:
            variance = swap_variance(key_swaps, problem, prior, num_records)
        return Start(prior, free[order], states, variance)

    return _over_data_sets(one, keys, problems, free_params)


def _explain(key: PRNGKeyArray, problem: Problem, prior: Params, count: int):
    """Which draws of the prior to start from."""
    law, spread = _sum_law(problem), problem.mechanism.spread()
    log_likelihoods = jax.vmap(
        lambda params: statistic_gibbs.log_likelihood(
            law(params), problem.num_records, problem.released, spread
        )
    )(prior)
    return statistic_gibbs.choose_starts(key, log_likelihoods, count)


def _sum_law(problem: Problem) -> Callable[[Params], statistic_gibbs.SumLaw]:
    return functools.partial(
        statistic_gibbs.sum_law,
        model=_family(problem),
        contribution=problem.contribution,
        bounds=problem.statistic.bounds,
    )


def _family(problem: Problem) -> ExponentialFamily:
    return cast(ExponentialFamily, problem.model)


def swap_variance(key: PRNGKeyArray, problem: Problem, prior: Params, num_records: int):
    """The variance of a swap's change of T in units of the noise, summed over coordinates.

    At those of some prior draws that explain the release best: records of a vague prior vary
    more than those behind the release.
    """
    candidates = jax.tree.map(lambda draws: draws[:NUM_CANDIDATES], prior)
    num_candidates = len(jax.tree.leaves(candidates)[0])

    def look(key, params):
        key_known, key_records = jr.split(key)
        indices = jr.randint(key_known, (RECORDS_A_CANDIDATE,), 0, num_records)
        known = jax.tree.map(lambda column: jnp.asarray(column)[indices], problem.known)
        records = problem.model.sample_records(key_records, params, RECORDS_A_CANDIDATE, known)
        contributions = jax.vmap(problem.contribution)(records)
        expected = num_records * jnp.mean(contributions, axis=0)
        variances = 2 * jnp.var(contributions, axis=0, ddof=1) / problem.mechanism.spread() ** 2
        fit = -jnp.sum(jnp.abs(problem.released - expected) / problem.mechanism.spread())
        return fit, jnp.sum(variances)

    fits, variances = jax.vmap(look)(jr.split(key, num_candidates), candidates)
    _, best = jax.lax.top_k(jnp.nan_to_num(fits, nan=-jnp.inf), num_candidates // 50)
    return jnp.mean(variances[best])


@eqx.filter_jit
def run_chunk(
    keys: PRNGKeyArray,
    states: State,
    tuning: Tuning,
    first: Int[np.ndarray, ""],
    count: Int[np.ndarray, ""],
    *,
    problems: Problem,
    kernel: str,
    layout: Layout = Layout(),
    capacity: int = CHUNK_DRAWS,
) -> tuple[State, Draw]:
    """Draws ``first`` to ``first + count`` of some chains, in room for ``capacity``."""

    def chains(keys, states, shape, cholesky, problem):
        own = tuning._replace(shape=shape, cholesky=cholesky)
        if kernel == "statistic_gibbs":
            draw = _draw_of_sums(problem, own)
        else:
            draw = _draw_of(problem, own, kernel, layout)

        def chain(key, state):
            def fill(index, carry):
                state, room = carry
                state, drawn = draw(randomness.fold_in(key, first + index), state)
                return state, jax.tree.map(
                    lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, index, 0),
                    room,
                    drawn,
                )

            one = jax.eval_shape(draw, key, state)[1]
            room = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
            state, room = jax.lax.fori_loop(0, count, fill, (state, room))
            return state, _with_noise(key, first, count, problem, room)

        return jax.vmap(chain)(keys, states)

    return _over_data_sets(chains, keys, states, tuning.shape, tuning.cholesky, problems)


@eqx.filter_jit
def information(
    states: RecordAugmentationState, problems: Problem, shape: Shape, layout: Layout
) -> Float[Array, "sets chains d d"]:
    """That of ``p(params | records)`` where each chain is, in whitened coordinates of the shape."""

    def chains(states, shape, problem):
        return jax.vmap(
            lambda state: information_of(problem.model, state.params, state.records, shape, layout)
        )(states)

    return _over_data_sets(chains, states, shape, problems)


def _draw_of(problem: Problem, tuning: Tuning, kernel: str, layout: Layout) -> Callable:
    """``(key, state) -> (state, Draw)``: some sweeps, and a look."""
    bound: dict[str, Any] = {
        "model": problem.model,
        "contribution": problem.contribution,
        "log_density": functools.partial(problem.mechanism.log_density, problem.released),
        "proposal": problem.proposal,
        "params_step": step_of(
            problem.model,
            tuning.shape,
            layout,
            problem.params_step,
            tuning.cholesky,
            tuning.step_size,
        ),
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
        state, info = step(randomness.fold_in(key, index), state)
        moves = [getattr(info, name, jnp.zeros(())) for name in ("move_rate", "move_size")]
        sums += jnp.stack([info.acceptance_rate, *moves, info.params_rate])
        return key, state, sums, jnp.minimum(min_log_ratio, info.min_log_ratio), info.log_density

    def draw(key, state):
        key_sweeps, key_records = randomness.split(key)
        carry = (key_sweeps, state, jnp.zeros(4), jnp.zeros(()), jnp.zeros(()))
        _, state, sums, min_log_ratio, log_density = jax.lax.fori_loop(
            0, tuning.sweeps_per_draw, sweep, carry
        )
        fresh = jnp.zeros(0)
        if problem.can_replicate:
            fresh = _total_of_fresh(key_records, problem, state, layout.segment_size)
        free, _ = unconstrain(problem.model.supports, state.params)
        rate, *moves = sums / tuning.sweeps_per_draw
        return state, Draw(state.params, free, fresh, rate, min_log_ratio, log_density, *moves)

    return draw


def _with_noise(key: PRNGKeyArray, first, count, problem: Problem, room: Draw) -> Draw:
    """The first ``count`` draws of a chain with the noise of their replicated releases: many at
    once, since for generators other than our own one draw takes about as long as many.
    """
    if not problem.can_replicate:
        return room
    totals, own = room.replicated, randomness.fold_in(key, OF_NOISE)
    size = min(NOISES_AT_ONCE, len(totals))

    def noisy(index):
        # Where nothing was drawn, once more the last that was: a mechanism sees possible totals.
        index = jnp.minimum(index, count - 1)
        return problem.mechanism.simulate(randomness.fold_in(own, first + index), totals[index])

    def fill(block, replicated):
        begin = jnp.minimum(block * size, len(totals) - size)
        part = jax.vmap(noisy)(begin + jnp.arange(size))
        return jax.lax.dynamic_update_slice_in_dim(replicated, part, begin, 0)

    return room._replace(replicated=jax.lax.fori_loop(0, (count + size - 1) // size, fill, totals))


def _draw_of_sums(problem: Problem, tuning: Tuning) -> Callable:
    """``(key, state) -> (state, Draw)`` by sums in place of records."""
    model, mechanism = _family(problem), problem.mechanism
    size, law = len(problem.released), _sum_law(problem)
    num_records: Any = problem.num_records
    step = functools.partial(
        statistic_gibbs.step,
        model=model,
        num_records=num_records,
        released=problem.released,
        law=law,
        sample_variances=mechanism.sample_variances,
        log_density=functools.partial(mechanism.log_density, problem.released),
    )

    def sweep(index, carry):
        key, state, rate, _ = carry
        state, info = step(randomness.fold_in(key, index), state)
        return key, state, rate + info.acceptance_rate, info.log_density

    def draw(key, state):
        key_sweeps, key_total = jr.split(key)
        zero = jnp.zeros(())
        _, state, rate, log_density = jax.lax.fori_loop(
            0, tuning.sweeps_per_draw, sweep, (key_sweeps, state, zero, zero)
        )
        fresh = statistic_gibbs.sample_total(key_total, law(state.params), num_records, size)
        free, _ = unconstrain(model.supports, state.params)
        rate = rate / tuning.sweeps_per_draw
        return state, Draw(state.params, free, fresh, rate, zero, log_density, zero, zero, zero)

    return draw


def _total_of_fresh(key, problem: Problem, state: RecordAugmentationState, segment_size: int):
    """T of as many new records at the state's params."""
    num_records, num_segments, size = split(state.records, segment_size)
    known = problem.model.known_of(state.records)

    def total(index, first, size):
        key_segment, part = jr.fold_in(key, index), take(known, first, size)
        fresh = problem.model.sample_records(key_segment, state.params, size, part)
        return sum_of(problem.contribution, fresh)

    rest = num_records - (num_segments - 1) * size
    sum_of_rest = total(0, 0, rest)
    if num_segments == 1:
        return sum_of_rest
    return jax.lax.fori_loop(
        1,
        num_segments,
        lambda index, sum: sum + total(index, rest + (index - 1) * size, size),
        sum_of_rest,
    )
