"""What a private chain asks of the records, and how the answers are hidden [R21, 3.1 and 4.2].

Two questions, both sums over records of a map that is bounded whatever the record is:

- the log ratio of likelihoods at two positions, each record's clipped to ``+-clip |z' - z|``;
- the gradient of the log likelihood at a position, each record's clipped to the norm ``clip``.

Both can be put to a random batch of records (``batches.py``), which costs less.

In units of its bound a record's contribution lies in the unit ball, whatever the record is: what
is not a number counts as 0, an infinite ratio as the bound, a gradient that is not finite as 0. It
is rounded to multiples of ``2^-bits`` (a vector towards 0, so it stays in the ball). The sum
S of whole numbers is exact in float64, since it is below ``2^53``. The answer is ``S + Z``, Z whole
normals of standard deviation ``noise_multiplier * sensitivity * 2^bits``, the sensitivity 2 under
``replace`` and 1 under ``add_remove``.

Guarantee: rounding a normal to whole numbers commutes with adding S, so the answer is the Gaussian
mechanism's, rounded: one question costs ``GDP(1 / noise_multiplier)``. Everything a chain does with
answers is post-processing. No floating-point number computed from records is released. (``Barker``
hides its sum by other noise: ``barker.py``.)

Left unprotected: the time that a step takes; under ``add_remove``, and in batches, the last digits
of a model's own floating point, which may depend on where in an array a record stands (a model that
multiplies matrices and amplifies rounding could then move other contributions); and the distance of
OpenDP's whole normals from rounded ones (``host_noise.py``), which adds less than ``(1 +
exp(epsilon)) / (20 stddev^2)`` to delta for each number drawn. ``private_sample`` adds that up,
states it as ``delta_of_rounding``, part of the budget's delta, and refuses a run where it exceeds
the share that is kept for it, a thousandth; a hundredth for ``Barker``.

The rounding moves a sum of n contributions by at most ``n 2^-bits`` of one record's bound.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.private_mcmc.host_noise import MAX_STDDEV
from noiseaware.schema import Neighbours, Record, Records

SEGMENT_RECORDS = 2**16
BATCH_BITS = 18  # of a log ratio in a batch whose squares are summed too
MAX_RECORDS = {Neighbours.REPLACE: 2**31, Neighbours.ADD_REMOVE: 2**27}
JUST_BELOW_1 = 1 - 2.0**-40  # so that rounding while scaling leaves no vector outside the ball

Position = Float[Array, " d"]


class Target(eqx.Module):
    """``p(theta) prod_i f(x_i | theta)^temperature`` over positions ``z``: unconstrained params are
    ``units @ z``, with a lower triangle of units, and the Jacobian enters.
    """

    model: Model
    like: Params
    units: Float[Array, "d d"]
    temperature: Float[Array, ""]

    def position(self, params: Params) -> Position:
        free, _ = unconstrain(self.model.supports, params)
        return jax.scipy.linalg.solve_triangular(self.units, free, lower=True)

    def params(self, position: Position) -> Params:
        return self._constrain(position)[0]

    def log_prior(self, position: Position) -> Float[Array, ""]:
        params, log_jacobian = self._constrain(position)
        return one_number("log_prior", self.model.log_prior(params)) + log_jacobian

    def log_record(self, position: Position, record: Record) -> Float[Array, ""]:
        return one_number("log_record", self.model.log_record(self.params(position), record))

    def _constrain(self, position: Position):
        return unconstrain(self.model.supports, self.like)[1](self.units @ position)


def one_number(name: str, value: Array) -> Float[Array, ""]:
    check_shape(name, value)
    return jnp.asarray(value, jnp.float64)


def check_shape(name: str, value: Any) -> None:
    """Noise for one sum must not hide several."""
    shape = getattr(value, "shape", ())
    if shape != ():
        raise ValueError(f"{name} must return one number, got shape {shape}.")


class Answer(NamedTuple):
    """The noisy sum, to the power of the temperature, the standard deviation of its noise and, of
    simulated runs, the share of records that was clipped.
    """

    value: Array
    stddev: Float[Array, ""]
    clipped: Float[Array, ""]


class Batch(NamedTuple):
    """The first ``size`` of the indices are in it."""

    indices: Int[Array | np.ndarray, "*shape capacity"]
    size: Int[Array | np.ndarray, "*shape"]

    @property
    def is_in(self) -> Bool[Array, " capacity"]:
        return jnp.arange(self.indices.shape[-1]) < self.size


class BatchSums(NamedTuple):
    """Of the clipped log ratios of a batch, and of their squares; not hidden yet."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    size: Int[Array | np.ndarray, ""]
    clipped: Float[Array, ""]

    def log_ratio(self, num_records) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Of so many records, and the variance of this estimate."""
        factor = num_records / self.size
        return factor * self.first, factor**2 * (self.second - self.first**2 / self.size)


class Queries(eqx.Module):
    """The two questions, bound to records. ``is_study`` adds what only a simulated run may show.

    ``records`` is a dict of columns or, for records that do not fit in memory, a function that
    returns an iterator over such dicts, each time anew.
    """

    target: Target
    records: Any
    bits: int = eqx.field(static=True)
    sensitivity: float = eqx.field(static=True)
    is_study: bool = eqx.field(static=True)

    def log_ratio(
        self,
        position: Position,
        proposal: Position,
        *,
        clip: Float[ArrayLike, ""],
        noise_multiplier: Float[ArrayLike, ""],
        noise: Int[ArrayLike, ""],
    ) -> Answer:
        bound = clip * jnp.linalg.norm(proposal - position)
        total, clipped = self._total(contribute_log_ratio, (position, proposal, bound))
        unit = self.target.temperature * bound
        return self._answer(total, noise, unit, noise_multiplier * self.sensitivity, clipped)

    def poisson_log_ratio(
        self,
        batch: Batch,
        position: Position,
        proposal: Position,
        *,
        rate: float,
        clip: Float[ArrayLike, ""],
        noise_multiplier: Float[ArrayLike, ""],
        noise: Int[ArrayLike, ""],
    ) -> Answer:
        """Less half its variance from sampling; noise is in units of a contribution's bound."""
        bound = clip * jnp.linalg.norm(proposal - position)
        factor = self.target.temperature / rate
        arguments = (position, proposal, bound, factor, factor**2 * (1 - rate) / 2)
        total, clipped = self._batch_total(batch, contribute_poisson_log_ratio, arguments)
        unit = factor * bound + factor**2 * (1 - rate) / 2 * bound**2
        return self._answer(total, noise, unit, noise_multiplier, clipped)

    def batch_sums(self, batch: Batch, position: Position, proposal: Position, *, bound):
        """Exact, for each log ratio is a whole number of ``2^-BATCH_BITS`` bounds."""
        steps, clipped = self._batch_contributions(
            batch, contribute_log_ratio, (position, proposal, bound), BATCH_BITS
        )
        unit = bound * 2.0**-BATCH_BITS
        return BatchSums(unit * jnp.sum(steps), unit**2 * jnp.sum(steps**2), batch.size, clipped)

    def batch_gradient(
        self,
        batch: Batch,
        position: Position,
        *,
        rate: float,
        clip: Float[ArrayLike, ""],
        noise_multiplier: Float[ArrayLike, ""],
        noise: Int[ArrayLike, " d"],
    ) -> Answer:
        """An estimate of all records'; noise is in units of a contribution's bound."""
        total, clipped = self._batch_total(batch, contribute_gradient, (position, clip))
        unit = self.target.temperature * clip / rate
        return self._answer(total, noise, unit, noise_multiplier, clipped)

    def _batch_total(self, batch: Batch, contribute: Callable, arguments: tuple):
        steps, clipped = self._batch_contributions(batch, contribute, arguments, self.bits)
        return jnp.sum(steps, axis=0), clipped

    def _batch_contributions(self, batch: Batch, contribute: Callable, arguments, bits: int):
        """Of those in the batch, 0 of others; and the share clipped, or NaN."""
        chosen = {name: jnp.asarray(x)[batch.indices] for name, x in self.records.items()}
        each = jax.vmap(lambda record: contribute(self.target, arguments, record, bits))
        steps, is_clipped = each(chosen)
        is_in = batch.is_in
        steps = jnp.where(is_in.reshape(-1, *[1] * (steps.ndim - 1)), steps, 0.0)
        share = jnp.sum(is_clipped & is_in) / jnp.maximum(batch.size, 1)
        return steps, share if self.is_study else jnp.full((), jnp.nan)

    def gradient(
        self,
        position: Position,
        *,
        clip: Float[ArrayLike, ""],
        noise_multiplier: Float[ArrayLike, ""],
        noise: Int[ArrayLike, " d"],
    ) -> Answer:
        total, clipped = self._total(contribute_gradient, (position, clip))
        unit = self.target.temperature * clip
        return self._answer(total, noise, unit, noise_multiplier * self.sensitivity, clipped)

    def _answer(self, total, noise, unit, noise_in_units, clipped) -> Answer:
        """``unit`` is what a contribution of 1 stands for."""
        if jnp.shape(total) != jnp.shape(noise):
            raise ValueError(f"{jnp.shape(total)} sums must have as much noise, got another shape.")
        released = total.astype(jnp.int64) + noise
        value = released.astype(jnp.float64) * (unit * 2.0**-self.bits)
        return Answer(value, noise_in_units * unit, clipped)

    def _total(self, contribute: Callable, arguments: tuple) -> tuple[Array, Float[Array, ""]]:
        """The sum of whole contributions, and the share clipped, or NaN."""
        run = _shard_total if callable(self.records) else _sum_of
        parts = [
            run(contribute, self.target, arguments, shard, self.bits, self.is_study)
            for shard in self._shards()
        ]
        totals, clipped, counts = (sum(part[index] for part in parts) for index in range(3))
        return totals, clipped / counts if self.is_study else jnp.full((), jnp.nan)

    def _shards(self) -> Iterator[Records]:
        return iter(self.records()) if callable(self.records) else iter([self.records])

    def repeat(self, step: Callable, state: Any, inputs: Any) -> tuple[Any, Any]:
        """``jax.lax.scan``; over shards a loop of Python's, since the host must fetch them."""
        if not callable(self.records):
            return jax.lax.scan(step, state, inputs)
        outputs = []
        for index in range(len(jax.tree.leaves(inputs)[0])):
            state, output = step(state, jax.tree.map(lambda leaf, index=index: leaf[index], inputs))
            outputs.append(output)
        return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)


