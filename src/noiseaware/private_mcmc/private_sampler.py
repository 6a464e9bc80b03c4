"""What a private sampler is: settings, a start, a step, and what they ask of the records.

The samplers leave ``p(theta) prod_i f(x_i | theta)^temperature`` invariant as long as no record's
ratio is clipped. Acceptance is the penalty's [CD99; R21, Section 3.1]: with ``lambda`` the log
ratio of target and proposal densities, known with normal noise of variance v, a move is accepted
with probability ``min(1, exp(lambda + noise - v / 2))``. Averaged over the noise, the probabilities
of a move and of its reverse are in the ratio ``exp(lambda)``: ``e^x N(x; lambda - v / 2, v) =
e^lambda N(x; lambda + v / 2, v)``, so ``E min(1, e^X) = e^lambda E min(e^-X', 1)`` for normal X and
X' of these two means, and ``-X'`` has the law of the reverse move's exponent.
"""

import abc
import functools
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from noiseaware import accounting, validate
from noiseaware.private_mcmc.batches import Batches
from noiseaware.private_mcmc.host_noise import Source
from noiseaware.private_mcmc.queries import Answer, Position, Queries
from noiseaware.schema import Neighbours

OF_BATCHES = (
    "approximate: a batch's log ratio as if normal, with an estimated variance; records clipped. "
    "On a normal and a banana, unclipped: mean within 0.1 sd, sd within 6 % of the tempered "
    "posterior's"
)

SHARE_FOR_ROUNDING = 1e-3  # of delta, see queries.py


class Info(NamedTuple):
    """``is_accepted`` follows from noisy answers. The shares of records clipped do not: they are
    NaN but in simulated runs, or where nothing of the kind is asked.
    """

    is_accepted: Bool[Array, ""]
    ratios_clipped: Float[Array, ""]
    gradients_clipped: Float[Array, ""] = jnp.nan  # type: ignore[assignment]


class PrivateSampler(eqx.Module):
    """``scale`` is the unit in which steps, clips and norms are: one number, one for each
    unconstrained param, or a lower triangle L, so that unconstrained params are ``L z``. With
    ``batches`` questions go to a batch of records, not to all.
    """

    scale: eqx.AbstractVar[np.ndarray]
    batches: eqx.AbstractVar[Batches | None]

    share_for_rounding: ClassVar[float] = SHARE_FOR_ROUNDING

    @property
    def exactness(self) -> str:
        return "exact but for records that are clipped"

    @property
    def is_noisy(self) -> bool:
        """Whether answers are hidden. A multiplier of 0 is for studies of clipping alone."""
        return min(self.multipliers) > 0

    @property
    @abc.abstractmethod
    def multipliers(self) -> tuple[float, ...]:
        """Of all kinds of noise, in units of a sensitivity."""

    @abc.abstractmethod
    def num_numbers(self, iterations: int, dims: int) -> int:
        """How many numbers hide what one chain is told."""

    def smallest_noise(self, unit: float) -> float:
        """Smallest standard deviation of these whole numbers; ``unit`` is a sensitivity."""
        return min(self.multipliers) * unit

    def variation(self, iterations: int, dims: int, unit: float) -> float:
        """How far, in total variation, the numbers drawn for one chain are from what its cost
        assumes (``host_noise.py``).
        """
        return self.num_numbers(iterations, dims) / (20 * self.smallest_noise(unit) ** 2)

    def squared_mu(self, iterations: float) -> float:
        """Of one chain's cost as GDP, whose squares add; of samplers that ask all records."""
        raise ValueError(
            f"{type(self).__name__} on batches has no cost as GDP: see epsilon(iterations, delta)."
        )

    def epsilon(self, iterations: int, delta: float) -> float:
        """Of so many iterations of all chains together; of samplers that ask batches."""
        raise ValueError(f"{type(self).__name__} on all records has a cost as GDP.")

    def draw_start_noise(self, source: Source, shape: tuple[int, ...], dims: int, unit: float):
        """Numbers for ``shape`` starts; ``unit`` is a sensitivity in whole numbers."""
        return ()

    @abc.abstractmethod
    def draw_noise(self, source: Source, shape: tuple[int, ...], dims: int, unit: float):
        """Numbers for ``shape`` steps."""

    @abc.abstractmethod
    def init(self, noise: Any, position: Position, queries: Queries) -> Any:
        """The state of a chain, which has a ``position``."""

    @abc.abstractmethod
    def step(self, noise: Any, state: Any, queries: Queries) -> tuple[Any, Info]: ...

    def cost(self, iterations: int, *, neighbours: Neighbours, chains: int = 1) -> accounting.GDP:
        """Of so many iterations of each chain; chains share a budget, so their costs add."""
        squared = chains * self.squared_mu(validate.positive_integer("iterations", iterations))
        return accounting.GDP(float(np.sqrt(squared)), neighbours)


