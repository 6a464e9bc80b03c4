"""The documentation's page of results, from the committed ones: ``python -m experiments.page``.

What agrees and what does not is read off the tables; why not is in ``why.csv`` of each experiment.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from experiments.calibration import run as calibration
from experiments.tables import Rows, read, values_of

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"

HEAD = """# Results

Every experiment of the three works, run again. The tables come from `experiments/*/results`, which
`make reproduce ONLY=name` writes anew from its seed; with `QUICK=1` a smaller run ends in minutes.
A table's first line names its seed and the version that made it: where a later version draws other
numbers from the same seed, the CHANGELOG says so.
This page is made from them by `python -m experiments.page`.
"""


def page() -> str:
    sections = [*_calibration(), *_ju2022(), *_bernstein2018(), *_raisa2021()]
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _folder(name: str) -> Path:
    return HERE / name / "results"


def _tables(name: str, titles: Iterable[str]) -> dict[str, Rows]:
    """Those that have been made."""
    paths = {title: _folder(name) / f"{title}.csv" for title in titles}
    return {title: read(path) for title, path in paths.items() if path.exists()}


def _pictures(name: str, *pictures: str) -> list[str]:
    there = [each for each in pictures if (_folder(name) / each).exists()]
    return [f"![{each}](../experiments/{name}/results/{each})" for each in there] + [""]


def _why(name: str) -> dict[str, str]:
    path = HERE / name / "why.csv"
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {row["check"]: row["why"] for row in csv.DictReader(file)}


def _table(header: list[str], rows: list[list]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines] + [""]


def _calibration() -> list[str]:
    lines = ["## Calibration of every model, mechanism and sampler", ""]
    tables = _tables("calibration", calibration.TABLES)
    if not tables:
        return [*lines, "Not run yet.", ""]
    if missing := [name for name in calibration.TABLES if name not in tables]:
        lines += [f"Not run yet: {', '.join(missing)}.", ""]
    keys = ("fits", "ks", "sd_off", "p", "contraction", "contraction_most", "unconverged")
    names = ["fits", "KS", "sd off by", "p", "contraction", "to", "unconverged"]
    controls = tables.pop("controls", [])
    cells = [row for rows in tables.values() for row in rows]
    lines += [
        "Ranks of params and of log g in fits of simulated releases of 8 records: the KS distance "
        "of the quantity whose ranks are the least likely, how far the sd of normal scores is from "
        "1 at most, p of all tests of the cell, and the posterior's sd over the prior's, smallest "
        "and largest over params. Controls must have a p near 0.",
        "",
        *_table(
            ["model", "mechanism", "sampler", *names, ""],
            [
                [row[key] for key in ("model", "mechanism", "method", *keys, "evidence")]
                for row in cells
            ],
        ),
    ]
    if controls:
        found = [[row[key] for key in ("control", *keys)] for row in controls]
        lines += _table(["control", *names], found)
    return lines


def _ju2022() -> list[str]:
    lines = ["## Ju, Awan, Gong & Rao 2022", ""]
    path = _folder("ju2022") / "cells.csv"
    if not path.exists():
        return [*lines, "Not run yet.", ""]
    cells = read(path)
    titles = [f"coverage_{model}" for model in values_of(cells, "model")]
    coverage = [row for rows in _tables("ju2022", titles).values() for row in rows]
    lines += [
        "Coverage of 90 % intervals, as published / with the paper's kernel and length / converged "
        "(and, log-linear, with the slip of the authors' public script). Cells in bold differ from "
        "the published ones by Fisher's exact test at the level 0.05 of all cells together.",
        "",
    ]
    for model in values_of(cells, "model"):
        rows = [row for row in cells if row["model"] == model]
        params = values_of(rows, "param")
        header = [model, *(f"param {param}" for param in params)]
        lines += _table(
            [*header, "R-hat, effective draws: paper", "converged"],
            [
                _coverage_row(rows, coverage, model, epsilon, len(cells))
                for epsilon in values_of(rows, "epsilon")
            ],
        )
    lines += _explained("ju2022")
    return lines + _pictures(
        "ju2022", "figure_1a.png", "figure_1b.png", "figure_2.png", "figure_s1.png"
    )


def _coverage_row(rows: Rows, coverage: Rows, model: str, epsilon: float, num_cells: int) -> list:
    line = [f"ε = {epsilon:g}"]
    for row in (row for row in rows if row["epsilon"] == epsilon):
        shown = [f"{row['published']:.2f}"]
        for way in ("paper", "converged", "slip"):
            if isinstance(row.get(way), (int, float)):
                differs = row[f"p_{way}"] < 0.05 / num_cells
                shown.append(f"**{row[way]:.2f}**" if differs else f"{row[way]:.2f}")
        line.append(" / ".join(shown))
    for way in ("paper", "converged"):
        (found, *_) = (
            row for row in coverage
            if (row["model"], row["way"], row["epsilon"]) == (model, way, epsilon)
        )  # fmt: skip
        line.append(f"{found['r_hat']:.2f}, {found['ess']:.0f}")
    return line


def _explained(name: str) -> list[str]:
    return [f"- {why}" for why in _why(name).values()] + [""]


def _claims(name: str, holds) -> list[str]:
    path = _folder(name) / "claims.csv"
    if not path.exists():
        return ["Not run yet.", ""]
    why = _why(name)
    rows = [
        [
            row["figure"], row["claim"], "yes" if holds(row) else "**no**",
            ". ".join(filter(None, [row.get("figures", ""), why.get(row.get("check", ""), "")])),
        ]
        for row in read(path)
    ]  # fmt: skip
    return _table(["figure", "claim", "borne out", ""], rows)


def _bernstein2018() -> list[str]:
    lines = ["## Bernstein & Sheldon 2018", ""]
    lines += _claims("bernstein2018", lambda row: row["found"] == "confirmed")
    path = _folder("bernstein2018") / "every_size.csv"
    if path.exists():
        lines += [
            "Beyond the paper, 10,000 data sets a cell: KS distance of ranks, sd of their normal "
            "scores, p of all tests of the cell, and the posterior's sd over the prior's.",
            "",
            *_table(
                ["model", "n", "ε", "KS", "sd", "p", "KS naive", "posterior / prior sd", ""],
                [
                    [row[key] for key in (
                        "model", "n", "epsilon", "ks", "sd", "p", "ks_naive", "sd_over_prior_sd",
                        "evidence",
                    )]
                    for row in read(path)
                ],
            ),
        ]  # fmt: skip
    return lines + _pictures(
        "bernstein2018", "figure_1a.png", "figure_1b.png", "figure_1c.png", "figure_2.png"
    )


def _raisa2021() -> list[str]:
    lines = ["## Räisä 2021", ""]
    lines += _claims("raisa2021", lambda row: row["confirmed"] == "True")
    names = [f"figure_6_{number}.png" for number in (1, 2, 3, 4, 6, 8)]
    return lines + _pictures("raisa2021", *names)


if __name__ == "__main__":
    PAGE.write_text(page())
