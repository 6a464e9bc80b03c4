"""Stochastic gradient Langevin dynamics with private gradients [WFS15; LCLC19]: approximate.

A step of size h is ``z' = z + (h / 2) (grad log p(z) + G) + N(0, w)``: G estimates the gradient of
the log likelihood from a Poisson batch, each record's clipped, with normal noise that hides it.
That noise moves z' by a normal of variance ``v = (h / 2)^2`` times its own, so w is ``h - v``, or 0
where v exceeds h already. As h goes to 0 with v below h the chain approaches the target. Nothing
is accepted or rejected, so three errors stay: of the discretisation; of the batch, whose variance
is not taken off; and of noise above h, which widens what is drawn. With h = 0.1 squared sds the sd
is off by less than 6 % on a normal and 12 % on a banana (``tests/laws/test_batch_samplers.py``).

Cost: ``pld`` of ``subsampling.py``, noise in units of a record's largest gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from noiseaware import validate
from noiseaware.private_mcmc.batches import PoissonBatches
from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.private_sampler import Info, PrivateSampler, as_scale
from noiseaware.private_mcmc.queries import Batch, Position

EXACTNESS = (
    "approximate: Langevin steps without a test, gradients of a batch whose variance is not "
    "taken off; records clipped. On a normal and a banana with steps of 0.1: mean within 0.1 sd, "
    "sd within 12 % of the tempered posterior's"
)


class State(NamedTuple):
    position: Position


class Noise(NamedTuple):
    batch: Batch
    gradient: Int[ArrayLike, " d"]
    step: Float[ArrayLike, " d"]


class Langevin(PrivateSampler):
    """Steps along noisy gradients of batches.

    Args:
        step_size: h, in squared units of ``scale``.
        gradient_clip: largest norm of a record's gradient, in units of ``scale``.
        noise_multiplier: standard deviation of a gradient's noise in units of ``gradient_clip``.
        batches: ``PoissonBatches``.
        scale: unit of unconstrained params: one, one for each, or a lower triangle.
    """

    step_size: np.ndarray
    gradient_clip: np.ndarray
    noise_multiplier: np.ndarray
    scale: np.ndarray
    batches: PoissonBatches

    def __init__(self, *, step_size, gradient_clip, noise_multiplier, batches, scale=1.0):
        if not isinstance(batches, PoissonBatches):
            raise ValueError(f"batches must be PoissonBatches for Langevin, got {batches!r}.")
        self.batches = batches
        self.step_size = validate.positive_number("step_size", step_size)
        self.gradient_clip = validate.positive_number("gradient_clip", gradient_clip)
        self.noise_multiplier = validate.not_negative_number("noise_multiplier", noise_multiplier)
        self.scale = as_scale(scale)

    @property
    def exactness(self):
        return EXACTNESS

    @property
    def multipliers(self):
        return (float(self.noise_multiplier),)

    def num_numbers(self, iterations, dims):
        return iterations * dims

    def smallest_noise(self, unit):
        return self.batches.smallest_noise(float(self.noise_multiplier), unit)

    def epsilon(self, iterations, delta):
        return self.batches.epsilon(iterations, float(self.noise_multiplier), delta)

    def draw_noise(self, source, shape, dims, unit):
        hiding = source.whole_normals((*shape, dims), self.smallest_noise(unit))
        return Noise(self.batches.draw(source, shape), hiding, normals(source, (*shape, dims)))

    def init(self, noise, position, queries):
        return State(position)

    def step(self, noise, state, queries):
        answer = queries.batch_gradient(
            noise.batch, state.position, rate=self.batches.rate, clip=self.gradient_clip,
            noise_multiplier=self.noise_multiplier, noise=noise.gradient,
        )  # fmt: skip
        half = self.step_size / 2
        drift = half * (jax.grad(queries.target.log_prior)(state.position) + answer.value)
        missing = jnp.maximum(self.step_size - (half * answer.stddev) ** 2, 0.0)
        position: Array = state.position + drift + jnp.sqrt(missing) * noise.step
        return State(position), Info(jnp.ones((), bool), jnp.asarray(jnp.nan), answer.clipped)
