"""Record augmentation, Metropolis within Gibbs [JAGR22, Alg. 1 and 2].

Targets ``p(theta, x | s)``, proportional to ``p(theta) prod_i f(x_i | theta) g(s, T(x))``
with ``T(x) = sum_i t(x_i)``, by alternating

1. ``theta | x``, which never sees ``s``;
2. ``x_i | theta, x_-i, s`` for each ``i``: propose ``x* ~ q(. | x_i, theta)`` and accept with
   ``min(1, g(s, T*) / g(s, T) x f(x*) q(x_i | x*) / f(x_i) q(x* | x_i))``; the second factor is 1
   for ``q = f(. | theta)``: Algorithm 1. Both leave the target invariant, so does their sweep.

Proposals are drawn for all records in one call, so they may depend on ``x_i`` and ``theta``,
never on the running ``T``. The sampler sees the release only through
``log_density(total) = log g(s, total)`` and the statistic only through
``contribution(record) = t(record)``.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.schema import Record, Records


class RecordAugmentationState(NamedTuple):
    params: Params
    records: Records


class RecordAugmentationInfo(NamedTuple):
    """``min_log_ratio`` is the smallest ``log g(s, T*) - log g(s, T)`` of a swap, at least
    ``-epsilon`` under epsilon-DP and ``replace``; ``log_density`` is ``log g(s, T)`` at the end.
    """

    acceptance_rate: Float[Array, ""]
    min_log_ratio: Float[Array, ""]
    log_density: Float[Array, ""]


def init(
    key: PRNGKeyArray, params: Params, *, model: Model, num_records: int
) -> RecordAugmentationState:
    """Records from the model at these params."""
    return RecordAugmentationState(params, model.sample_records(key, params, num_records))


def step(
    key: PRNGKeyArray,
    state: RecordAugmentationState,
    *,
    model: Model,
    contribution: Callable[[Record], Float[Array, " m"]],
    log_density: Callable[[Float[Array, " m"]], Float[Array, ""]],
    proposal: Proposal = from_model,
) -> tuple[RecordAugmentationState, RecordAugmentationInfo]:
    """One sweep: draw ``theta`` once, then visit every record once."""
    key_params, key_records, key_accept = jr.split(key, 3)
    params = model.sample_posterior(key_params, state.params, state.records)
    proposed, log_corrections = proposal(key_records, model, params, state.records)

    contributions = jax.vmap(contribution)
    current = contributions(state.records)
    changes = contributions(proposed) - current
    # -Exponential(1) is the log of a uniform, without its zero.
    log_uniforms = -jr.exponential(key_accept, changes.shape[:1])

    def visit(carry, swap):
        total, log_g = carry
        change, threshold = swap
        new_total = total + change
        new_log_g = log_density(new_total)
        log_ratio = new_log_g - log_g
        is_accepted = threshold < log_ratio
        total = jnp.where(is_accepted, new_total, total)
        return (total, jnp.where(is_accepted, new_log_g, log_g)), (is_accepted, log_ratio)

    # The total is rebuilt from the records at every sweep: a carried sum would drift.
    total = jnp.sum(current, axis=0)
    (_, log_g), (is_accepted, log_ratios) = jax.lax.scan(
        visit, (total, log_density(total)), (changes, log_uniforms - log_corrections)
    )
    records = {
        name: jnp.where(is_accepted, proposed[name], column)
        for name, column in state.records.items()
    }
    info = RecordAugmentationInfo(jnp.mean(is_accepted, dtype=float), jnp.min(log_ratios), log_g)
    return RecordAugmentationState(params, records), info
