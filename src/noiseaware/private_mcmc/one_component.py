"""The penalty algorithm with one-component updates [YE19; R21, Section 3.1].

A component is chosen at random and moved by ``step N(0, 1)``: symmetric as in ``penalty.py``, at
the same cost, with a shorter proposal, so less noise.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.private_sampler import RatioSampler
from noiseaware.private_mcmc.queries import Position


class State(NamedTuple):
    position: Position


class Noise(NamedTuple):
    component: Float[ArrayLike, ""]
    proposal: Float[ArrayLike, ""]
    ratio: Any
    uniform: Float[ArrayLike, ""]


class OneComponentPenalty(RatioSampler):
    """One param moves at a time."""

    def draw_noise(self, source, shape, dims, unit):
        return Noise(
            source.uniforms(shape),
            normals(source, shape),
            self.draw_ratio_noise(source, shape, unit),
            source.uniforms(shape),
        )

    def init(self, noise, position, queries):
        return State(position)

    def step(self, noise, state, queries):
        component = chosen(noise.component, state.position.size)
        proposal = state.position.at[component].add(self.step_size * noise.proposal)
        position, info = self.decide(queries, state.position, proposal, noise.ratio, noise.uniform)
        return State(position), info


def chosen(uniform: Float[Array, ""], dims: int) -> Int[Array, ""]:
    return jnp.floor(uniform * dims).astype(int)
