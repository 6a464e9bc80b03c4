"""The wall between curator and analyst: what was published, and what it cost."""

import enum
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np

from noiseaware import validate
from noiseaware.accounting import Cost
from noiseaware.mechanisms import Mechanism
from noiseaware.schema import Neighbours, as_neighbours
from noiseaware.statistics import Statistic
from noiseaware.statistics.statistic import vector_norm

GRID_BITS = 40  # contributions are rounded to 2^-40 of the largest before they are summed
MAX_RECORDS = 2**29
MAX_EXCESS = 50.0  # scales of noise; Laplace noise exceeds that with probability e^-50


class Noise(enum.StrEnum):
    """Where a release's noise came from.

    ``SECURE``: ``publish``, from the operating system's randomness. ``SIMULATED``: a seeded
    generator, not private. ``EXTERNAL``: typed in from what somebody else published.
    """

    SECURE = "secure"
    SIMULATED = "simulated"
    EXTERNAL = "external"


class Release(eqx.Module):
    """What was published, and all that an analyst needs to know of how.

    ``values`` is a mapping from the statistic's labels to numbers, or the numbers in the
    order of ``statistic.labels``. ``num_records`` is None where n is not public.
    """

    values: np.ndarray
    statistic: Statistic
    mechanism: Mechanism
    neighbours: Neighbours = eqx.field(static=True)
    num_records: int | None = eqx.field(static=True)
    noise: Noise = eqx.field(static=True)

    def __init__(
        self,
        values: Mapping[str, float] | Any,
        statistic: Statistic,
        mechanism: Mechanism,
        *,
        neighbours: Neighbours | str,
        num_records: int | None,
        noise: Noise | str = Noise.EXTERNAL,
    ):
        check_pair(statistic, mechanism)
        self.values = _in_order(values, statistic.labels)
        if mechanism.is_discrete and np.any(self.values != np.round(self.values)):
            raise ValueError(
                f"values must be whole numbers under {type(mechanism).__name__}, "
                f"got {self.values[self.values != np.round(self.values)][0]:g}."
            )
        self.statistic, self.mechanism = statistic, mechanism
        self.neighbours = as_neighbours(neighbours)
        if num_records is not None:
            num_records = validate.positive_integer("num_records", num_records)
        elif self.neighbours is Neighbours.REPLACE:
            raise ValueError("num_records must be given under 'replace', where n is public.")
        self.num_records = num_records
        if num_records is not None:
            check_possible(self.values, statistic, mechanism, num_records)
        validate.one_of("noise", noise, [str(kind) for kind in Noise])
        self.noise = Noise(noise)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.statistic.labels

    @property
    def cost(self) -> Cost | None:
        """None where it is not known: of a statistic without bounds, or a custom mechanism."""
        return cost_of(self.statistic, self.mechanism, self.neighbours)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and bool(eqx.tree_equal(self, other))

    def __hash__(self) -> int:
        return hash((self.statistic.labels, self.values.tobytes()))

    def __repr__(self) -> str:
        shown = [f"  {name} = {value:g}" for name, value in zip(self.labels, self.values)]
        if len(shown) > 12:
            shown = [*shown[:10], f"  ... {len(shown) - 10} more"]
        count = self.num_records if self.num_records is not None else "not public"
        return "\n".join(
            [
                f"Release of {type(self.statistic).__name__} by {self.mechanism!r}",
                f"  num_records: {count}, neighbours: {self.neighbours}, noise: {self.noise}",
                f"  cost: {self.cost or 'not known'}",
                *shown,
            ]
        )


def cost_of(statistic: Statistic, mechanism: Mechanism, neighbours: Neighbours) -> Cost | None:
    if not _is_bounded(statistic) or statistic.reads_release:
        return None
    spread = mechanism.spread()
    per_coordinate = spread if spread.ndim else np.ones(())
    sensitivity = published_sensitivity(statistic, neighbours, mechanism.norm, per_coordinate)
    return mechanism.cost(sensitivity, neighbours)


def published_sensitivity(
    statistic: Statistic, neighbours: Neighbours, norm: int, scale: np.ndarray
) -> float:
    """That of the statistic, plus the step by which rounding to the grid can move each sum."""
    step = fixed_point_grid(statistic)
    # Two totals, each rounded to a float64 of at most MAX_RECORDS contributions.
    conversion = step * 2.0**GRID_BITS * MAX_RECORDS * 2.0**-52
    rounding = vector_norm((step + conversion) / scale, norm)
    return statistic.sensitivity(neighbours, norm, scale) + rounding


