"""Gibbs sampling over sums [BS18, Alg. 1-3], at a cost that does not grow with n. Approximate.

Of n records the model needs ``S = sum_i t(x_i)`` and the release hides ``T = sum_i c(x_i)``; t and
c may be the same, or c may leave out or clamp what lies outside some bounds. The sweep draws

1. ``params | S``, by the conjugate update, or a step that leaves their law invariant;
2. ``variance_j | released_j - T_j``, the noise as a normal of random variance;
3. ``(T, S) | params, variances, release``, from ``N(n mu, n Sigma)``, in which mu and Sigma are
   mean and covariance of ``(c(x), t(x))`` for one record, times ``N(released; T, variances)``.

Step 3 puts a normal in place of the law of ``(T, S) | params``: the central limit theorem. It is
what makes this an approximation, better the larger n; the conditionals of 1 and 3 then belong to no
common joint law, so what the sweep leaves invariant is near ``p(params | release)``, not equal to
it. Records within, below and above the bounds exclude each other, so parts of a sum are correlated;
Sigma has that, since it is taken over x.

Step 3 without inverting Sigma, which may be singular: with ``Sigma = L L^T`` draw ``z ~ N(0, I)``
and noise e, and shift z by ``A^T (A A^T + D)^-1 (released - T(z) - e)``, A being the rows of
``sqrt(n) L`` for T and D the variances. If S is not possible, such as a negative count, both are
drawn again a few times. If none of the draws is, as with many cells that are nearly empty, they
move on the ellipse through where they are, by a bracket of angles that shrinks until S is possible
[MAM10]. Both leave the normal so restricted invariant, and whether the draws fail does not depend
on where the sums are. T may be what no records have, alone or with S: nothing but its noise is
computed from it, and excluding it would shift the normal law away from that of the sums.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy import linalg
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from noiseaware import elliptical_slice, randomness
from noiseaware.models.domain import Bounds
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.model import Params
from noiseaware.schema import Record

NUM_TRIES = 4
STARTS_A_CHAIN, MAX_HALVINGS = 4, 60
MIN_RESIDUAL = 1e-12  # of a column's length: below it is rounding


class SumLaw(NamedTuple):
    """Mean of ``(c(x), t(x))``, and a factor of its covariance."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d r"]


class StatisticGibbsState(NamedTuple):
    params: Params
    total: Float[Array, " m"]
    sums: Float[Array, " k"]


class StatisticGibbsInfo(NamedTuple):
    """Whether sums were drawn anew, and ``log g(s, T)`` at the end."""

    acceptance_rate: Float[Array, ""]
    log_density: Float[Array, ""]


def sum_law(
    params: Params,
    *,
    model: ExponentialFamily,
    contribution: Callable[[Record], Float[Array, " m"]],
    bounds: Bounds | None,
) -> SumLaw:
    """Of one record at these params."""
    x, log_mass = model.law(params, bounds)
    weight = jax.nn.softmax(log_mass.ravel())

    def values(x):
        return jnp.concatenate([contribution({model.column: x}), model.sufficient(x)])

    at_points = jax.vmap(values)(x.ravel())
    mean = weight @ at_points
    rows = (jnp.sqrt(weight)[:, None] * (at_points - mean)).T
    return SumLaw(mean, rows if rows.shape[1] <= rows.shape[0] else _triangular(rows))


def _triangular(rows: Float[Array, "d points"]) -> Float[Array, "d d"]:
    """Lower triangular L with ``L L^T = rows rows^T``, by Gram and Schmidt: no covariance is formed
    whose differences would cancel.
    """
    basis: list[Array] = []
    factor = []
    for row in rows:
        length = jnp.sqrt(row @ row)
        entries = []
        for direction in basis:
            entries.append(direction @ row)
            row = row - entries[-1] * direction
        left = jnp.sqrt(row @ row)
        is_new = left > MIN_RESIDUAL * length
        entries.append(jnp.where(is_new, left, 0.0))
        basis.append(jnp.where(is_new, row / jnp.where(is_new, left, 1.0), 0.0))
        factor.append(jnp.stack(entries + [jnp.zeros(())] * (len(rows) - len(entries))))
    return jnp.stack(factor)


def init(
    params: Params, *, num_records, law: Callable[[Params], SumLaw], size: int
) -> StatisticGibbsState:
    """At the mean sums of these params, which are possible; ``size`` is that of T."""
    mean = num_records * law(params).mean
    return StatisticGibbsState(params, mean[:size], mean[size:])


