"""Clamped first and second moments of predictors and response [JAGR22, Section 5].

Each of the d = p + 1 variables is clamped to its bounds and mapped linearly onto [-1, 1];
one record contributes every linear, square and cross term, m = d + d(d+1)/2 in all.

Sensitivity under ``replace``. For neighbours u, v in [-1, 1]^d put a = u + v, b = u - v, so
that |a_i| + |b_i| <= 2 and u_i u_j - v_i v_j = (a_i b_j + b_i a_j) / 2.

- L1 is exactly ``d (d+2)^2 / (2 (d+1))``. With B = sum |b_i| and Q = sum b_i^2 >= B^2/d the
  distance is at most (d+2) B - B^2/2 - Q/2; maximise over B. Attained at u = (1, ..., 1),
  v = -u/(d+1). [JAGR22] states the looser p^2 + 3p + 3.
- L2 is at most ``d + 1``, attained for odd d. The squared distance is
  |b|^2 + sum (a_i b_i)^2 / 2 + (|a|^2 |b|^2 + (a.b)^2) / 4, and grows with each |a_i|, so take
  |a_i| = 2 - |b_i|. With c_i = |a_i b_i| in [0, 1] and C = sum c_i: sum c_i^2 <= C and
  |a|^2 = 4d - 2C - |b|^2; maximised over |b|^2 this is (d+1)^2 - C (d + 1/2 - C/2) <= (d+1)^2.

Under ``add_remove`` every term is at most 1 in size and all are at a corner: m in L1 and
sqrt(m) in L2.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from noiseaware import validate
from noiseaware.schema import Neighbours, Real
from noiseaware.statistics.statistic import Statistic, coordinatewise_sensitivity


class RegressionMoments(Statistic):
    """Sums of all linear, square and cross terms of predictors and response.

    ``bounds`` gives (lower, upper) for each column. Released sums are in the normalised
    units, in which each bound is -1 or 1.
    """

    predictors: tuple[str, ...] = eqx.field(static=True)
    response: str = eqx.field(static=True)
    lower: np.ndarray
    upper: np.ndarray

    def __init__(
        self,
        response: str,
        predictors: Sequence[str],
        bounds: Mapping[str, tuple[float, float]],
    ):
        self.response = validate.column_name("response", response)
        self.predictors = validate.distinct("predictors", predictors)
        names = validate.distinct("columns", (*self.predictors, response))
        if set(bounds) != set(names):
            raise ValueError(f"bounds must name {sorted(names)}, got {sorted(bounds)}.")
        pairs = [validate.bounds(name, *_pair(name, bounds[name])) for name in names]
        self.lower, self.upper = map(np.array, zip(*pairs, strict=True))

    @property
    def columns(self):
        return {name: Real() for name in (*self.predictors, self.response)}

    @property
    def labels(self):
        names = tuple(self.columns)
        products = [
            f"{names[i]}^2" if i == j else f"{names[i]}*{names[j]}" for i, j in zip(*self._pairs)
        ]
        return (*names, *products)

    @property
    def is_integer(self):
        return False

    @property
    def _pairs(self) -> tuple[np.ndarray, ...]:
        return np.triu_indices(len(self.lower))

    def __call__(self, record):
        unit = [
            _unit(record[name], lower, upper)
            for name, lower, upper in zip(self.columns, self.lower, self.upper)
        ]
        # Spelled out: gathering pairs by index costs as much as all the rest of a move.
        products = [unit[i] * unit[j] for i, j in zip(*self._pairs)]
        return jnp.stack([*unit, *products])

    def contribution_bounds(self):
        first, second = self._pairs
        num_linear = len(self.lower)
        lower = np.concatenate([-np.ones(num_linear), np.where(first == second, 0.0, -1.0)])
        return lower, np.ones(len(lower))

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        coordinatewise = coordinatewise_sensitivity(self, neighbours, norm, scale)
        if neighbours is Neighbours.ADD_REMOVE:
            return coordinatewise
        d = len(self.lower)
        shared = d * (d + 2) ** 2 / (2 * (d + 1)) if norm == 1 else d + 1
        # Dividing by the smallest scale is exact for one scale, a bound for several.
        return float(min(shared / np.min(scale), coordinatewise))

    def jagr22_sensitivity_l1(self) -> float:
        """The looser bound of [JAGR22, Section 5] under ``replace``, to reproduce the paper."""
        p = len(self.predictors)
        return float(p**2 + 3 * p + 3)


def _unit(x, lower, upper):
    """[lower, upper] on [-1, 1], without a division for each record. Clipped last: rounding cannot
    leave [-1, 1], and no finite bounds make a number of x that is none.
    """
    largest = jnp.finfo(jnp.result_type(float)).max
    slope = jnp.minimum(1 / (upper / 2 - lower / 2), largest)
    return jnp.clip((x - lower) * slope - 1, -1.0, 1.0)


def _pair(name: str, value) -> tuple[float, float]:
    try:
        lower, upper = value
    except (TypeError, ValueError):
        raise ValueError(f"bounds of {name} must be (lower, upper), got {value!r}.") from None
    return lower, upper