def num_bits(num_records: int, largest_noise: float) -> int:
    """So many that sums of this many records are exact, with room to spare, and that noise of this
    standard deviation, in units of a bound, fits in whole numbers.
    """
    for_noise = math.floor(math.log2(MAX_STDDEV / max(largest_noise, 1.0)))
    bits = min(40, 52 - num_records.bit_length(), for_noise)
    if bits < 10:
        raise ValueError(f"noise_multiplier must be smaller: noise is {largest_noise:.3g} bounds.")
    return bits


def contribute_log_ratio(target: Target, arguments, record: Record, bits: int):
    """A record's contribution in units of ``2^-bits`` of its bound, and whether it was clipped."""
    position, proposal, bound = arguments
    ratio = target.log_record(proposal, record) - target.log_record(position, record)
    # NaN where a record is impossible at both places, or where the bound is 0 and so is the ratio.
    steps = jnp.clip(ratio * (2.0**bits / bound), -(2.0**bits), 2.0**bits)
    return jnp.round(jnp.where(jnp.isnan(steps), 0.0, steps)), ~(jnp.abs(ratio) <= bound)


def contribute_poisson_log_ratio(target: Target, arguments, record: Record, bits: int):
    """``h(r)`` of ``batches.py`` in units of its bound: r of the batch's estimate, less half the
    variance that it brings.
    """
    position, proposal, bound, linear, quadratic = arguments
    ratio = target.log_record(proposal, record) - target.log_record(position, record)
    clipped = jnp.clip(ratio, -bound, bound)
    value = linear * clipped - quadratic * clipped**2
    steps = value * (2.0**bits / (linear * bound + quadratic * bound**2))
    # The bound is rounded too, so steps may exceed theirs by a last digit.
    steps = jnp.clip(jnp.where(jnp.isnan(steps), 0.0, steps), -(2.0**bits), 2.0**bits)
    return jnp.round(steps), ~(jnp.abs(ratio) <= bound)