class RatioSampler(PrivateSampler):
    """A walk that asks for one log ratio an iteration.

    Args:
        step_size: standard deviation of a proposal, in units of ``scale``.
        clip: largest log ratio of a record, for a proposal one unit away.
        noise_multiplier: standard deviation of the noise in units of the sensitivity; the ``tau
            sqrt(n)`` of [R21]. With 0 nothing is hidden and records are only clipped: a random
            walk for studies.
        scale: unit of unconstrained params: one, one for each, or a lower triangle.
        batches: ``PoissonBatches`` or ``FixedBatches`` to ask, in place of all records. What is
            drawn is then approximate, and the noise multiplier in other units (``batches.py``).
    """

    step_size: np.ndarray
    clip: np.ndarray
    noise_multiplier: np.ndarray
    scale: np.ndarray
    batches: Batches | None

    def __init__(self, *, step_size, clip, noise_multiplier, scale=1.0, batches=None):
        if batches is not None and not isinstance(batches, Batches):
            raise ValueError(f"batches must be PoissonBatches or FixedBatches, got {batches!r}.")
        self.batches = batches
        self.step_size = validate.positive_number("step_size", step_size)
        self.clip = validate.positive_number("clip", clip)
        self.noise_multiplier = validate.not_negative_number("noise_multiplier", noise_multiplier)
        self.scale = as_scale(scale)

    @property
    def exactness(self):
        return super().exactness if self.batches is None else OF_BATCHES

    @property
    def multipliers(self):
        return (float(self.noise_multiplier),)

    def num_numbers(self, iterations, dims):
        return iterations

    def smallest_noise(self, unit):
        if self.batches is None:
            return super().smallest_noise(unit)
        return self.batches.smallest_noise(float(self.noise_multiplier), unit)

    def squared_mu(self, iterations):
        if self.batches is not None:
            return super().squared_mu(iterations)
        return iterations / float(self.noise_multiplier) ** 2

    def epsilon(self, iterations, delta):
        if self.batches is None:
            return super().epsilon(iterations, delta)
        return self.batches.epsilon(iterations, float(self.noise_multiplier), delta)

    def draw_ratio_noise(self, source: Source, shape: tuple[int, ...], unit: float):
        """What hides the answers of ``shape`` tests, with the batches that are asked."""
        multiplier = float(self.noise_multiplier)
        if self.batches is None:
            return source.whole_normals(shape, multiplier * unit)
        return self.batches.draw_noise(source, shape, multiplier, unit)

    def decide(
        self, queries: Queries, position: Position, proposal: Position, noise, uniform
    ) -> tuple[Position, Info]:
        """Where a symmetric proposal leads: there or, if it is not accepted, nowhere."""
        ask = queries.log_ratio
        if self.batches is not None:
            ask = functools.partial(self.batches.log_ratio, queries)
        answer = ask(
            position,
            proposal,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            noise=noise,
        )
        accepted = is_accepted(uniform, answer, queries, position, proposal)
        return jnp.where(accepted, proposal, position), Info(accepted, answer.clipped)


def as_scale(value: Any) -> np.ndarray:
    scale = validate.finite("scale", value)
    if scale.ndim < 2:
        return validate.positive("scale", scale)
    is_square = scale.ndim == 2 and scale.shape[0] == scale.shape[1]
    if not is_square or np.any(np.triu(scale, 1)) or not np.all(np.diagonal(scale) > 0):
        raise ValueError("scale must be a lower triangle with a positive diagonal, if a matrix.")
    return scale


def is_accepted(
    uniform: Float[Array, ""],
    answer: Answer,
    queries: Queries,
    position: Position,
    proposal: Position,
    log_proposal_ratio: Float[Array, ""] | float = 0.0,
) -> Bool[Array, ""]:
    """By the penalty's test. Not a number, as a prior's density may be far out, counts as no."""
    target = queries.target
    log_ratio = target.log_prior(proposal) - target.log_prior(position) + log_proposal_ratio
    return jnp.log(uniform) < log_ratio + answer.value - answer.stddev**2 / 2
