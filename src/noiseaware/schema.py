"""What a record is: its columns, the neighbour relation, and the features that
statistics and models both name, so that neither has to import the other.

Records are a dict ``column name -> array of n``; one record is a dict of scalars. Inside
the library every column is numeric: a ``Category`` is the index of its level.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from noiseaware import validate

Records = dict[str, Any]
Record = dict[str, Any]


class Neighbours(enum.StrEnum):
    """Which pairs of data sets differ by one person.

    ``REPLACE``: one record is exchanged for another, n is public. ``ADD_REMOVE``: one record
    is added or taken away, n is confidential.
    """

    REPLACE = "replace"
    ADD_REMOVE = "add_remove"


def as_neighbours(value: Any) -> Neighbours:
    validate.one_of("neighbours", value, [str(relation) for relation in Neighbours])
    return Neighbours(value)


@dataclass(frozen=True)
class Real:
    """Any finite number."""

    description = "a finite number"


@dataclass(frozen=True)
class Whole:
    """A count: 0, 1, 2, ..."""

    description = "a whole number, 0 or more"


@dataclass(frozen=True)
class Binary:
    """0 or 1, or a boolean."""

    description = "0 or 1"


@dataclass(frozen=True)
class Category:
    """One of a closed list of levels, stored as the level's index."""

    levels: tuple[str | int, ...]

    @property
    def description(self) -> str:
        return f"one of {', '.join(map(repr, self.levels))}"


Kind = Real | Whole | Binary | Category


def as_kind(name: str, value: Any) -> Kind:
    """A kind, or the levels of a category."""
    if isinstance(value, Category):
        value = value.levels
    if isinstance(value, (Real, Whole, Binary)):
        return value
    is_levels = isinstance(value, (int, np.integer, Sequence)) and not isinstance(value, str)
    if not is_levels or isinstance(value, bool):
        raise ValueError(
            f"column {name!r} must be Real(), Whole(), Binary() or a list of levels, got {value!r}."
        )
    return Category(as_levels(name, value))


def as_levels(name: str, levels: int | Sequence[str | int]) -> tuple[str | int, ...]:
    """``3`` means the levels 0, 1, 2."""
    if isinstance(levels, (int, np.integer)):
        levels = range(validate.positive_integer(f"number of levels of {name}", levels))
    plain = (
        levels if isinstance(levels, str) else [getattr(x, "item", lambda x=x: x)() for x in levels]
    )
    distinct = validate.distinct(f"levels of {name}", plain)
    for level in distinct:
        if isinstance(level, bool) or not isinstance(level, (str, int)):
            raise ValueError(f"levels of {name} must be strings or integers, got {level!r}.")
    return distinct


def accepts(measured: Kind, modelled: Kind) -> bool:
    """Whether a statistic that measures one kind can read what a model produces."""
    if isinstance(measured, Real):
        return not isinstance(modelled, Category)
    if measured == Category((0, 1)) and isinstance(modelled, Binary):
        return True
    return measured == modelled


def as_records(data: Mapping[str, Any], columns: Mapping[str, Kind]) -> dict[str, np.ndarray]:
    """The needed columns of a dict or a pandas DataFrame, checked and coded as numbers."""
    records = {}
    for name, kind in columns.items():
        try:
            values = data[name]
        except (KeyError, IndexError, TypeError):
            # The elements of anything else may be records, which no message shows.
            got = f"the columns {list(data)!r}" if hasattr(data, "keys") else type(data).__name__
            raise ValueError(f"records must have a column {name!r}, got {got}.") from None
        records[name] = _coded(name, values, kind)
    lengths = {name: len(values) for name, values in records.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have one length, got {lengths}.")
    if 0 in lengths.values():
        raise ValueError("records must not be empty, got 0 records.")
    return records


def _coded(name: str, values: Any, kind: Kind) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"column {name!r} must have no missing values, got a masked array.")
    # A list keeps its values as they are: NumPy would turn [1, "a"] and NaN into strings.
    is_list = isinstance(values, (list, tuple))
    raw = np.asarray(values, object) if is_list else np.asarray(values)
    if raw.ndim != 1:
        raise ValueError(f"column {name!r} must be one-dimensional, got shape {raw.shape}.")
    is_number = raw.dtype.kind in "fiub"
    missing = _num_missing(raw)
    if missing:
        raise ValueError(
            f"column {name!r} must have no missing values, got {missing}. "
            "Drop or recode them first: what a missing value counts as is the curator's decision."
        )
    if isinstance(kind, Category):
        return _level_index(name, raw, kind)
    # Messages name at most one value: the others are confidential too, and not at fault.
    values = [] if is_number else raw.tolist()
    other = [value for value in values if isinstance(value, (str, bytes, complex))]
    if other:
        raise ValueError(f"column {name!r} must be numeric, got {other[0]!r}.")
    try:
        array = raw.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"column {name!r} must be numeric, got {raw.dtype} values.") from None
    if not np.all(np.isfinite(array)):
        count = int(np.sum(~np.isfinite(array)))
        raise ValueError(f"column {name!r} must be finite, got {count} infinite of {len(array)}.")
    is_valid = {
        Real: np.ones(len(array), bool),
        Whole: (array >= 0) & (array == np.floor(array)),
        Binary: (array == 0) | (array == 1),
    }[type(kind)]
    if not np.all(is_valid):
        raise ValueError(
            f"column {name!r} must hold {kind.description}, got {array[~is_valid][0]:g}."
        )
    return array


def _level_index(name: str, raw: np.ndarray, kind: Category) -> np.ndarray:
    index = {level: code for code, level in enumerate(kind.levels)}
    unknown = [value for value in raw.tolist() if value not in index]
    if unknown:
        raise ValueError(f"column {name!r} must hold {kind.description}, got {unknown[0]!r}.")
    return np.array([index[value] for value in raw.tolist()], np.int64)


def _num_missing(raw: np.ndarray) -> int:
    if raw.dtype.kind in "iub":
        return 0
    if raw.dtype.kind == "f":
        return int(np.sum(np.isnan(raw)))
    return sum(_is_missing(value) for value in raw.tolist())


def _is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas.NA: the only values that do not equal themselves plainly."""
    if value is None:
        return True
    try:
        return not bool(value == value)
    except TypeError:
        return True


@dataclass(frozen=True)
class Feature:
    """A function of one column that a statistic sums and an exponential family names.

    ``x`` and ``x^2`` take any column, ``log x`` and ``1/x`` a positive one. On the positive
    half-line every feature is monotone; elsewhere only ``x^2`` is not.
    """

    function: Callable[[Any], Any]
    needs_positive: bool = False


FEATURES: dict[str, Feature] = {
    "1": Feature(lambda x: 0 * x + 1),
    "x": Feature(lambda x: x),
    "x^2": Feature(lambda x: x**2),
    "log x": Feature(jnp.log, needs_positive=True),
    "1/x": Feature(lambda x: 1 / x, needs_positive=True),
}
