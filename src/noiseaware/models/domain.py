"""Where a column lives, as points at which a sum or an integral over it is taken.

``integral f F dx``, or the sum over whole numbers, becomes ``sum_i w_i f(x_i) F(x_i)`` for any
smooth F, separately below, within and above some bounds, where F may jump or bend. In the domain's
coordinate u, ``g(u) = log f(x(u)) + log dx/du`` must be concave. Then g has one top; each part is
cut off where g has fallen by ``DROP`` from its own top, so that a part far in the tail keeps all
its digits.

On a line the rule is Gauss and Legendre's, on either side of the top: two tails may be of very
different length. Whole numbers are taken one by one up to ``NUM_WHOLE`` of them. A wider window
takes as many points, which lie 1 apart at both ends and stretch smoothly towards the middle, each
with the weight of its stretch: by Euler and Maclaurin two such sums of a smooth function differ by
what differs at their ends, here nothing up to the fifth derivative.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float
from scipy import special

DROP = 37.0  # e^-37 is below the rounding of a sum
NUM_ON_LINE = 40  # on either side
NUM_WHOLE = 256
NUM_HALVINGS, NUM_DOUBLINGS, NUM_STEPS = 44, 10, 16  # the top is split at, to 3e-11
FAR = 700.0  # e^700 is nearly the largest number: what lies beyond is left out
NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NUM_ON_LINE)
LOG_WEIGHTS = np.log(_WEIGHTS)
# From 0 to 1 as its argument does, flat at both ends, and its slope: an incomplete beta function.
_PLACES = (np.arange(NUM_WHOLE) + 0.5) / NUM_WHOLE
STRETCH = special.betainc(5, 5, _PLACES)
STRETCH_SLOPE = 630 * (_PLACES * (1 - _PLACES)) ** 4

LogDensity = Callable[[Float[Array, ""]], Float[Array, ""]]
Bounds = tuple[Any, Any]


class Points(NamedTuple):
    """A row a part: below the bounds, within and above, or one for all."""

    x: Float[Array, "parts points"]
    log_weight: Float[Array, "parts points"]


class Domain(eqx.Module):
    @abc.abstractmethod
    def has(self, x: Float[Array, ""]) -> Bool[Array, ""]: ...

    @abc.abstractmethod
    def points(self, log_density: LogDensity, bounds: Bounds | None) -> Points:
        """For sums and integrals with this density, known up to a factor."""


class Levels(Domain):
    """0, 1, ..., ``count - 1``: all of them."""

    count: int = eqx.field(static=True)

    def has(self, x):
        return (x >= 0) & (x < self.count) & (x == jnp.floor(x))

    def points(self, log_density, bounds):
        return Points(jnp.arange(float(self.count))[None], jnp.zeros((1, self.count)))


class _Line(Domain):
    """By a coordinate u."""

    @property
    @abc.abstractmethod
    def range(self) -> tuple[Any, Any]:
        """From where to where u runs, as far as numbers go."""

    @abc.abstractmethod
    def value(self, u): ...

    @abc.abstractmethod
    def log_stretch(self, u):
        """``log dx/du``."""

    @abc.abstractmethod
    def edges(self, bounds: Bounds) -> Bounds:
        """The coordinates at which the part within the bounds begins and ends."""

    @abc.abstractmethod
    def rule(self, low, top, high) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
        """Coordinates and log weights of a part."""

    def points(self, log_density, bounds):
        def height(u):
            return log_density(self.value(u)) + self.log_stretch(u)

        low, high = self.range
        edges = () if bounds is None else self.edges(bounds)
        inner = [jnp.clip(edge, low, high) for edge in edges]
        ends = jnp.stack([jnp.asarray(end, float) for end in (low, *inner, high)])
        top = _top(height, low, high)
        window = jax.vmap(lambda low, high: _window(height, top, low, high))
        u, log_weight = jax.vmap(self.rule)(*window(ends[:-1], ends[1:]))
        return Points(self.value(u), log_weight + self.log_stretch(u))


class Reals(_Line):
    @property
    def range(self):
        return -1e100, 1e100

    def has(self, x):
        return jnp.isfinite(x)

    def value(self, u):
        return u

    def log_stretch(self, u):
        return jnp.zeros_like(u)

    def edges(self, bounds):
        return bounds

    def rule(self, low, top, high):
        return _gauss(low, top, high)


class Positives(_Line):
    """From ``minimum`` on, in ``u = log x``, which suits any scale and a density that is infinite
    at 0.
    """

    minimum: Float[ArrayLike, ""] = 0.0

    @property
    def range(self):
        return self._coordinate(self.minimum), FAR

    def has(self, x):
        return x >= self.minimum

    def value(self, u):
        return jnp.exp(u)

    def log_stretch(self, u):
        return u

    def edges(self, bounds):
        return self._coordinate(bounds[0]), self._coordinate(bounds[1])

    def _coordinate(self, x):
        return jnp.log(jnp.maximum(x, np.exp(-FAR)))

    def rule(self, low, top, high):
        return _gauss(low, top, high)


class Wholes(_Line):
    """0, 1, 2, ...: each stands for the strip of width 1 around it."""

    @property
    def range(self):
        return -0.5, 1e15

    def has(self, x):
        return (x >= 0) & (x == jnp.floor(x))

    def value(self, u):
        return u

    def log_stretch(self, u):
        return jnp.zeros_like(u)

    def edges(self, bounds):
        return jnp.ceil(bounds[0]) - 0.5, jnp.floor(bounds[1]) + 0.5

    def rule(self, low, top, high):
        low = jnp.floor(low + 0.5) - 0.5
        high = jnp.ceil(high - 0.5) + 0.5
        excess = jnp.maximum(0.0, high - low - NUM_WHOLE)
        u = low + NUM_WHOLE * _PLACES + excess * STRETCH
        weight = jnp.where(u < high, 1 + excess / NUM_WHOLE * STRETCH_SLOPE, 0.0)
        return jnp.where(u < high, u, low + 0.5), jnp.log(weight)


def _gauss(low, top, high):
    ends = jnp.stack([low, top, high])
    half = (ends[1:, None] - ends[:-1, None]) / 2
    u = (ends[1:, None] + ends[:-1, None]) / 2 + half * NODES
    return u.ravel(), (jnp.log(half) + LOG_WEIGHTS).ravel()


def _top(height: LogDensity, low: float, high: float) -> Float[Array, ""]:
    """Where the height is largest: between two ends, on a scale fine near 0, its slope is halved
    in.
    """
    slope = jax.grad(height)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        is_rising = slope(jnp.sinh(middle)) > 0
        return jnp.where(is_rising, middle, low), jnp.where(is_rising, high, middle)

    ends = jnp.arcsinh(jnp.asarray(low, float)), jnp.arcsinh(jnp.asarray(high, float))
    return jnp.sinh(jax.lax.fori_loop(0, NUM_HALVINGS, halve, ends)[0])


def _window(height: LogDensity, top, low, high) -> tuple[Any, Any, Any]:
    """The stretch of [low, high] on which the height is within ``DROP`` of its largest there, and
    where that is.
    """
    top = jnp.clip(top, low, high)
    left, right = _reach(height, top, -1.0, top - low), _reach(height, top, 1.0, high - top)
    return top - left, top, top + right


def _reach(height: LogDensity, top, sign: float, farthest) -> Float[Array, ""]:
    """How far from the top the height has fallen by ``DROP``, or a little farther: from the answer
    for a parabola doubled until it has, then halved in.
    """

    def fall(distance):
        return height(top) - height(top + sign * distance)

    slope = jax.grad(fall)
    steepness = jnp.maximum(slope(0.0), 0.0)
    curvature = jnp.maximum(jax.grad(slope)(0.0), jnp.finfo(float).tiny)
    start = 2 * DROP / (steepness + jnp.sqrt(steepness**2 + 2 * DROP * curvature))

    def double(_, distance):
        has_fallen = ~(fall(distance) < DROP)
        return jnp.where(has_fallen, distance, jnp.minimum(2 * distance, farthest))

    def halve(_, ends):
        short, far = ends
        middle = (short + far) / 2
        has_fallen = ~(fall(middle) < DROP)
        return jnp.where(has_fallen, short, middle), jnp.where(has_fallen, middle, far)

    far = jax.lax.fori_loop(0, NUM_DOUBLINGS, double, jnp.minimum(start, farthest))
    return jax.lax.fori_loop(0, NUM_STEPS, halve, (jnp.zeros_like(far), far))[1]
