"""Sums of features of one column kept within public bounds [a, b].

``Clamped``  t(x) = f(clip(x, a, b)):    a value outside is moved to the bound.
``Redacted`` t(x) = 1[a <= x <= b] f(x): a record outside contributes nothing [BS18, Section 3].

Sensitivity. Let D be the largest norm of ``(f(x) - f(y)) / scale`` over [a, b]^2 and M the
largest norm of ``f(x) / scale`` over [a, b]. Under ``add_remove`` it is M. Under ``replace``
it is D for a clamped sum and max(D, M) for a redacted one, where a record inside may be
exchanged for one outside.

- D is exact. If every feature is monotone on [a, b], all of them change most between a and
  b. Only ``x^2`` with a < 0 < b is not, and beside it ``x`` (``log x`` and ``1/x`` need a > 0).
  With d = x - y and s = x + y that change is (d, d s), whose norm grows with |d| for fixed
  s, so a maximum has x or y in {a, b}; in the other variable it is at a bound or at a
  critical point of a quadratic (L1) or a quartic (L2), which ``_end_points`` lists.
- M takes each coordinate at its largest. That is exact for ``1``, ``x`` and ``x^2``, which grow
  together with |x|, and whenever all features peak at the same bound; else an upper bound.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from noiseaware import validate
from noiseaware.schema import FEATURES, Neighbours, Real
from noiseaware.statistics.statistic import Statistic, vector_norm


class _BoundedFeatures(Statistic):
    """What both treatments share; ``_values`` is f on a number already within the bounds."""

    column: eqx.AbstractVar[str]
    features: eqx.AbstractVar[tuple[str, ...]]
    lower: eqx.AbstractVar[np.ndarray]
    upper: eqx.AbstractVar[np.ndarray]

    @property
    def columns(self):
        return {self.column: Real()}

    @property
    def labels(self):
        return tuple(feature.replace("x", self.column) for feature in self.features)

    @property
    def is_integer(self):
        return False

    @property
    def bounds(self):
        return self.lower, self.upper

    def _values(self, x):
        return jnp.stack([FEATURES[name].function(x) for name in self.features])

    def _feature_range(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest f on [a, b]: at a bound, or ``x^2`` at 0."""
        points = [self.lower, self.upper] + [0.0] * bool(self.lower < 0 < self.upper)
        values = _numpy_features(self.features, np.array(points))
        return values.min(axis=1), values.max(axis=1)

    def _largest_change(self, norm: int, scale: np.ndarray) -> float:
        low, high = self._feature_range()
        is_monotone = "x^2" not in self.features or not self.lower < 0 < self.upper
        if is_monotone or "x" not in self.features:
            return vector_norm((high - low) / scale, norm)
        pairs = _end_points(
            float(self.lower),
            float(self.upper),
            *(float(scale[self.features.index(name)]) for name in ("x", "x^2")),
        )
        changes = _numpy_features(self.features, pairs[:, 0]) - _numpy_features(
            self.features, pairs[:, 1]
        )
        return max(vector_norm(change / scale, norm) for change in changes.T)

    def _largest_value(self, norm: int, scale: np.ndarray) -> float:
        low, high = self._feature_range()
        return vector_norm(np.maximum(np.abs(low), np.abs(high)) / scale, norm)


class Clamped(_BoundedFeatures):
    """Sums of ``features`` of ``column`` after clamping it to [lower, upper]."""

    column: str = eqx.field(static=True)
    features: tuple[str, ...] = eqx.field(static=True)
    lower: np.ndarray
    upper: np.ndarray

    def __init__(self, column: str, lower, upper, features: Sequence[str] = ("x",)):
        self.column, self.features, self.lower, self.upper = _checked(
            column, features, lower, upper
        )

    def __call__(self, record):
        return self._values(jnp.clip(record[self.column], self.lower, self.upper))

    def contribution_bounds(self):
        return self._feature_range()

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        scale = np.broadcast_to(scale, len(self.features))
        if neighbours is Neighbours.ADD_REMOVE:
            return self._largest_value(norm, scale)
        return self._largest_change(norm, scale)


class Redacted(_BoundedFeatures):
    """Sums of ``features`` over the records whose ``column`` lies in [lower, upper]."""

    column: str = eqx.field(static=True)
    features: tuple[str, ...] = eqx.field(static=True)
    lower: np.ndarray
    upper: np.ndarray

    def __init__(self, column: str, lower, upper, features: Sequence[str] = ("1", "x")):
        self.column, self.features, self.lower, self.upper = _checked(
            column, features, lower, upper
        )

    def __call__(self, record):
        x = record[self.column]
        is_inside = (self.lower <= x) & (x <= self.upper)
        # Clipped first, so that a value outside cannot make log or 1/x infinite.
        return jnp.where(is_inside, self._values(jnp.clip(x, self.lower, self.upper)), 0.0)

    def contribution_bounds(self):
        low, high = self._feature_range()
        return np.minimum(low, 0.0), np.maximum(high, 0.0)

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        scale = np.broadcast_to(scale, len(self.features))
        largest_value = self._largest_value(norm, scale)
        if neighbours is Neighbours.ADD_REMOVE:
            return largest_value
        return max(self._largest_change(norm, scale), largest_value)


def _checked(column, features, lower, upper):
    column = validate.column_name("column", column)
    features = validate.distinct("features", features)
    lower, upper = validate.bounds(column, lower, upper)
    for name in features:
        validate.one_of("feature", name, tuple(FEATURES))
        if FEATURES[name].needs_positive and lower <= 0:
            raise ValueError(
                f"lower bound of {column} must be positive for the feature {name!r}, got {lower:g}."
            )
    return column, features, lower, upper


def _numpy_features(features: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """The same table as ``FEATURES`` in NumPy's float64, for bounds."""
    functions: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "1": np.ones_like,
        "x": np.array,
        "x^2": np.square,
        "log x": np.log,
        "1/x": np.reciprocal,
    }
    return np.stack([functions[name](x) for name in features])


def _end_points(lower: float, upper: float, scale_x: float, scale_square: float) -> np.ndarray:
    """Pairs (e, y), e a bound, among which ``(x, x^2) / scale`` changes most on a < 0 < b.

    L1: ``+-(e - y)/c + -(e^2 - y^2)/q`` is stationary at ``y = +-q / 2c``. L2: its square at
    ``y = (-e +- sqrt(e^2 - 2 q^2/c^2)) / 2``. Extra candidates do no harm: all lie in [a, b].
    """
    ratio = scale_square / scale_x
    others = [lower, upper, ratio / 2, -ratio / 2]
    for end in (lower, upper):
        root = np.sqrt(max(end**2 - 2 * ratio**2, 0.0))
        others += [(-end + root) / 2, (-end - root) / 2]
    inside = np.clip(others, lower, upper)
    return np.array([(end, other) for end in (lower, upper) for other in inside])
