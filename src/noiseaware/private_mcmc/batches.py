"""Questions to a random batch of records: which records, what is asked, what it costs.

A test of the penalty algorithm on a batch [R21, Section 3.3] is approximate. If the log ratio's
error from sampling were normal with a known variance v_b, ``exp(lambda - (v + v_b) / 2)`` would
leave the target invariant, v the variance of the noise (``private_sampler.py``). Here v_b is
estimated from the batch, so ``lambda - v_b / 2`` is what must be hidden; and the estimate is not
independent of the error. On a normal and a banana, with 100 of 2,000 records a batch, the mean is
off by less than 0.1 sd and the sd by less than 6 % (``tests/laws/test_batch_samplers.py``). A
record's log ratio is clipped to ``+-B``, ``B = clip |z' - z|``.

**Poisson batches** have each record with probability q. The question is a sum over the batch,
divided by q and never by the batch's size, which is secret,

    sum h(r_i),  h(r) = (T / q) r - T^2 (1 - q) r^2 / (2 q^2),

whose mean is ``lambda - v_b / 2``, and to which a record contributes at most ``T B / q + T^2 (1 -
q) B^2 / (2 q^2)``. Cost: ``pld`` of ``subsampling.py``, with noise in units of that. Batches above
their capacity are cut, which adds ``(1 + e^epsilon) k OVERFLOW`` to delta for k questions: a
thousandth of delta is kept for that.

**Fixed batches** have b records, drawn without replacement, as in the thesis. With ``a = n T / b``
the question is

    a sum r_i - (1 - b / n) a^2 (sum r_i^2 - (sum r_i)^2 / b) / 2,

of sensitivity ``2 a B + 2 (1 - 1 / b) (a B)^2`` at most: as a function of one r the squares around
the mean are ``const + (1 - 1 / b) (r - m)^2``, m the mean of the others, and ``|r - m| <= 2 B``.
([R21, Lemma 1] has 3 in place of the second 2.) Cost: ``rdp`` of ``subsampling.py`` [R21, Th. 8].

A batch comes from the host's random bits, and exactly: indices are whole numbers of which none is
likelier than another; what repeats an earlier index of a batch is drawn anew, in which names of
records play no part, so every batch of a size is as likely as any other; and the size of a Poisson
batch is binomial to the last bit.
"""

import abc
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from noiseaware import validate
from noiseaware.private_mcmc.host_noise import Shape, Source
from noiseaware.private_mcmc.queries import Answer, Batch, Position, Queries, sensitivity
from noiseaware.private_mcmc.subsampling import (
    OVERFLOW,
    capacity,
    epsilon_of_fixed_batches,
    epsilon_of_poisson_batches,
    rdp_of_gaussian,
)
from noiseaware.schema import Neighbours

ANSWER_BITS = 30  # of the grid that an answer of a fixed batch is rounded to
SHARE_FOR_CUTS = 1e-3  # of delta
MAX_EXPONENT = 700.0
MAX_FIXED_SIZE = 2**16  # so that the sums of a batch and their rounding are exact enough


class RatioNoise(NamedTuple):
    batch: Batch
    ratio: Int[ArrayLike, ""]


class Batches(eqx.Module):
    """Of ``size`` records out of ``num_records``, which are public."""

    num_records: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __init__(self, *, num_records: int, size: int):
        self.num_records = validate.positive_integer("num_records", num_records)
        self.size = validate.positive_integer("size", size)
        if self.size > self.num_records:
            raise ValueError(f"size must be at most num_records, {num_records}, got {size}.")

    @property
    def rate(self) -> float:
        return self.size / self.num_records

    @property
    @abc.abstractmethod
    def accountant(self) -> str: ...

    @abc.abstractmethod
    def epsilon(self, num_questions: int, noise_multiplier: float, delta: float) -> float: ...

    @abc.abstractmethod
    def smallest_noise(self, noise_multiplier: float, unit: float) -> float:
        """Standard deviation of the whole noise; ``unit`` is the sensitivity of a sum over all
        records in whole numbers.
        """

    @abc.abstractmethod
    def draw(self, source: Source, shape: Shape) -> Batch: ...

    def draw_noise(
        self, source: Source, shape: Shape, noise_multiplier: float, unit: float
    ) -> RatioNoise:
        noise = source.whole_normals(shape, self.smallest_noise(noise_multiplier, unit))
        return RatioNoise(self.draw(source, shape), noise)

    @abc.abstractmethod
    def log_ratio(
        self,
        queries: Queries,
        position: Position,
        proposal: Position,
        *,
        clip: Float[ArrayLike, ""],
        noise_multiplier: Float[ArrayLike, ""],
        noise: RatioNoise,
    ) -> Answer:
        """Tempered, and less half the variance that comes from sampling."""


