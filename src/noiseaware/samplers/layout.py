"""How a sweep is laid out: blocks that are accepted as one, segments that bound the memory.

n records are covered by the fewest segments of one length up to a bound; the last is moved back to
end at record n, so it repeats a few records of the one before. None of this changes the target.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import special

from noiseaware.schema import Record, Records


class Layout(NamedTuple):
    """Shapes, so fixed before compiling."""

    block_size: int = 1  # records accepted or rejected as one
    segment_size: int = 4096  # records proposed in one call
    stand_in_size: int = 1024  # records in a segment of stand-ins, see interweaving
    unroll: int = 1  # blocks visited in one turn of the compiled loop
    is_one_by_one: bool = False  # blocks of one chain after the other, not of all side by side


class _Costs(NamedTuple):
    """Rough seconds a block visited, and a record proposed: they set the speed, not the target."""

    block: float
    record: float


CPU = _Costs(1e-7, 1.5e-7)
GPU = _Costs(2.6e-6, 7e-10)
MAX_BLOCK_SIZE = 2**16
MIN_RECORDS_FOR_BLOCKS = 1000  # with fewer, compiling for another block size costs more
MANY_SUMS = 32  # with more a CPU visits blocks in half the time if it visits four in one turn
# XLA compiles a CPU's loop to one function if a turn of it touches little memory, as the visits of
# one chain do whose sums are few; else it calls a function for every operation.
FEW_SUMS, FEW_CHAINS = 16, 8


def choose(
    is_gpu: bool,
    num_records: int,
    num_sums: int,
    num_chains: int,
    swap_variance: float,
    num_abreast: int | None = None,
) -> Layout:
    """The block size with the most accepted records a second, and segments that fit the device.

    ``swap_variance`` is that of a swap's change of T, in units of the noise and summed over its
    coordinates. A block of k is accepted with probability about ``2 Phi(-sqrt(k variance) / 2)``
    and takes the time of one visit, shared by all chains, and of k proposals. ``num_abreast``
    chains travel in one call, if they are all of one data set.
    """
    costs = GPU if is_gpu else CPU
    are_few = num_abreast is not None and 1 < num_abreast <= FEW_CHAINS
    shape = Layout(
        unroll=4 if num_sums > MANY_SUMS else 1,
        is_one_by_one=are_few and 1 < num_sums <= FEW_SUMS,
    )
    if is_gpu:
        shape = Layout(segment_size=2**21, stand_in_size=2**17, unroll=4)
    largest = min(num_records, shape.segment_size, MAX_BLOCK_SIZE)
    sizes = 2 ** np.arange(int(np.log2(largest)) + 1)
    acceptance = 2 * special.ndtr(-np.sqrt(sizes * swap_variance) / 2)
    seconds = costs.block / (sizes * num_chains) + costs.record
    is_known = 0 < swap_variance < np.inf  # 0: too rare an event to have been seen
    if not is_known or (not is_gpu and num_records < MIN_RECORDS_FOR_BLOCKS):
        return shape
    return shape._replace(block_size=int(sizes[np.argmax(acceptance / seconds)]))


def split(records: Records, size: int) -> tuple[int, int, int]:
    """(number of records, number of segments, their length, at most ``size``)."""
    num_records = len(jax.tree.leaves(records)[0])
    num_segments = -(-num_records // size)
    return num_records, num_segments, -(-num_records // num_segments)


def take(records: Records, first: Int[Array, ""] | int, size: int) -> Records:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, size), records)


def put(records: Records, part: Records, first: Int[Array, ""] | int) -> Records:
    return jax.tree.map(
        lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, 0), records, part
    )


def total_of(
    contribution: Callable[[Record], Float[Array, " m"]],
    records: Records,
    size: int,
    *,
    rebuild: Callable[[Records], Records] = lambda segment: segment,
    begin: Any = 0,
    end: Any = None,
) -> Float[Array, " m"]:
    """``sum_i contribution(record_i)`` over segments ``begin`` to ``end``, by default over all.

    ``rebuild`` makes a segment's records of what is given in their place, their noise perhaps.
    """
    num_records, num_segments, size = split(records, size)
    if num_segments == 1:
        return sum_of(contribution, rebuild(records))

    def sum_of_segment(index):
        first = jnp.minimum(index * size, num_records - size)
        is_new = first + jnp.arange(size) >= index * size
        return sum_of(contribution, rebuild(take(records, first, size)), is_new)

    one = jax.eval_shape(sum_of_segment, 0)
    return jax.lax.fori_loop(
        begin,
        num_segments if end is None else end,
        lambda index, total: total + sum_of_segment(index),
        jnp.zeros(one.shape, one.dtype),
    )


def sum_of(
    contribution: Callable[[Record], Float[Array, " m"]],
    records: Records,
    is_counted: Bool[Array, " n"] | None = None,
) -> Float[Array, " m"]:
    """Over all records, or those counted; in bulk where the contribution can do that."""
    if _has_bulk(type(contribution)):
        return cast(Any, contribution).in_bulk(records, is_counted)
    terms = jax.vmap(contribution)
    one = jax.eval_shape(terms, records)
    is_few = 1 < one.shape[1] <= MANY_SUMS and jnp.issubdtype(one.dtype, jnp.floating)
    if is_few and jax.default_backend() == "cpu":
        rows = jax.vmap(contribution, out_axes=1)(records)
        return _sum_of_rows(rows if is_counted is None else jnp.where(is_counted, rows, 0))
    return jnp.sum(
        terms(records) if is_counted is None else jnp.where(is_counted[:, None], terms(records), 0),
        axis=0,
    )


def _sum_of_rows(terms: Float[Array, "m n"]) -> Float[Array, " m"]:
    """All rows in one pass, in which XLA can make them: for ``jnp.sum`` it would first write
    ``m x n`` numbers.
    """
    rows = tuple(terms)
    zeros = tuple(jnp.zeros_like(row, shape=()) for row in rows)

    def add(one, other):
        return tuple(a + b for a, b in zip(one, other, strict=True))

    return jnp.stack(jax.lax.reduce(rows, zeros, add, (0,)))


def _has_bulk(kind: type) -> bool:
    """Not where a subclass has contributions of its own: the sum would be of its parent's."""
    first = next(each for each in kind.__mro__ if "__call__" in vars(each))
    return "in_bulk" in vars(first)
