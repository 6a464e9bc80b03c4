"""Barker's test on a batch of records [Bar65; SPCC17; HJDH19; R21, Section 3.2]: approximate.

A move is accepted if ``lambda + V > 0``, V a standard logistic. With lambda estimated from a batch
of b records without replacement, ``(n T / b) sum r_i``, whose sampling variance v is estimated from
the batch (the less, the more of the n records it has), one adds ``N(0, C - v)``, so that the error
in all is about ``N(0, C)``, and a correction W for which ``N(0, C) + W`` is about logistic. ``C =
2``, and records are clipped to ``T |r_i| <= sqrt(b) / n``, so ``v <= 1``: the noise that hides the
batch is N(0, 1) at least.

No W makes the sum exactly logistic at C = 2. The one here, on five points, has a distribution
function within CORRECTION_ERROR of the logistic's; a linear programme over laws on a fine grid
finds none that is closer by a hundredth of that (``tests/test_subsampling.py``). Three things are
approximate: W, the batch's sum as if normal, and its estimated variance; and the clip, which no
setting moves, is narrow unless T is small. On a normal and a banana with at most 6 % of ratios
clipped the sd is off by less than 15 %; the more are clipped, the wider, without a bound
(``tests/laws/test_batch_samplers.py``).

Cost of k moves: ``k epsilon(a)`` of RDP for whole orders ``a < b / 5`` [R21, Theorem 7], which is
the theorem of ``subsampling.py`` with

    epsilon'(a) = 5 / (2 b) + log(2 b / (b - 5 a)) / (2 (a - 1)) + 2 a / (b - 5 a).

What leaves a step is one bit, whether the noisy sum is positive. The noise has a variance that
depends on the batch, so it is a float64, by inversion of a uniform of 52 bits, and on no grid: that
moves the probability of the bit by ``2^-51`` at most, which is added up and stated. The sum itself
is rounded too, as if lambda were off by ``2^-52 sqrt(b)``. That is ``2^-52 b`` of what one record
moves lambda by, far less than the theorem has room for while b is below 10^7: v moves by ``4 / b``
at most, for which it takes ``5 / b``.
"""

import math
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from noiseaware import validate
from noiseaware.private_mcmc.batches import FixedBatches
from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.private_sampler import Info, PrivateSampler, as_scale
from noiseaware.private_mcmc.queries import Batch, Position
from noiseaware.private_mcmc.subsampling import epsilon_of_fixed_batches

VARIANCE = 2.0  # C
# The correction: 0, or either of two distances on either side, with these probabilities.
DISTANCES = (0.0, 2.9513, 9.2210)
PROBABILITIES = (1 - 0.131796 - 0.002235, 0.131796, 0.002235)
CORRECTION_ERROR = 6e-4
MIN_SIZE = 10  # at which no order has a cost [R21, Theorem 7]
EXACTNESS = (
    "approximate: a batch's sum as if normal, a correction within 0.0006 of the logistic, and "
    "records clipped to sqrt(batch) / (n temperature). If at most 6 % of them are clipped, on a "
    "normal and a banana: mean within 0.1 sd, sd within 15 % of the tempered posterior's; if many, "
    "anything"
)


class State(NamedTuple):
    position: Position


class Noise(NamedTuple):
    proposal: Float[ArrayLike, " d"]
    batch: Batch
    normal: Float[ArrayLike, ""]
    correction: Float[ArrayLike, ""]


class Barker(PrivateSampler):
    """All params move at once.

    Args:
        step_size: standard deviation of a proposal, in units of ``scale``.
        batches: ``FixedBatches``.
        scale: unit of unconstrained params: one, one for each, or a lower triangle.
    """

    step_size: np.ndarray
    scale: np.ndarray
    batches: FixedBatches

    share_for_rounding: ClassVar[float] = 1e-2  # 52 bits are few where epsilon is large

    def __init__(self, *, step_size, batches, scale=1.0):
        if not isinstance(batches, FixedBatches) or batches.size <= MIN_SIZE:
            raise ValueError(
                f"batches must be FixedBatches of a size above {MIN_SIZE}, got {batches}."
            )
        self.batches = batches
        self.step_size = validate.positive_number("step_size", step_size)
        self.scale = as_scale(scale)

    @property
    def exactness(self):
        return EXACTNESS

    @property
    def multipliers(self):
        return (1.0,)

    def num_numbers(self, iterations, dims):
        return iterations

    def variation(self, iterations, dims, unit):
        return iterations * 2.0**-51

    def epsilon(self, iterations, delta):
        return epsilon_of_fixed_batches(iterations, self.batches.rate, self._rdp_of_batch, delta)

    def _rdp_of_batch(self, order: int) -> float:
        size = self.batches.size
        left = size - 5 * order
        if left <= 0:
            return math.inf
        from_variance = math.log(2 * size / left) / (2 * (order - 1))
        return 5 / (2 * size) + from_variance + 2 * order / left

    def draw_noise(self, source, shape, dims, unit):
        return Noise(
            normals(source, (*shape, dims)),
            self.batches.draw(source, shape),
            normals(source, shape),
            corrections(source.uniforms(shape)),
        )

    def init(self, noise, position, queries):
        return State(position)

    def step(self, noise, state, queries):
        proposal = state.position + self.step_size * noise.proposal
        target = queries.target
        log_ratio, variance, clipped = self.estimate(noise.batch, state.position, proposal, queries)
        known = target.log_prior(proposal) - target.log_prior(state.position)
        noisy = log_ratio + jnp.sqrt(VARIANCE - variance) * noise.normal + noise.correction
        accepted = noisy + known > 0
        return State(jnp.where(accepted, proposal, state.position)), Info(accepted, clipped)

    def estimate(self, batch: Batch, position: Position, proposal: Position, queries):
        """The log ratio of all records from those of a batch, not hidden yet, its variance over
        batches without replacement, and the share of ratios clipped.
        """
        size = self.batches.num_records * queries.target.temperature
        bound = math.sqrt(self.batches.size) / size
        sums = queries.batch_sums(batch, position, proposal, bound=bound)
        log_ratio, variance = sums.log_ratio(size)
        return log_ratio, variance * (1 - self.batches.rate), sums.clipped


def corrections(uniforms: np.ndarray) -> np.ndarray:
    """By inversion, symmetric around 0."""
    signs = np.where(uniforms < 0.5, -1.0, 1.0)
    ends = np.cumsum(PROBABILITIES)
    chosen = np.searchsorted(ends, np.abs(2 * uniforms - 1))
    return signs * np.asarray(DISTANCES)[np.minimum(chosen, len(ends) - 1)]
