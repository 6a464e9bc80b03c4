"""Record augmentation, Metropolis within Gibbs [JAGR22, Alg. 1 and 2].

Targets ``p(theta, x | s)``, proportional to ``p(theta) prod_i f(x_i | theta) g(s, T(x))``
with ``T(x) = sum_i t(x_i)``, by alternating

1. ``theta | x``, which never sees ``s``;
2. ``x_B | theta, x_-B, s`` for each block B of ``block_size`` records: propose ``x*_i ~ q(. | x_i,
   theta)`` for its records and accept all or none with ``min(1, g(s, T*) / g(s, T) x prod_B
   f(x*_i) q(x_i | x*_i) / f(x_i) q(x*_i | x_i))``; the product is 1 for ``q = f(. | theta)``.
   Blocks of one record and that q are Algorithm 1.

Both leave the target invariant, so does their sweep. Proposals are drawn for a segment of records
in one call, so they may depend on ``x_i`` and ``theta``, never on the running ``T``; only the
recursion on ``T`` is sequential. Records that two segments share are visited twice, one more
invariant step. The sampler sees the release only through ``log_density(total) = log g(s, total)``
and the statistic only through ``contribution(record) = t(record)``.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from noiseaware import randomness
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.samplers.layout import Layout, put, split, take, total_of
from noiseaware.samplers.params_given_records import ParamsStep, as_given
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.schema import Record, Records


class RecordAugmentationState(NamedTuple):
    params: Params
    records: Records


class RecordAugmentationInfo(NamedTuple):
    """``min_log_ratio`` is the smallest ``log g(s, T*) - log g(s, T)`` of a block, at least
    ``-block_size epsilon`` under epsilon-DP and ``replace``; ``log_density`` is ``log g(s, T)`` at
    the end; ``params_rate`` the acceptance rate of the params' step.
    """

    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]
    params_rate: Float[ArrayLike, ""] = 1.0


class Tally(Protocol):
    """What to sum over the visits of a sweep, given each record's probability of rejection."""

    def __call__(
        self, current: Records, proposed: Records, rejection: Float[Array, " n"]
    ) -> Float[Array, "..."]: ...


class _Sweep(NamedTuple):
    """Where a sweep stands."""

    records: Records
    total: Float[Array, " m"]
    log_g: Float[Array, ""]
    sum_of_rates: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    tallied: Float[Array, "..."]


def init(
    key: PRNGKeyArray,
    params: Params,
    *,
    model: Model,
    num_records: int,
    known: Records | None = None,
) -> RecordAugmentationState:
    """Records from the model at these params, given what is known of each."""
    return RecordAugmentationState(params, model.sample_records(key, params, num_records, known))


def step(
    key: PRNGKeyArray,
    state: RecordAugmentationState,
    *,
    model: Model,
    contribution: Callable[[Record], Float[Array, " m"]],
    log_density: Callable[[Float[Array, " m"]], Float[Array, ""]],
    proposal: Proposal = from_model,
    params_step: ParamsStep | None = None,
    layout: Layout = Layout(),
) -> tuple[RecordAugmentationState, RecordAugmentationInfo]:
    """One sweep: move ``theta`` once, by the model's own step if none is given, then visit every
    record.
    """
    key_params, key_sweep = randomness.split(key)
    params_step = params_step or as_given(model.sample_posterior)
    params, params_rate = params_step(key_params, state.params, state.records)
    records, info, _ = sweep_records(
        key_sweep,
        params,
        state.records,
        model=model,
        contribution=contribution,
        log_density=log_density,
        proposal=proposal,
        layout=layout,
    )
    return RecordAugmentationState(params, records), info._replace(params_rate=params_rate)


