"""A statistic out of a function of one record, which may also look at the released values."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from noiseaware import validate
from noiseaware.statistics.statistic import Statistic, coordinatewise_sensitivity
from noiseaware.tracing import Fresh


class FunctionStatistic(Statistic):
    """``T(x) = sum_i t(x_i)`` with ``t = function``, of one record with its columns as numbers.

    ``labels`` names the m sums. ``lower`` and ``upper`` bound each contribution, one number or one
    a label; without them, what publishing it cost is not known. With ``reads_release`` the function
    is ``t(record, released)``. It is for analysts: nothing says which columns it reads or makes it
    keep its bounds, so it cannot be published.
    """

    function: Callable = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    lower: np.ndarray
    upper: np.ndarray
    has_two_arguments: bool = eqx.field(static=True)

    def __init__(
        self,
        function: Callable,
        labels: Sequence[str],
        *,
        lower: Any = None,
        upper: Any = None,
        reads_release: bool = False,
    ):
        self.function = Fresh(function)
        self.names = validate.distinct("labels", labels)
        self.has_two_arguments = bool(reads_release)
        if (lower is None) != (upper is None):
            raise ValueError("lower and upper must be given together.")
        low, high = (
            (-np.inf, np.inf)
            if lower is None
            else (validate.finite("lower", lower), validate.finite("upper", upper))
        )
        self.lower = np.broadcast_to(low, (len(self.names),)).astype(float)
        self.upper = np.broadcast_to(high, (len(self.names),)).astype(float)
        if not np.all(self.lower < self.upper):
            raise ValueError(f"lower must be below upper, got {self.lower} and {self.upper}.")

    @property
    def columns(self):
        return {}

    @property
    def labels(self):
        return self.names

    @property
    def is_integer(self):
        return False

    @property
    def reads_release(self):
        return self.has_two_arguments

    def given(self, released):
        if not self.reads_release:
            return self
        return lambda record: _vector(self.function(record, released))

    def __call__(self, record):
        if self.reads_release:
            raise ValueError("a statistic that reads the release has no sums without it.")
        return _vector(self.function(record))

    def contribution_bounds(self):
        return self.lower, self.upper

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        return coordinatewise_sensitivity(self, neighbours, norm, scale)


def _vector(values):
    return jnp.atleast_1d(jnp.asarray(values, float))
