"""Generalised elliptical slice sampling [NMA14], for a density in whitened coordinates.

With a Student reference ``t(w)``, draw its scale v given w, then a slice of ``density / t(w)`` on
the ellipse of N(0, v I) through w, by shrinking a bracket of angles. It has no step size, leaves
the density invariant and is reversible; how well its coordinates are whitened only sets its speed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from noiseaware import randomness

FREEDOM = 5  # degrees of freedom of the reference: tails heavier than a posterior's
MAX_TRIES = 100  # a bracket shrunk that often is a point: keep the current one


class Shape(NamedTuple):
    """Location and scale of the params' posterior in unconstrained space, learned in warm-up."""

    location: Float[Array, " d"] | np.ndarray
    cholesky: Float[Array, "d d"] | np.ndarray

    def place(self, whitened: Float[Array, " d"]) -> Float[Array, " d"]:
        return jnp.asarray(self.location + self.cholesky @ whitened)

    def whiten(self, free: Float[Array, " d"]) -> Float[Array, " d"]:
        shift = free - self.location
        return jax.scipy.linalg.solve_triangular(self.cholesky, shift, lower=True)


class Point(NamedTuple):
    """``more`` is what was computed on the way to the density there."""

    whitened: Float[Array, " d"]
    log_density: Float[Array, ""]
    more: Any = ()


class _Bracket(NamedTuple):
    """The interval of angles still in play, and the point tried last."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    tried: Any
    is_inside: Bool[Array, ""]
    num_tried: Int[Array, ""]


def shrink(
    key: PRNGKeyArray,
    at_angle: Callable[[Array], tuple[Any, Bool[Array, ""]]],
    start: Any,
    is_done: Bool[Array, ""] | bool = False,
) -> Any:
    """The first point inside, at angles from a bracket around 0, where ``start`` is; one outside
    becomes an end of the bracket [MAM10]. ``at_angle`` returns a point and whether it is inside.
    """

    def attempt(bracket: _Bracket) -> _Bracket:
        place = randomness.uniform_at(key, bracket.num_tried)
        angle = bracket.low + (bracket.high - bracket.low) * place
        low = jnp.where(angle < 0, angle, bracket.low)
        high = jnp.where(angle < 0, bracket.high, angle)
        return _Bracket(low, high, *at_angle(angle), bracket.num_tried + 1)

    def goes_on(bracket: _Bracket):
        return ~bracket.is_inside & (bracket.num_tried < MAX_TRIES)

    high = 2 * jnp.pi * randomness.uniform_at(key, MAX_TRIES)
    begin = _Bracket(high - 2 * jnp.pi, high, start, jnp.asarray(is_done), jnp.zeros((), int))
    end = jax.lax.while_loop(goes_on, attempt, begin)
    return jax.tree.map(lambda new, old: jnp.where(end.is_inside, new, old), end.tried, start)


def move(key: PRNGKeyArray, at: Point, log_density: Callable[[Array], tuple[Array, Any]]) -> Point:
    """One move; ``log_density(whitened)`` returns the log density, and ``more``."""
    key_normals, key_level, key_places = randomness.split(key, 3)
    size = at.whitened.size
    # The scale v given w is inverse gamma: (FREEDOM + w.w) over a chi squared of FREEDOM + size
    # degrees, a sum of squared normals. A gamma draw would take a second to compile.
    normals = randomness.normal(key_normals, (FREEDOM + 2 * size,))
    variance = (FREEDOM + at.whitened @ at.whitened) / jnp.sum(normals[size:] ** 2)
    direction = jnp.sqrt(variance) * normals[:size]

    def log_reference(whitened):
        return -(FREEDOM + size) / 2 * jnp.log1p(whitened @ whitened / FREEDOM)

    level = at.log_density - log_reference(at.whitened) - randomness.exponential(key_level)

    def at_angle(angle):
        whitened = at.whitened * jnp.cos(angle) + direction * jnp.sin(angle)
        tried = Point(whitened, *log_density(whitened))
        return tried, tried.log_density - log_reference(whitened) > level

    return shrink(key_places, at_angle, at)
