"""Record augmentation with an ancillarity-sufficiency interweaving move [YM11].

Given x, a sweep moves theta by the width of the complete-data posterior, 1/sqrt(n), however wide
the private posterior is. So after each sweep write every record as ``x_i = phi(theta, u_i)``, hold
the noises u and move theta under

    p(theta | u, s), proportional to p(theta) g(s, sum_i t(phi(theta, u_i))),

then rebuild x. In the coordinates (theta, u) the target is ``p(theta) prod_i p(u_i) g(s, T)``: the
Jacobian of phi cancels against f. Where phi has no inverse, u is drawn from its law given
(theta, x), which leaves the joint law of (theta, u, x) invariant.

The move is an elliptical slice in unconstrained coordinates ``z = location + cholesky w``. The
target stays invariant for any ``Shape`` that is fixed beforehand; the shape only sets its speed.

Each slice tries several points, and T at each costs a pass over the records. So where there are
many, some stand for all: with R of the n noises and a fixed anchor theta_0,

    T~(theta) = T(theta_0) + n/R sum_{i <= R} [t(phi(theta, u_i)) - t(phi(theta_0, u_i))]

is a function of theta and u alone, so ``p~(theta | u, s)``, with T~ for T, is a fixed density. Like
slices one after the other are reversible under it, so their end is a proposal, to be accepted with
``min(1, g(s, T') g(s, T~) / g(s, T) g(s, T~'))``: two passes, and the target invariant for any R.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from noiseaware import elliptical_slice, randomness
from noiseaware.elliptical_slice import Point, Shape
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.samplers import record_augmentation
from noiseaware.samplers.layout import Layout, split, total_of
from noiseaware.samplers.params_given_records import ParamsStep
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.schema import Record


class InterweavingInfo(NamedTuple):
    """As for record augmentation; ``move_rate`` is 1 where the params' move was accepted, and
    ``move_size`` its mean square, in units of the shape.
    """

    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]
    move_rate: Float[Array, ""]
    move_size: Float[Array, ""]
    params_rate: Float[ArrayLike, ""]


init = record_augmentation.init


def step(
    key: PRNGKeyArray,
    state: RecordAugmentationState,
    *,
    model: Model,
    contribution: Callable[[Record], Float[Array, " m"]],
    log_density: Callable[[Float[Array, " m"]], Float[Array, ""]],
    shape: Shape,
    proposal: Proposal = from_model,
    params_step: ParamsStep | None = None,
    layout: Layout = Layout(),
    num_moves: int | None = None,
    num_stand_ins: Int[Array, ""] | None = None,
    is_moving: Bool[Array, ""] | None = None,
) -> tuple[RecordAugmentationState, InterweavingInfo]:
    """One sweep over the records, then ``num_moves`` slices of params with the noises held.

    In the slices ``num_stand_ins`` segments stand for all records; if not given, all do. They make
    slices cheap, so that more of them pay. ``is_moving`` false leaves the slices out.
    """
    key_sweep, key_move = randomness.split(key)
    state, sweep_info = record_augmentation.step(
        key_sweep,
        state,
        model=model,
        contribution=contribution,
        log_density=log_density,
        proposal=proposal,
        params_step=params_step,
        layout=layout,
    )

    def move(state: RecordAugmentationState):
        return _move(
            key_move, state, sweep_info.log_density, model=model, contribution=contribution,
            log_density=log_density, shape=shape, layout=layout, num_moves=num_moves,
            num_stand_ins=num_stand_ins,
        )  # fmt: skip

    def stay(state: RecordAugmentationState):
        return state, (sweep_info.log_density, jnp.zeros(()), jnp.zeros(()))

    if is_moving is None:
        state, moved = move(state)
    else:
        state, moved = jax.lax.cond(is_moving, move, stay, state)
    log_g, move_rate, move_size = moved
    info = InterweavingInfo(
        sweep_info.acceptance_rate,
        sweep_info.min_log_ratio,
        log_g,
        move_rate,
        move_size,
        sweep_info.params_rate,
    )
    return state, info


def _move(
    key, state: RecordAugmentationState, log_g, *, model: Model, contribution, log_density,
    shape: Shape, layout: Layout, num_moves: int | None, num_stand_ins,
):  # fmt: skip
    """The state after the slices, with log g there, whether params moved, and how far."""
    key_noise, key_slices, key_accept = randomness.split(key, 3)
    noise = model.noises(key_noise, state.params, state.records)
    free, constrain = unconstrain(model.supports, state.params)

    def place(whitened):
        return constrain(shape.place(whitened))

    def total(params, **segment):
        rebuild = functools.partial(model.records, params)
        return total_of(contribution, noise, layout.stand_in_size, rebuild=rebuild, **segment)

    num_records, num_segments, size = split(noise, layout.stand_in_size)
    if num_stand_ins is None or num_segments == 1:
        is_exact, surrogate, default_moves = True, total, 2
    else:
        anchor, _ = place(jnp.zeros_like(free))
        share = jnp.minimum(num_stand_ins * size, num_records) / num_records
        surrogate = _surrogate(total, anchor, num_stand_ins, share)
        is_exact, default_moves = False, 5

    def log_target(whitened):
        params, log_jacobian = place(whitened)
        log_g = log_density(surrogate(params))
        return model.log_prior(params) + log_jacobian + log_g, log_g

    whitened = shape.whiten(free)
    start = Point(whitened, *log_target(whitened))
    end, _ = jax.lax.scan(
        lambda at, key: (elliptical_slice.move(key, at, log_target), None),
        start,
        randomness.split(key_slices, num_moves or default_moves),
    )
    moved, _ = place(end.whitened)
    moved_records = model.records(moved, noise)
    # Params that round to the edge of their support have no unconstrained point: no move then.
    is_moved = jnp.all(jnp.isfinite(end.whitened)) & jnp.isfinite(end.log_density)
    new_log_g = end.more
    if not is_exact:
        new_log_g = log_density(total_of(contribution, moved_records, layout.segment_size))
        log_ratio = (new_log_g - end.more) - (log_g - start.more)
        is_moved &= -randomness.exponential(key_accept) < log_ratio
    state = jax.tree.map(
        lambda new, old: jnp.where(is_moved, new, old),
        RecordAugmentationState(moved, moved_records),
        state,
    )
    distance = jnp.mean((end.whitened - whitened) ** 2)
    return state, (
        jnp.where(is_moved, new_log_g, log_g),
        jnp.asarray(is_moved, float),
        jnp.where(is_moved, distance, 0.0),
    )


def _surrogate(total: Callable, anchor: Params, num_stand_ins: Int[Array, ""], share) -> Callable:
    """The total of all records, from the first segments and the anchor."""
    part_at_anchor = total(anchor, end=num_stand_ins)
    total_at_anchor = part_at_anchor + total(anchor, begin=num_stand_ins)
    return lambda params: (
        total_at_anchor + (total(params, end=num_stand_ins) - part_at_anchor) / share
    )
