"""Releases as versioned JSON, the format of ``docs/release-format.md``.

Reading runs no code: statistics and mechanisms are named through the closed tables below,
and whatever the format does not describe is refused: an unknown version, field, name or
label, a number that is not finite, a stated cost that the rest of the file does not imply.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from noiseaware import accounting, mechanisms, statistics
from noiseaware.accounting import Cost
from noiseaware.mechanisms import Mechanism
from noiseaware.release import Release
from noiseaware.statistics import Statistic

FORMAT = "noiseaware release"
VERSION = 1

STATISTICS: dict[str, type[Statistic]] = {
    "count": statistics.Count,
    "histogram": statistics.Histogram,
    "contingency_table": statistics.ContingencyTable,
    "class_tables": statistics.ClassTables,
    "clamped": statistics.Clamped,
    "redacted": statistics.Redacted,
    "regression_moments": statistics.RegressionMoments,
}
MECHANISMS: dict[str, tuple[type[Mechanism], str]] = {
    "laplace": (mechanisms.Laplace, "scale"),
    "discrete_laplace": (mechanisms.DiscreteLaplace, "scale"),
    "gaussian": (mechanisms.Gaussian, "stddev"),
}
COSTS: dict[str, type] = {
    "pure_dp": accounting.PureDP,
    "approx_dp": accounting.ApproxDP,
    "zcdp": accounting.ZCDP,
    "gdp": accounting.GDP,
}
FIELDS = (
    "format", "version", "values", "statistic", "mechanism",
    "neighbours", "num_records", "cost", "noise",
)  # fmt: skip


def write(release: Release, path: str | Path) -> None:
    """Write a release. A custom statistic or mechanism has no name in the format: an error."""
    if not isinstance(release, Release):
        raise ValueError(f"release must be a Release, got a {type(release).__name__}.")
    text = json.dumps(_describe(release), indent=2, allow_nan=False) + "\n"
    Path(path).write_text(text, encoding="utf-8")


def read(path: str | Path) -> Release:
    """Read a release, or say in one sentence what is wrong with the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_duplicates)
        return _restore(content)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a release: {error}") from None


def _describe(release: Release) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "values": dict(zip(release.labels, release.values.tolist(), strict=True)),
        "statistic": _describe_statistic(release.statistic),
        "mechanism": _describe_mechanism(release.mechanism),
        "neighbours": str(release.neighbours),
        "num_records": release.num_records,
        "cost": _describe_cost(release.cost),
        "noise": str(release.noise),
    }


def _restore(content: Any) -> Release:
    _expect_fields("release", content, FIELDS)
    if content["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}, got {content['format']!r}.")
    if content["version"] != VERSION or isinstance(content["version"], bool):
        raise ValueError(f"version must be {VERSION}, got {content['version']!r}.")
    if not isinstance(content["values"], dict):
        raise ValueError(f"values must map labels to numbers, got {content['values']!r}.")
    for label, value in content["values"].items():
        _expect_number(f"value of {label!r}", value)
    release = Release(
        content["values"],
        _restore_statistic(content["statistic"]),
        _restore_mechanism(content["mechanism"]),
        neighbours=content["neighbours"],
        num_records=content["num_records"],
        noise=content["noise"],
    )
    implied = _describe_cost(release.cost)
    if not _same_cost(content["cost"], implied):
        raise ValueError(
            f"cost must be what statistic and mechanism imply, {implied}, got {content['cost']}."
        )
    return release


def _describe_statistic(statistic: Statistic) -> dict[str, Any]:
    name = _name_of(STATISTICS, statistic)
    match statistic:
        case statistics.Count():
            fields: dict[str, Any] = {"column": statistic.column}
        case statistics.Histogram():
            fields = {"column": statistic.column, "levels": list(statistic.levels)}
            if statistic.counted != statistic.levels:
                fields["counted"] = list(statistic.counted)
        case statistics.ContingencyTable():
            fields = {"levels": {column: list(levels) for column, levels in statistic.levels}}
        case statistics.ClassTables():
            fields = {
                "class_column": statistic.class_column,
                "class_levels": list(statistic.class_levels),
                "features": {feature: list(levels) for feature, levels in statistic.features},
            }
        case statistics.Clamped() | statistics.Redacted():
            fields = {
                "column": statistic.column,
                "lower": float(statistic.lower),
                "upper": float(statistic.upper),
                "features": list(statistic.features),
            }
        case statistics.RegressionMoments():
            bounds = zip(statistic.lower.tolist(), statistic.upper.tolist(), strict=True)
            fields = {
                "response": statistic.response,
                "predictors": list(statistic.predictors),
                "bounds": dict(zip(statistic.columns, map(list, bounds), strict=True)),
            }
    return {"name": name, **fields}


