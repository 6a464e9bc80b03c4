"""Hamiltonian Monte Carlo with noisy gradients and the penalty's test [R21, Section 4.2, Alg. 3].

The state is a position z and a noisy gradient g there, with the target ``pi(z) N(g; G(z), v I)``,
where G is the gradient of log pi with records clipped, and v the variance of its noise. A path of
leapfrog steps from (z, p), p a fresh normal momentum, asks for a noisy gradient at the end of every
step and ends at (z', p') with the gradient g' asked for last. From ``(z', -p')`` with g' the same
noisy gradients in reverse order lead back to ``(z, -p)`` with g, and their densities are the same
factors; every step preserves volume, since a gradient moves p alone. So the proposal ratio is 1
whatever the noise and the clipping of gradients, and the penalty's test of
``log pi(z') - log pi(z) + |p|^2 / 2 - |p'|^2 / 2`` leaves the target invariant. On rejection z and
g stay: keeping g' in place of g would not be exact.

Reusing g, k iterations of L steps cost ``k L + 1`` gradients and k ratios [R21, Theorem 11]:
``GDP(sqrt(k / m_l^2 + (k L + 1) / m_g^2))`` with the multipliers m_l and m_g. The mass matrix is
the unit one in units of ``scale``: for a scale of each param diagonal, ``1 / scale^2``, in
unconstrained params, where the norm that is clipped is scaled too. Without reuse, as in the
author's own runs, every path begins with a gradient asked for anew: ``k (L + 1)`` gradients, and
the same target.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from noiseaware import validate
from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.private_sampler import (
    Info,
    PrivateSampler,
    as_scale,
    is_accepted,
)
from noiseaware.private_mcmc.queries import Answer, Position, Queries


class State(NamedTuple):
    position: Position
    gradient: Float[Array, " d"]


class Noise(NamedTuple):
    momentum: Float[ArrayLike, " d"]
    gradients: Int[ArrayLike, "steps d"]
    ratio: Int[ArrayLike, ""]
    uniform: Float[ArrayLike, ""]


class HamiltonianPenalty(PrivateSampler):
    """Paths of ``num_steps`` leapfrog steps.

    Args:
        step_size: of the leapfrog, in units of ``scale``.
        clip: largest log ratio of a record, for a proposal one unit away.
        gradient_clip: largest norm of a record's gradient, in units of ``scale``.
        noise_multiplier, gradient_noise_multiplier: standard deviation of the noise of a ratio and
            of a gradient in units of their sensitivity; the ``tau sqrt(n)`` of [R21]. With 0
            nothing is hidden and records are only clipped: for studies.
        scale: unit of unconstrained params: one, one for each, or a lower triangle.
        reuse_gradient: whether a path begins with the gradient at hand.
    """

    num_steps: int = eqx.field(static=True)
    reuse_gradient: bool = eqx.field(static=True)
    step_size: np.ndarray
    clip: np.ndarray
    gradient_clip: np.ndarray
    noise_multiplier: np.ndarray
    gradient_noise_multiplier: np.ndarray
    scale: np.ndarray
    batches: None

    def __init__(
        self,
        *,
        step_size,
        num_steps,
        clip,
        gradient_clip,
        noise_multiplier,
        gradient_noise_multiplier,
        scale=1.0,
        reuse_gradient=True,
    ):
        self.reuse_gradient, self.batches = reuse_gradient, None
        self.num_steps = validate.positive_integer("num_steps", num_steps)
        self.step_size = validate.positive_number("step_size", step_size)
        self.clip = validate.positive_number("clip", clip)
        self.gradient_clip = validate.positive_number("gradient_clip", gradient_clip)
        self.noise_multiplier = validate.not_negative_number("noise_multiplier", noise_multiplier)
        self.gradient_noise_multiplier = validate.not_negative_number(
            "gradient_noise_multiplier", gradient_noise_multiplier
        )
        self.scale = as_scale(scale)

    @property
    def multipliers(self):
        return float(self.noise_multiplier), float(self.gradient_noise_multiplier)

    def num_numbers(self, iterations, dims):
        return iterations * (1 + self.num_gradients * dims) + self.reuse_gradient * dims

    def squared_mu(self, iterations):
        ratios = iterations / float(self.noise_multiplier) ** 2
        num_gradients = iterations * self.num_gradients + self.reuse_gradient
        return ratios + num_gradients / float(self.gradient_noise_multiplier) ** 2

    @property
    def num_gradients(self) -> int:
        """Of an iteration."""
        return self.num_steps + (not self.reuse_gradient)

    def draw_start_noise(self, source, shape, dims, unit):
        if not self.reuse_gradient:
            return ()
        return self._gradient_noise(source, (*shape, dims), unit)

    def draw_noise(self, source, shape, dims, unit):
        return Noise(
            normals(source, (*shape, dims)),
            self._gradient_noise(source, (*shape, self.num_gradients, dims), unit),
            source.whole_normals(shape, float(self.noise_multiplier) * unit),
            source.uniforms(shape),
        )

    def _gradient_noise(self, source, shape, unit):
        return source.whole_normals(shape, float(self.gradient_noise_multiplier) * unit)

    def init(self, noise, position, queries):
        if not self.reuse_gradient:
            return State(position, jnp.zeros_like(position))
        return State(position, self._gradient(queries, position, noise)[0])

    def step(self, noise, state, queries):
        (proposal, momentum, gradient), clipped = self.path(noise, state, queries)
        answer = queries.log_ratio(
            state.position,
            proposal,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            noise=noise.ratio,
        )
        kinetic = (jnp.sum(noise.momentum**2) - jnp.sum(momentum**2)) / 2
        accepted = is_accepted(noise.uniform, answer, queries, state.position, proposal, kinetic)
        kept = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), State(proposal, gradient), state
        )
        return kept, Info(accepted, answer.clipped, jnp.mean(clipped))

    def path(self, noise: Noise, state: State, queries: Queries):
        """Where it ends, ``(position, momentum, gradient)``, and the shares clipped on the way."""

        def leap(at, gradient_noise):
            position, momentum, gradient = at
            momentum = momentum + self.step_size / 2 * gradient
            position = position + self.step_size * momentum
            gradient, clipped = self._gradient(queries, position, gradient_noise)
            return (position, momentum + self.step_size / 2 * gradient, gradient), clipped

        gradients, first = jnp.asarray(noise.gradients), state.gradient
        if not self.reuse_gradient:
            first, _ = self._gradient(queries, state.position, gradients[0])
            gradients = gradients[1:]
        return queries.repeat(leap, (state.position, noise.momentum, first), gradients)

    def _gradient(self, queries: Queries, position: Position, noise) -> tuple[Array, Array]:
        answer: Answer = queries.gradient(
            position,
            clip=self.gradient_clip,
            noise_multiplier=self.gradient_noise_multiplier,
            noise=noise,
        )
        of_prior = jax.grad(queries.target.log_prior)(position)
        return answer.value + of_prior, answer.clipped