class PoissonBatches(Batches):
    """Each record with probability ``size / num_records``, whatever the others do. A
    ``noise_multiplier`` is in units of the largest contribution of a record.
    """

    @property
    def accountant(self):
        return "pld"

    @property
    def capacity(self) -> int:
        return capacity(self.num_records, self.rate)

    def epsilon(self, num_questions, noise_multiplier, delta):
        rest = (1 - SHARE_FOR_CUTS) * delta
        epsilon = epsilon_of_poisson_batches(num_questions, self.rate, noise_multiplier, rest)
        of_cuts = (1 + math.exp(min(epsilon, MAX_EXPONENT))) * num_questions * OVERFLOW
        return epsilon if of_cuts <= SHARE_FOR_CUTS * delta else math.inf

    def smallest_noise(self, noise_multiplier, unit):
        return noise_multiplier * unit / sensitivity(Neighbours.REPLACE)

    def draw(self, source, shape):
        count = math.prod(shape)
        sizes = [source.binomial(self.num_records, self.size) for _ in range(count)]
        return _padded(source, shape, self.num_records, sizes, self.capacity)

    def log_ratio(self, queries, position, proposal, *, clip, noise_multiplier, noise):
        return queries.poisson_log_ratio(
            noise.batch, position, proposal, rate=self.rate, clip=clip,
            noise_multiplier=noise_multiplier, noise=noise.ratio,
        )  # fmt: skip


class FixedBatches(Batches):
    """As many records each time. A ``noise_multiplier`` is in units of the sensitivity."""

    def __init__(self, *, num_records: int, size: int):
        super().__init__(num_records=num_records, size=size)
        if self.size > MAX_FIXED_SIZE:
            raise ValueError(f"size must be at most {MAX_FIXED_SIZE}, got {size}.")

    @property
    def accountant(self):
        return "rdp"

    def epsilon(self, num_questions, noise_multiplier, delta):
        of_batch = rdp_of_gaussian(noise_multiplier)
        return epsilon_of_fixed_batches(num_questions, self.rate, of_batch, delta)

    def smallest_noise(self, noise_multiplier, unit):
        return noise_multiplier * 2.0**ANSWER_BITS

    def draw(self, source, shape):
        sizes = [self.size] * math.prod(shape)
        return _padded(source, shape, self.num_records, sizes, self.size)

    def log_ratio(self, queries, position, proposal, *, clip, noise_multiplier, noise):
        """In steps of a grid, two less than ``2^ANSWER_BITS`` a sensitivity: rounding, and the
        floating point before it, whose error is below ``2^-20`` steps a record, add two at most.
        """
        bound = clip * jnp.linalg.norm(proposal - position)
        sums = queries.batch_sums(noise.batch, position, proposal, bound=bound)
        size = self.num_records * queries.target.temperature
        log_ratio, variance = sums.log_ratio(size)
        variance = variance * (1 - self.rate)
        most = bound * size / self.size
        sensitivity = 2 * most + 2 * (1 - 1 / self.size) * most**2
        step = sensitivity / (2.0**ANSWER_BITS - 2)
        steps = jnp.round((log_ratio - variance / 2) / jnp.where(step > 0, step, 1.0))
        released = steps.astype(jnp.int64) + noise.ratio
        stddev = noise_multiplier * 2.0**ANSWER_BITS * step
        return Answer(released.astype(jnp.float64) * step, stddev, sums.clipped)


def _padded(source: Source, shape: Shape, num_records: int, sizes, capacity: int) -> Batch:
    indices = np.zeros((len(sizes), capacity), np.int32)
    sizes = np.minimum(sizes, capacity)
    for row, size in zip(indices, sizes, strict=True):
        row[:size] = distinct(source, num_records, size)
    return Batch(indices.reshape(*shape, capacity), sizes.reshape(shape))


def distinct(source: Source, num_records: int, size: int) -> np.ndarray:
    """Indices of so many different records, in no particular order."""
    if 2 * size > num_records:
        left_out = distinct(source, num_records, num_records - size)
        return np.delete(np.arange(num_records, dtype=np.int32), left_out)
    chosen = source.whole_numbers(size, num_records).astype(np.int32)
    while len(repeated := _repeated(chosen)):
        chosen[repeated] = source.whole_numbers(len(repeated), num_records)
    return chosen


def _repeated(chosen: np.ndarray) -> np.ndarray:
    """Where an index stands that stands earlier too."""
    order = np.argsort(chosen, kind="stable")
    is_repeat = chosen[order][1:] == chosen[order][:-1]
    return order[1:][is_repeat]
