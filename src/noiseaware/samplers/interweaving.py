"""Record augmentation with an ancillarity-sufficiency interweaving move [YM11].

Given x, a sweep moves theta by the width of the complete-data posterior, 1/sqrt(n), however wide
the private posterior is. So after each sweep write every record as ``x_i = phi(theta, u_i)``, hold
the noises u and move theta under

    p(theta | u, s), proportional to p(theta) g(s, sum_i t(phi(theta, u_i))),

then rebuild x. In the coordinates (theta, u) the target is ``p(theta) prod_i p(u_i) g(s, T)``: the
Jacobian of phi cancels against f. Where phi has no inverse, u is drawn from its law given
(theta, x), which leaves the joint law of (theta, u, x) invariant.

The move is generalised elliptical slice sampling [NMA14] in unconstrained coordinates
``z = location + cholesky w``: with a Student reference ``t(w)``, draw its scale v given w, then a
slice of ``p(z) g / t(w)`` on the ellipse of N(0, v I) through w, by shrinking a bracket of angles.
It has no step size and leaves the target invariant for any ``Shape`` that is fixed beforehand; the
shape only sets its speed.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.samplers import record_augmentation
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.schema import Record

FREEDOM = 5.0  # degrees of freedom of the reference: tails heavier than a posterior's
MAX_TRIES = 100  # a bracket shrunk that often is a point: keep the current one


class Shape(NamedTuple):
    """Location and scale of the params' posterior in unconstrained space, learned in warm-up."""

    location: Float[Array, " d"]
    cholesky: Float[Array, "d d"]


class InterweavingInfo(NamedTuple):
    """As for record augmentation; ``num_tries`` counts the densities evaluated in a move."""

    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]
    num_tries: Float[Array, ""]


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
    num_moves: int = 3,
) -> tuple[RecordAugmentationState, InterweavingInfo]:
    """One sweep over the records, then ``num_moves`` moves of params with the noises held."""
    key_sweep, key_noise, key_moves = jr.split(key, 3)
    state, sweep_info = record_augmentation.step(
        key_sweep,
        state,
        model=model,
        contribution=contribution,
        log_density=log_density,
        proposal=proposal,
    )
    noise = model.noises(key_noise, state.params, state.records)
    free, constrain = unconstrain(model.supports, state.params)

    def log_g(params: Params):
        return log_density(jnp.sum(jax.vmap(contribution)(model.records(params, noise)), axis=0))

    def log_target(whitened):
        params, log_jacobian = constrain(shape.location + shape.cholesky @ whitened)
        log_g_of_params = log_g(params)
        return model.log_prior(params) + log_jacobian + log_g_of_params, log_g_of_params

    whitened = jax.scipy.linalg.solve_triangular(shape.cholesky, free - shape.location, lower=True)
    start = _Slice(whitened, *log_target(whitened))
    end, num_tries = jax.lax.scan(
        lambda at, key: _slice(key, at, log_target), start, jr.split(key_moves, num_moves)
    )
    moved, _ = constrain(shape.location + shape.cholesky @ end.whitened)
    # Params that round to the edge of their support have no unconstrained point: no move then.
    is_regular = jnp.all(jnp.isfinite(end.whitened)) & jnp.isfinite(end.log_target)
    params, records = jax.tree.map(
        lambda new, old: jnp.where(is_regular, new, old),
        (moved, model.records(moved, noise)),
        (state.params, state.records),
    )
    info = InterweavingInfo(
        sweep_info.acceptance_rate,
        sweep_info.min_log_ratio,
        jnp.where(is_regular, end.log_g, sweep_info.log_density),
        jnp.mean(num_tries, dtype=float),
    )
    return RecordAugmentationState(params, records), info


class _Slice(NamedTuple):
    whitened: Float[Array, " d"]
    log_target: Float[Array, ""]
    log_g: Float[Array, ""]


class _Bracket(NamedTuple):
    """The interval of angles still in play, and the point tried last."""

    key: PRNGKeyArray
    low: Float[Array, ""]
    high: Float[Array, ""]
    tried: _Slice
    is_inside: Bool[Array, ""]
    num_tried: Int[Array, ""]


def _slice(key: PRNGKeyArray, at: _Slice, log_target) -> tuple[_Slice, Int[Array, ""]]:
    """One generalised elliptical slice move, and how many points it tried."""
    key_scale, key_direction, key_level, key_place, key_shrink = jr.split(key, 5)
    size = at.whitened.size
    rate = (FREEDOM + at.whitened @ at.whitened) / 2
    variance = rate / jr.gamma(key_scale, (FREEDOM + size) / 2)
    direction = jnp.sqrt(variance) * jr.normal(key_direction, (size,))

    def log_reference(whitened):
        return -(FREEDOM + size) / 2 * jnp.log1p(whitened @ whitened / FREEDOM)

    level = at.log_target - log_reference(at.whitened) - jr.exponential(key_level)

    def attempt(bracket: _Bracket) -> _Bracket:
        key, key_angle = jr.split(bracket.key)
        angle = jr.uniform(key_angle, minval=bracket.low, maxval=bracket.high)
        whitened = at.whitened * jnp.cos(angle) + direction * jnp.sin(angle)
        tried = _Slice(whitened, *log_target(whitened))
        is_inside = tried.log_target - log_reference(whitened) > level
        # A point outside becomes an end of the bracket, which keeps the current one, angle 0.
        low = jnp.where(angle < 0, angle, bracket.low)
        high = jnp.where(angle < 0, bracket.high, angle)
        return _Bracket(key, low, high, tried, is_inside, bracket.num_tried + 1)

    def goes_on(bracket: _Bracket):
        return ~bracket.is_inside & (bracket.num_tried < MAX_TRIES)

    high = jr.uniform(key_place, maxval=2 * jnp.pi)
    start = _Bracket(key_shrink, high - 2 * jnp.pi, high, at, jnp.array(False), jnp.zeros((), int))
    end = jax.lax.while_loop(goes_on, attempt, start)
    moved = jax.tree.map(lambda new, old: jnp.where(end.is_inside, new, old), end.tried, at)
    return moved, end.num_tried


def learn_shape(free_draws: Float[Array, "n d"]) -> Shape:
    """Mean and covariance of draws in unconstrained space.

    Correlations are shrunk by ``d / (n + d)``, which keeps the factor regular for few draws.
    """
    num_draws, size = free_draws.shape
    covariance = jnp.atleast_2d(jnp.cov(free_draws, rowvar=False))
    weight = size / (num_draws + size)
    regular = (1 - weight) * covariance + weight * jnp.diag(jnp.diagonal(covariance))
    return Shape(jnp.mean(free_draws, axis=0), jnp.linalg.cholesky(regular))
