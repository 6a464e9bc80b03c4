"""One-line argument checks: name, rule, value, full stop."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def finite(name: str, value: Any) -> np.ndarray:
    """``value`` as a float64 array whose entries are all finite."""
    try:
        raw = np.asarray(value)
        array = raw.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numeric, got {value!r}.") from None
    if raw.dtype.kind in "SUb":  # NumPy would take "1" and True for numbers
        raise ValueError(f"{name} must be numeric, got {value!r}.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, got {_shown(array)}.")
    return array


def positive(name: str, value: Any) -> np.ndarray:
    array = finite(name, value)
    if not np.all(array > 0):
        raise ValueError(f"{name} must be positive, got {_shown(array)}.")
    return array


def positive_number(name: str, value: Any) -> np.ndarray:
    return scalar(name, positive(name, value))


def not_negative_number(name: str, value: Any) -> np.ndarray:
    number = scalar(name, finite(name, value))
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number:g}.")
    return number


def scalar(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim != 0:
        raise ValueError(f"{name} must be one number, got an array of shape {array.shape}.")
    return array


def probability(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    number = float(scalar(name, finite(name, value)))
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {number:g}.")
    return number


def positive_integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    return int(value)


def bounds(name: str, lower: Any, upper: Any) -> tuple[np.ndarray, np.ndarray]:
    """A finite interval of positive length."""
    low = scalar(f"lower bound of {name}", finite(f"lower bound of {name}", lower))
    high = scalar(f"upper bound of {name}", finite(f"upper bound of {name}", upper))
    if not low < high:
        raise ValueError(f"bounds of {name} must satisfy lower < upper, got [{low:g}, {high:g}].")
    if high / 2 - low / 2 > np.finfo(float).max / 4:
        raise ValueError(f"bounds of {name} must not lie so far apart, got [{low:g}, {high:g}].")
    return low, high


def distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """A non-empty tuple without repetition."""
    if isinstance(values, str):
        raise ValueError(f"{name} must be a sequence of names, got the string {values!r}.")
    values = tuple(values)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} must be distinct and not empty, got {values!r}.")
    return values


def one_of(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def column_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty column name, got {value!r}.")
    return value


def _shown(array: np.ndarray) -> str:
    return np.array2string(array, threshold=6, precision=6).removesuffix(".")