def fixed_point_grid(statistic: Statistic) -> np.ndarray:
    """The step of each coordinate: a power of two, or 0 for whole-number contributions."""
    lower, upper = statistic.contribution_bounds()
    if statistic.is_integer:
        return np.zeros(len(lower))
    largest = np.maximum(np.abs(lower), np.abs(upper))
    with np.errstate(divide="ignore"):  # a contribution that is always 0 has the step 0
        return 2.0 ** (np.ceil(np.log2(largest)) - GRID_BITS)


def check_statistic(statistic: Statistic) -> None:
    if not isinstance(statistic, Statistic):
        raise ValueError(f"statistic must be a Statistic, got {statistic!r}.")
    repeated = {name for name in statistic.labels if statistic.labels.count(name) > 1}
    if repeated:
        raise ValueError(
            f"labels of {type(statistic).__name__} must be distinct, got {min(repeated)!r} twice. "
            "Rename a column or level."
        )
    if not statistic.is_integer and not np.all(fixed_point_grid(statistic) > 0):
        raise ValueError(f"bounds of {type(statistic).__name__} are too narrow for float64.")


def check_summable(statistic: Statistic, mechanism: Mechanism) -> None:
    """That sums of records can be taken in fixed point, and get this noise."""
    check_pair(statistic, mechanism)
    if not statistic.columns:
        raise ValueError(f"{type(statistic).__name__} cannot be published: it names no columns.")
    if not _is_bounded(statistic):
        raise ValueError(f"contributions to {type(statistic).__name__} must be finite.")


def check_publishable(statistic: Statistic, mechanism: Mechanism) -> None:
    """What a curator can answer for."""
    check_summable(statistic, mechanism)
    if cost_of(statistic, mechanism, Neighbours.REPLACE) is None:
        raise ValueError(
            f"{type(statistic).__name__} by {type(mechanism).__name__} cannot be published: its "
            "cost is not known."
        )


def _is_bounded(statistic: Statistic) -> bool:
    return bool(np.all(np.isfinite(statistic.contribution_bounds())))


def check_pair(statistic: Statistic, mechanism: Mechanism) -> None:
    check_statistic(statistic)
    if not isinstance(mechanism, Mechanism):
        raise ValueError(f"mechanism must be a Mechanism, got {mechanism!r}.")
    if mechanism.is_discrete and not statistic.is_integer:
        raise ValueError(
            f"{type(mechanism).__name__} needs whole-number sums, "
            f"got {type(statistic).__name__}. Use Laplace or Gaussian."
        )
    shape, num_labels = mechanism.spread().shape, len(statistic.labels)
    if shape not in ((), (num_labels,)):
        raise ValueError(
            f"{type(mechanism).__name__} must have one scale or {num_labels}, "
            f"one for each sum of {type(statistic).__name__}, got shape {shape}."
        )


def check_possible(
    values: np.ndarray, statistic: Statistic, mechanism: Mechanism, num_records: int
) -> None:
    """Refuse sums that n records cannot have by more noise than was ever drawn."""
    lower, upper = statistic.contribution_bounds()
    excess = np.maximum(values - num_records * upper, num_records * lower - values)
    excess = excess / mechanism.spread()
    worst = int(np.argmax(excess))
    if excess[worst] > MAX_EXCESS:
        raise ValueError(
            f"values must be possible for {num_records} records, got {statistic.labels[worst]} = "
            f"{values[worst]:g}, where their sum lies between {num_records * lower[worst]:g} and "
            f"{num_records * upper[worst]:g} and the noise has the scale "
            f"{np.broadcast_to(mechanism.spread(), values.shape)[worst]:g}."
        )


def _in_order(values: Any, labels: tuple[str, ...]) -> np.ndarray:
    if hasattr(values, "to_dict"):  # a pandas Series has labels of its own
        values = values.to_dict()
    if isinstance(values, Mapping):
        unknown = [name for name in values if name not in labels]
        missing = [name for name in labels if name not in values]
        if unknown or missing:
            raise ValueError(
                f"values must name exactly {_few(labels)}; "
                f"missing {_few(missing)}, unknown {_few(unknown)}."
            )
        values = [values[name] for name in labels]
    array = validate.finite("values", values)
    if array.shape != (len(labels),):
        raise ValueError(
            f"values must have one number for each of {len(labels)} labels, "
            f"got shape {array.shape}."
        )
    return array


def _few(names) -> str:
    shown = [repr(name) for name in names[:4]] + ["..."] * (len(names) > 4)
    return "[" + ", ".join(shown) + "]"