def _restore_statistic(content: Any) -> Statistic:
    name, fields = _named("statistic", content, STATISTICS)
    kind = STATISTICS[name]
    _expect_fields(f"statistic {name!r}", fields, _ARGUMENTS[kind], _OPTIONAL.get(kind, ()))
    for key in ("levels", "counted", "class_levels", "features", "predictors"):
        value = fields.get(key, [])
        expected, what = (dict, "an object") if (kind, key) in _OBJECTS else (list, "a list")
        if key in fields and not isinstance(value, expected):
            raise ValueError(f"{key} of statistic {name!r} must be {what}, got {value!r}.")
    for key in ("lower", "upper"):
        if key in fields:
            _expect_number(f"{key} of statistic {name!r}", fields[key])
    for column, pair in _mapping(fields.get("bounds", {})).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"bounds of {column} must be [lower, upper], got {pair!r}.")
        for value in pair:
            _expect_number(f"bound of {column}", value)
    return kind(**fields)


_ARGUMENTS: dict[type[Statistic], tuple[str, ...]] = {
    statistics.Count: ("column",),
    statistics.Histogram: ("column", "levels"),
    statistics.ContingencyTable: ("levels",),
    statistics.ClassTables: ("class_column", "class_levels", "features"),
    statistics.Clamped: ("column", "lower", "upper", "features"),
    statistics.Redacted: ("column", "lower", "upper", "features"),
    statistics.RegressionMoments: ("response", "predictors", "bounds"),
}
_OPTIONAL: dict[type[Statistic], tuple[str, ...]] = {statistics.Histogram: ("counted",)}
_OBJECTS = ((statistics.ContingencyTable, "levels"), (statistics.ClassTables, "features"))


def _describe_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    for name, (kind, parameter) in MECHANISMS.items():
        if type(mechanism) is kind:
            return {"name": name, parameter: mechanism.spread().tolist()}
    raise _no_name(mechanism)


def _restore_mechanism(content: Any) -> Mechanism:
    name, fields = _named("mechanism", content, MECHANISMS)
    kind, parameter = MECHANISMS[name]
    _expect_fields(f"mechanism {name!r}", fields, (parameter,))
    spread = fields[parameter]
    for value in spread if isinstance(spread, list) else [spread]:
        _expect_number(f"{parameter} of mechanism {name!r}", value)
    return kind(spread)


def _describe_cost(cost: Cost | None) -> dict[str, Any]:
    if cost is None:
        raise ValueError("a release whose cost is not known has no place in a file.")
    fields = dataclasses.asdict(cost)
    fields.pop("neighbours")
    return {"name": _name_of(COSTS, cost), **fields}


def _same_cost(stated: Any, implied: dict[str, Any]) -> bool:
    """Equal but for the last digits, which another platform may compute differently."""
    if not isinstance(stated, dict) or set(stated) != set(implied):
        return False
    if stated["name"] != implied["name"]:
        return False
    numbers = [name for name in implied if name != "name"]
    for name in numbers:
        _expect_number(f"{name} of cost", stated[name])
    return all(np.isclose(stated[name], implied[name], rtol=1e-9, atol=0) for name in numbers)


def _name_of(table: dict[str, type], member: Any) -> str:
    for name, kind in table.items():
        if type(member) is kind:
            return name
    raise _no_name(member)


def _no_name(member: Any) -> ValueError:
    return ValueError(
        f"{type(member).__name__} has no name in the release format and lives in memory only."
    )


def _named(what: str, content: Any, table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    fields = dict(_mapping(content, what))
    name = fields.pop("name", None)
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{what} must be one of {', '.join(table)}, got {name!r}.")
    return name, fields


def _mapping(content: Any, what: str = "bounds") -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{what} must be a JSON object, got {content!r}.")
    return content


def _expect_fields(
    what: str, content: Any, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    given = _mapping(content, what)
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in (*names, *optional)]
    if missing or unknown:
        raise ValueError(
            f"{what} must have the fields {', '.join(names)}; missing {missing}, unknown {unknown}."
        )


def _expect_number(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a number, got {value!r}.")


def _refuse(constant: str) -> None:
    raise ValueError(f"numbers must be finite, got {constant}.")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {repeated!r} must appear once.")
    return content