def contribute_gradient(target: Target, arguments, record: Record, bits: int):
    position, bound = arguments
    gradient = jax.grad(target.log_record)(position, record)
    is_finite = jnp.all(jnp.isfinite(gradient))
    gradient = jnp.where(is_finite, gradient, 0.0)
    # By the largest entry first: the square of a large one is infinite.
    largest = jnp.max(jnp.abs(gradient))
    direction = gradient / jnp.where(largest > 0, largest, 1.0)
    length = jnp.linalg.norm(direction)
    norm = largest * length
    direction = direction / jnp.where(length > 0, length, 1.0)
    unit = jnp.nan_to_num(direction * jnp.minimum(norm / bound, JUST_BELOW_1), nan=0.0)
    return jnp.trunc(unit * 2.0**bits), ~is_finite | (norm > bound)


def _sum_of(contribute, target, arguments, records, bits, is_study):
    """Of these records: the sum of contributions as whole numbers, how many were clipped, and how
    many there are; a segment at a time, for n x d numbers would not fit.
    """

    def part(segment):
        each = jax.vmap(lambda record: contribute(target, arguments, record, bits))
        contributions, is_clipped = each(segment)
        clipped = jnp.sum(is_clipped) if is_study else jnp.zeros((), int)
        return jnp.sum(contributions, axis=0), clipped

    num_records = len(next(iter(records.values())))
    num_segments, rest = divmod(num_records, SEGMENT_RECORDS)
    last = part({name: column[num_records - rest :] for name, column in records.items()})
    if num_segments:
        whole = {
            name: column[: num_records - rest].reshape(num_segments, SEGMENT_RECORDS)
            for name, column in records.items()
        }
        last, _ = jax.lax.scan(
            lambda total, segment: (_add(total, part(segment)), None), last, whole
        )
    return (*last, num_records)


_shard_total = eqx.filter_jit(_sum_of)


def _add(first, second):
    return jax.tree.map(jnp.add, first, second)


def sensitivity(neighbours: Neighbours) -> float:
    """Of a sum of contributions from the unit ball."""
    return 2.0 if neighbours is Neighbours.REPLACE else 1.0
