"""The penalty algorithm with a normal random walk [CD99; YE19; R21, Section 3.1].

A proposal ``z + step N(0, I)`` is symmetric, so the penalty's test (``private_sampler.py``) leaves
the target invariant. An iteration asks for one log ratio: k iterations cost
``GDP(sqrt(k) / noise_multiplier)`` [R21, Theorem 6].
"""

from typing import Any, NamedTuple

from jaxtyping import ArrayLike, Float

from noiseaware.private_mcmc.host_noise import normals
from noiseaware.private_mcmc.private_sampler import RatioSampler
from noiseaware.private_mcmc.queries import Position


class State(NamedTuple):
    position: Position


class Noise(NamedTuple):
    proposal: Float[ArrayLike, " d"]
    ratio: Any
    uniform: Float[ArrayLike, ""]


class Penalty(RatioSampler):
    """All params move at once."""

    def draw_noise(self, source, shape, dims, unit):
        return Noise(
            normals(source, (*shape, dims)),
            self.draw_ratio_noise(source, shape, unit),
            source.uniforms(shape),
        )

    def init(self, noise, position, queries):
        return State(position)

    def step(self, noise, state, queries):
        proposal = state.position + self.step_size * noise.proposal
        position, info = self.decide(queries, state.position, proposal, noise.ratio, noise.uniform)
        return State(position), info
