"""What a statistic is: a sum over records of ``t(record)``, with bounds and labels."""

import abc
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from noiseaware.schema import Kind, Neighbours, Record


class Statistic(eqx.Module):
    """``T(x) = sum_i t(x_i)``, a vector of length m, written for ONE record. A density ``g(s, T)``
    is then record-additive [JAGR22], also where t looks at s: ``reads_release``.

    A statistic is total: whatever finite record it is given, ``t`` stays inside
    ``contribution_bounds``, because clamping or redaction is part of it.

    Where ``T`` takes less than a sum of ``t``, a statistic also has ``in_bulk(records,
    is_counted)``, the sum over all records or, if given, those counted.
    """

    @property
    @abc.abstractmethod
    def columns(self) -> dict[str, Kind]:
        """The columns it reads."""

    @property
    @abc.abstractmethod
    def labels(self) -> tuple[str, ...]:
        """A name for each of the m coordinates."""

    @property
    @abc.abstractmethod
    def is_integer(self) -> bool:
        """Whether every contribution is a whole number, as discrete noise needs."""

    @abc.abstractmethod
    def __call__(self, record: Record) -> Float[Array, " m"]:
        """The contribution of one record."""

    @property
    def reads_release(self) -> bool:
        """Whether ``t`` looks at the released values too; only a custom statistic may."""
        return False

    def given(self, released: np.ndarray) -> Callable[[Record], Float[Array, " m"]]:
        """``t`` once the release is known."""
        return self

    @abc.abstractmethod
    def contribution_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest value of each coordinate of ``t``."""

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Of its only column: ``t`` is smooth below, within and above them. None if not known."""
        return None

    @abc.abstractmethod
    def sensitivity(self, neighbours: Neighbours, norm: int, scale: np.ndarray) -> float:
        """Largest ``|(T(x) - T(x')) / scale|`` over neighbours, in the L1 or L2 norm.

        ``scale`` is one number or one per coordinate.
        """


def vector_norm(values: np.ndarray, norm: int) -> float:
    return float(np.linalg.norm(values, ord=norm))


def coordinatewise_sensitivity(
    statistic: Statistic, neighbours: Neighbours, norm: int, scale: np.ndarray
) -> float:
    """A bound for any statistic: every coordinate changes as much as it can, all at once.

    Tight where one pair of records does that.
    """
    lower, upper = statistic.contribution_bounds()
    if neighbours is Neighbours.REPLACE:
        return vector_norm((upper - lower) / scale, norm)
    return vector_norm(np.maximum(np.abs(lower), np.abs(upper)) / scale, norm)