def sweep_records(
    key: PRNGKeyArray,
    params: Params,
    records: Records,
    *,
    model: Model,
    contribution: Callable[[Record], Float[Array, " m"]],
    log_density: Callable[[Float[Array, " m"]], Float[Array, ""]],
    proposal: Proposal = from_model,
    layout: Layout = Layout(),
    tally: Tally | None = None,
) -> tuple[Records, RecordAugmentationInfo, Float[Array, "..."]]:
    """Step 2, a visit to every record; last comes what ``tally`` returned, over the segments."""
    num_records, num_segments, size = split(records, layout.segment_size)

    def visit_segment(index, sweep: _Sweep) -> _Sweep:
        key_records, key_accept = randomness.split(randomness.fold_in(key, index))
        first = jnp.minimum(index * size, num_records - size)
        current = take(sweep.records, first, size)
        proposed, log_corrections = proposal(key_records, model, params, current)
        changes = jax.vmap(contribution)(proposed) - jax.vmap(contribution)(current)
        log_corrections = jnp.broadcast_to(log_corrections, (size,))
        is_accepted, acceptance, sweep = _visit_blocks(
            key_accept,
            sweep,
            _block_sums(changes, layout.block_size),
            _block_sums(log_corrections, layout.block_size),
            log_density,
            layout,
        )
        is_accepted = jnp.repeat(is_accepted, layout.block_size)[:size]
        chosen = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposed, current)
        if tally is not None:
            acceptance = jnp.repeat(acceptance, layout.block_size)[:size]
            is_new = first + jnp.arange(size) >= index * size  # not shared with the one before
            counted = tally(current, proposed, jnp.where(is_new, 1 - acceptance, 0.0))
            sweep = sweep._replace(tallied=sweep.tallied + counted)
        return sweep._replace(
            records=put(sweep.records, chosen, first),
            sum_of_rates=sweep.sum_of_rates + jnp.mean(is_accepted, dtype=float),
        )

    # The total is rebuilt from the records at every sweep: a carried sum would drift.
    total = total_of(contribution, records, layout.segment_size)
    tallied = jnp.zeros(())
    if tally is not None:
        part = take(records, 0, size)
        tallied = jnp.zeros_like(tally(part, part, jnp.zeros(size)))
    sweep = _Sweep(records, total, log_density(total), jnp.zeros(()), jnp.array(jnp.inf), tallied)
    if num_segments == 1:
        sweep = visit_segment(0, sweep)
    else:
        sweep = jax.lax.fori_loop(0, num_segments, visit_segment, sweep)
    info = RecordAugmentationInfo(
        sweep.sum_of_rates / num_segments, sweep.min_log_ratio, sweep.log_g
    )
    return sweep.records, info, sweep.tallied


def _block_sums(terms: Float[Array, "n ..."], block_size: int) -> Float[Array, "blocks ..."]:
    """Sums of ``block_size`` terms each; the last block may be shorter."""
    if block_size == 1:
        return terms
    missing = -len(terms) % block_size
    padded = jnp.concatenate([terms, jnp.zeros((missing, *terms.shape[1:]), terms.dtype)])
    return jnp.sum(padded.reshape(-1, block_size, *terms.shape[1:]), axis=1)


def _visit_blocks(key, sweep: _Sweep, changes, log_corrections, log_density, layout: Layout):
    """Accept or reject one block after the other; also the probability of each acceptance."""
    # -Exponential(1) is the log of a uniform, without its zero.
    thresholds = -randomness.exponential(key, log_corrections.shape) - log_corrections
    log_density = eqx.filter_closure_convert(log_density, sweep.total)
    arrays, static = eqx.partition(log_density, eqx.is_array)

    def visit(log_density, carry, swap):
        total, log_g = carry
        change, threshold = swap
        new_total = total + change
        new_log_g = log_density(new_total)
        log_ratio = new_log_g - log_g
        is_accepted = threshold < log_ratio
        total = jnp.where(is_accepted, new_total, total)
        log_g = jnp.where(is_accepted, new_log_g, log_g)
        return (total, log_g), log_ratio

    def visit_all(arrays, begin, swaps):
        turn = functools.partial(visit, eqx.combine(arrays, static))
        return jax.lax.scan(turn, begin, swaps, unroll=layout.unroll)

    if layout.is_one_by_one:
        visit_all = _one_by_one(visit_all)
    (total, log_g), log_ratios = visit_all(
        arrays, (sweep.total, sweep.log_g), (changes, thresholds)
    )
    acceptance = jnp.exp(jnp.minimum(log_ratios + log_corrections, 0.0))
    min_log_ratio = jnp.minimum(sweep.min_log_ratio, jnp.min(log_ratios))
    sweep = sweep._replace(total=total, log_g=log_g, min_log_ratio=min_log_ratio)
    return thresholds < log_ratios, acceptance, sweep


def _one_by_one(function: Callable) -> Callable:
    """The same function, of which ``vmap`` makes a call for every member of the batch."""
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def call_each(size, is_batched, *arguments):
        def take(index):
            return jax.tree.map(lambda x, has: x[index] if has else x, arguments, tuple(is_batched))

        results = [function(*take(index)) for index in range(size)]
        joined = jax.tree.map(lambda *parts: jnp.stack(parts), *results)
        return joined, jax.tree.map(lambda _: True, joined)

    return mapped
