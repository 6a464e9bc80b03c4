"""Counts: of a yes/no column, of each level of a category, of class and feature together.

Every record adds 1 to a few cells, so the sensitivity is read off the cells that one
record can leave and the cells that another can enter.

All records of a segment are counted ``in_bulk``: compared with a cell at a time, so that a GPU need
not add to one address from many threads, and n x m numbers are never there.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from noiseaware import validate
from noiseaware.schema import Binary, Category, Neighbours, Records, as_levels
from noiseaware.statistics.statistic import Statistic

Levels = tuple[str | int, ...]


class Count(Statistic):
    """The number of records whose ``column`` is 1.

    Sensitivity 1 under both relations and norms: one record changes from 0 to 1.
    """

    column: str = eqx.field(static=True)

    def __init__(self, column: str):
        self.column = validate.column_name("column", column)

    @property
    def columns(self):
        return {self.column: Binary()}

    @property
    def labels(self):
        return (self.column,)

    @property
    def is_integer(self):
        return True

    def __call__(self, record):
        return jnp.asarray(record[self.column], float)[None]

    def contribution_bounds(self):
        return np.zeros(1), np.ones(1)

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        return float(np.max(1 / scale))


class Histogram(Statistic):
    """The number of records at each level of ``column``, or at those ``counted``.

    Under ``replace`` a record leaves one cell and another enters a second one: 2 in L1,
    sqrt(2) in L2 (the two smallest scales, where scales differ), 1 if only one level is counted.
    Under ``add_remove``: 1.
    """

    column: str = eqx.field(static=True)
    levels: Levels = eqx.field(static=True)
    counted: Levels = eqx.field(static=True)

    def __init__(
        self,
        column: str,
        levels: int | Sequence[str | int],
        counted: Sequence[str | int] | None = None,
    ):
        self.column = validate.column_name("column", column)
        self.levels = as_levels(self.column, levels)
        self.counted = self.levels if counted is None else as_levels(self.column, counted)
        for level in self.counted:
            validate.one_of(f"counted level of {self.column}", level, self.levels)

    @property
    def columns(self):
        return {self.column: Category(self.levels)}

    @property
    def labels(self):
        return tuple(f"{self.column}={level}" for level in self.counted)

    @property
    def is_integer(self):
        return True

    def __call__(self, record):
        return jnp.asarray(record[self.column] == self._places, float)

    def in_bulk(self, records: Records, is_counted=None) -> Float[Array, " m"]:
        return _counts(records[self.column], self._places, is_counted)

    @property
    def _places(self) -> np.ndarray:
        return np.array([self.levels.index(level) for level in self.counted])

    def contribution_bounds(self):
        return np.zeros(len(self.counted)), np.ones(len(self.counted))

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        return _one_cell_sensitivity(len(self.counted), neighbours, norm, scale)


class ContingencyTable(Statistic):
    """The number of records in each cell of a table: ``levels`` maps its columns to their levels,
    and 2, for 0 and 1, also reads a yes/no column. The last column runs fastest.

    A record is in one cell: sensitivities are those of a histogram.
    """

    levels: tuple[tuple[str, Levels], ...] = eqx.field(static=True)

    def __init__(self, levels: Mapping[str, int | Sequence[str | int]]):
        validate.distinct("columns", tuple(levels))
        self.levels = tuple(
            (validate.column_name("column", name), as_levels(name, of_column))
            for name, of_column in dict(levels).items()
        )

    @property
    def columns(self):
        return {name: Category(levels) for name, levels in self.levels}

    @property
    def labels(self):
        each = [[f"{name}={level}" for level in levels] for name, levels in self.levels]
        return tuple(map(",".join, itertools.product(*each)))

    @property
    def is_integer(self):
        return True

    def __call__(self, record):
        return jax.nn.one_hot(self._cell(record), len(self.labels), dtype=float)

    def in_bulk(self, records: Records, is_counted=None) -> Float[Array, " m"]:
        return _counts(self._cell(records), np.arange(len(self.labels)), is_counted)

    def _cell(self, records):
        """Of one record, or of all."""
        cell: Any = 0
        for name, levels in self.levels:
            cell = cell * len(levels) + jnp.asarray(records[name], int)
        return cell

    def contribution_bounds(self):
        return np.zeros(len(self.labels)), np.ones(len(self.labels))

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        return _one_cell_sensitivity(len(self.labels), neighbours, norm, scale)


def _counts(
    places: Int[Array, " n"], cells: np.ndarray, is_counted: Bool[Array, " n"] | None
) -> Float[Array, " m"]:
    """How many of all places, or of those counted, are in each cell."""
    is_there = places == cells[:, None]
    if is_counted is not None:
        is_there &= is_counted
    return jnp.sum(is_there, axis=1, dtype=float)


def _one_cell_sensitivity(num_cells: int, neighbours: Neighbours, norm: int, scale) -> float:
    """Where a record is in one cell: the one or two cells of the smallest scale change by 1."""
    weights = np.broadcast_to(scale, num_cells) ** -float(norm)
    num_changed = 2 if neighbours is Neighbours.REPLACE else 1
    return float(np.sum(np.sort(weights)[-num_changed:]) ** (1 / norm))


class ClassTables(Statistic):
    """``n^k_ij``, how often class i occurs with level j of feature k [JAGR22, Section 4].

    A record adds 1 to one cell of each of the K tables, so under ``replace`` it changes at
    most 2K cells: 2K in L1, sqrt(2K) in L2, attained by two records of different class.
    Under ``add_remove``: K and sqrt(K). Where scales differ, the worst pair of records is
    either of two classes (its heaviest cell of each table, in both) or of one (its two
    heaviest cells of each table).
    """

    class_column: str = eqx.field(static=True)
    class_levels: Levels = eqx.field(static=True)
    features: tuple[tuple[str, Levels], ...] = eqx.field(static=True)

    def __init__(
        self,
        class_column: str,
        class_levels: int | Sequence[str | int],
        features: Mapping[str, int | Sequence[str | int]],
    ):
        self.class_column = validate.column_name("class_column", class_column)
        self.class_levels = as_levels(class_column, class_levels)
        validate.distinct("columns", (class_column, *features))
        validate.distinct("features", tuple(features))
        self.features = tuple(
            (validate.column_name("feature", name), as_levels(name, levels))
            for name, levels in dict(features).items()
        )

    @property
    def columns(self):
        kinds = {self.class_column: Category(self.class_levels)}
        return kinds | {name: Category(levels) for name, levels in self.features}

    @property
    def labels(self):
        return tuple(
            f"{self.class_column}={i},{name}={j}"
            for name, levels in self.features
            for i in self.class_levels
            for j in levels
        )

    @property
    def is_integer(self):
        return True

    def __call__(self, record):
        return jnp.concatenate(
            [jax.nn.one_hot(cell, size, dtype=float) for cell, size in self._cells(record)]
        )

    def in_bulk(self, records: Records, is_counted=None) -> Float[Array, " m"]:
        return jnp.concatenate(
            [_counts(cells, np.arange(size), is_counted) for cells, size in self._cells(records)]
        )

    def _cells(self, records):
        """In each table the cell of one record, or of all, and how many cells there are."""
        in_class = jnp.asarray(records[self.class_column], int)
        for name, levels in self.features:
            cell = in_class * len(levels) + jnp.asarray(records[name], int)
            yield cell, len(self.class_levels) * len(levels)

    def contribution_bounds(self):
        return np.zeros(len(self.labels)), np.ones(len(self.labels))

    def sensitivity(self, neighbours, norm, scale=np.ones(())):
        tables = self._tables(np.broadcast_to(scale, len(self.labels)) ** -float(norm))
        heaviest = sum(np.max(table, axis=1) for table in tables)
        if neighbours is Neighbours.ADD_REMOVE:
            return float(np.max(heaviest) ** (1 / norm))
        two_classes = np.sum(np.sort(heaviest)[-2:]) if len(heaviest) > 1 else 0.0
        two_cells = sum(np.sum(np.sort(table, axis=1)[:, -2:], axis=1) for table in tables)
        return float(max(two_classes, np.max(two_cells)) ** (1 / norm))

    def _tables(self, cells: np.ndarray) -> list[np.ndarray]:
        """One class-by-level table a feature, out of the vector of all cells."""
        sizes = [len(self.class_levels) * len(levels) for _, levels in self.features]
        parts = np.split(cells, np.cumsum(sizes)[:-1])
        return [part.reshape(len(self.class_levels), -1) for part in parts]
