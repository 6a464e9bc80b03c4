"""The penalty algorithm with a guided walk over components [Gus98; YE19; R21, Section 3.1].

The state is a position and a direction of each component, of which the target's are uniform. A
component j is chosen at random and moved by ``step |N(0, 1)|`` in its direction; on rejection the
direction turns. Two moves make up the step, and each leaves the target invariant: to propose
``(z', -d_j)`` and accept by the penalty's test, which is its own reverse since from there the same
proposal leads back; then to turn ``d_j`` in any case. Cost as in ``penalty.py``.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.one_component import chosen
from noiseaware.private_mcmc.private_sampler import RatioSampler
from noiseaware.private_mcmc.queries import Position


class State(NamedTuple):
    position: Position
    directions: Float[Array, " d"]


class Noise(NamedTuple):
    component: Float[ArrayLike, ""]
    distance: Float[ArrayLike, ""]
    ratio: Any
    uniform: Float[ArrayLike, ""]


class GuidedPenalty(RatioSampler):
    """One param moves at a time, on in its direction until a move is rejected."""

    def draw_start_noise(self, source, shape, dims, unit):
        return np.where(source.uniforms((*shape, dims)) < 0.5, -1.0, 1.0)

    def draw_noise(self, source, shape, dims, unit):
        return Noise(
            source.uniforms(shape),
            np.abs(normals(source, shape)),
            self.draw_ratio_noise(source, shape, unit),
            source.uniforms(shape),
        )

    def init(self, noise, position, queries):
        return State(position, noise)

    def step(self, noise, state, queries):
        component = chosen(noise.component, state.position.size)
        move = self.step_size * noise.distance * state.directions[component]
        proposal = state.position.at[component].add(move)
        position, info = self.decide(queries, state.position, proposal, noise.ratio, noise.uniform)
        turned = state.directions.at[component].multiply(-1.0)
        directions = jnp.where(info.is_accepted, state.directions, turned)
        return State(position, directions), info