def step(
    key: PRNGKeyArray,
    state: StatisticGibbsState,
    *,
    model: ExponentialFamily,
    num_records: Float[ArrayLike, ""],
    released: Float[ArrayLike, " m"],
    law: Callable[[Params], SumLaw],
    sample_variances: Callable[[PRNGKeyArray, Float[Array, " m"]], Float[Array, " m"]],
    log_density: Callable[[Float[Array, " m"]], Float[Array, ""]],
) -> tuple[StatisticGibbsState, StatisticGibbsInfo]:
    key_params, key_variances, key_sums, key_slice = jr.split(key, 4)
    released = jnp.asarray(released)
    params = model.sample_params(key_params, state.params, state.sums, num_records)
    variances = sample_variances(key_variances, released - state.total)
    drawn = _draw_sums(key_sums, law(params), num_records, released, variances)
    tries, other, centre = drawn[:-2], drawn[-2], drawn[-1]

    def is_possible(both):
        return model.is_possible(both[len(released) :], num_records)

    are_possible = jax.vmap(is_possible)(tries)
    first = jnp.argmax(are_possible)
    is_new = are_possible[first]
    start = jnp.where(is_new, tries[first], jnp.concatenate([state.total, state.sums]))

    def at_angle(angle):
        both = centre + (start - centre) * jnp.cos(angle) + (other - centre) * jnp.sin(angle)
        return both, is_possible(both)

    both = elliptical_slice.shrink(key_slice, at_angle, start, is_done=is_new)
    total, sums = both[: len(released)], both[len(released) :]
    info = StatisticGibbsInfo(jnp.asarray(is_new, float), log_density(total))
    return StatisticGibbsState(params, total, sums), info


def log_likelihood(law: SumLaw, num_records, released, scales) -> Float[Array, ""]:
    """Of the params with this law, up to a constant, for noise as if it were normal with standard
    deviations of these scales.
    """
    mean, factor = num_records * law.mean, jnp.sqrt(num_records) * law.factor
    gain, scales = factor[: len(released)], jnp.broadcast_to(scales, len(released))
    scaled = gain / scales[:, None]
    matrix = jnp.eye(len(released)) + scaled @ scaled.T
    missed = (released - mean[: len(released)]) / scales
    lower = jnp.linalg.cholesky(matrix)
    white = linalg.solve_triangular(lower, missed, lower=True)
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(lower)))


def choose_starts(
    key: PRNGKeyArray, log_likelihoods: Float[Array, " draws"], count: int
) -> Int[Array, " count"]:
    """Which draws of the prior to start from: drawn without replacement (by Gumbel's trick) with
    weights of their likelihood. To a power below 1, where less than some draws a chain would have
    any weight: one of several modes would be chosen for all.
    """
    log_weight = jnp.where(jnp.isfinite(log_likelihoods), log_likelihoods, -jnp.inf)
    log_weight -= jnp.max(log_weight)

    def halve(_, power):
        weight = jax.nn.softmax(power * log_weight)
        return jnp.where(1 / jnp.sum(weight**2) < STARTS_A_CHAIN * count, 0.5 * power, power)

    log_weight *= jax.lax.fori_loop(0, MAX_HALVINGS, halve, 1.0)
    _, chosen = jax.lax.top_k(log_weight + jr.gumbel(key, log_weight.shape), count)
    return jnp.where(jnp.isfinite(log_weight[chosen]), chosen, chosen[0])


def sample_total(key: PRNGKeyArray, law: SumLaw, num_records, size: int) -> Float[Array, " m"]:
    """T of as many new records, by the same normal law."""
    z = randomness.normal(key, law.factor.shape[1:])
    return num_records * law.mean[:size] + jnp.sqrt(num_records) * (law.factor[:size] @ z)


def _draw_sums(key, law: SumLaw, num_records, released, variances):
    """A few draws of (T, S) given the release and the variances of its noise; last their mean."""
    size, rank = len(released), law.factor.shape[1]
    normals = randomness.normal(key, (NUM_TRIES + 1, rank + size))
    normals = jnp.concatenate([normals, jnp.zeros((1, rank + size))])
    mean, factor = num_records * law.mean, jnp.sqrt(num_records) * law.factor
    z, noise = normals[:, :rank], jnp.sqrt(variances) * normals[:, rank:]
    gain = factor[:size]
    missed = released - mean[:size] - z @ gain.T - noise
    z = z + _solve(gain @ gain.T + jnp.diag(variances), missed.T).T @ gain
    return mean + z @ factor.T


def _solve(matrix, right):
    if len(matrix) == 1:
        return right / matrix
    return linalg.cho_solve(linalg.cho_factor(matrix, lower=True), right)
