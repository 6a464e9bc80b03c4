"""The tables and figures of [JAGR22], with the paper's kernel and length, and to convergence.

A full run writes ``results/``: tables, pictures, and ``cells.csv``, every cell of the paper's two
coverage tables beside ours, with Fisher's exact test. Every number comes from SEED.
"""

import csv
import dataclasses
import functools
import itertools
import warnings
from pathlib import Path

import numpy as np
from experiments.cells import rows_of
from experiments.ju2022 import slip
from experiments.ju2022.problems import (
    EPSILONS,
    NUM_DROPPED,
    NUM_ITERATIONS,
    NUM_REPLICATES,
    PROBLEMS,
    WAYS,
)
from experiments.tables import Rows, write
from scipy import stats

import noiseaware as na

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEED = 2022
NUM_QUICK, BATCH = 20, 50
LEVEL = 0.05  # of all cells together


@dataclasses.dataclass(frozen=True)
class Replicates:
    """Numbered releases of one problem at one epsilon, fitted in one way. The records of each are
    its own, or those of ``fixed``, a seed, for all.
    """

    problem: str
    way: str
    epsilon: float
    fixed: int | None = None

    def releases(self, numbers) -> list[na.Release]:
        problem = PROBLEMS[self.problem]
        mechanism = problem.mechanism(self.epsilon)
        first = 1_000_000 * (1 + EPSILONS.index(self.epsilon))
        return [
            na.simulate_release(
                SEED + first + int(number),
                problem.records(first + int(number) if self.fixed is None else self.fixed),
                problem.statistic, mechanism, neighbours="replace",
            )
            for number in numbers
        ]  # fmt: skip

    def __call__(self, numbers):
        problem = PROBLEMS[self.problem]
        if self.way == "slip":
            values = np.stack([release.values for release in self.releases(numbers)])
            drawn, rate = slip.chains(
                problem, values, self.epsilon, SEED + int(numbers[0]), NUM_ITERATIONS
            )
            return self._row(drawn[None, NUM_DROPPED:]) | {"acceptance": rate}
        way = WAYS[self.way]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", na.ConvergenceWarning)  # R-hat is in the table
            draws = na.fit_many(
                self.releases(numbers), problem.model, seed=SEED, first=int(numbers[0]),
                **way.options,
            )  # fmt: skip
        kept = draws.isel(draw=slice(way.dropped, None), groups=["posterior", "sample_stats"])
        rates = kept.sample_stats["acceptance_rate"]
        return self._row(kept.posterior[problem.param].values) | {
            "acceptance": rates.mean(("chain", "draw")).values,
            "smallest_rate": rates.min(("chain", "draw")).values,
            "smallest": np.exp(
                np.minimum(kept.sample_stats["min_log_ratio"].min(("chain", "draw")).values, 0.0)
            ),
        }

    def _row(self, drawn: np.ndarray) -> dict:
        """Of draws ``[chain, draw, fit, param]``."""
        low, high = np.quantile(drawn, [0.05, 0.95], axis=(0, 1))
        truth = PROBLEMS[self.problem].truth[PROBLEMS[self.problem].param]
        worst = [_convergence(drawn[:, :, index]) for index in range(drawn.shape[2])]
        return {
            "covered": (low <= truth) & (truth <= high),
            "mean": drawn.mean(axis=(0, 1)),
            "r_hat": np.array([r_hat for r_hat, _ in worst]),
            "ess": np.array([ess for _, ess in worst]),
        }


def _convergence(drawn: np.ndarray) -> tuple[float, float]:
    """The largest R-hat, of half chains, and the smallest bulk effective size of any param."""
    import arviz

    half = drawn.shape[1] // 2
    halves = np.concatenate([drawn[:, :half], drawn[:, half : 2 * half]])
    each = [
        (float(arviz.rhat(halves[..., index])), float(arviz.ess(drawn[..., index])))
        for index in range(drawn.shape[-1])
    ]
    return max(r_hat for r_hat, _ in each), min(ess for _, ess in each)


QUICK_EPSILONS = {"regression": [1.0], "log-linear": [0.1]}


def _coverage_cells(name: str, quick: bool) -> list[tuple[str, str, float]]:
    ways = [*WAYS, "slip"] if name == "log-linear" and not quick else WAYS
    return list(itertools.product([name], ways, QUICK_EPSILONS[name] if quick else EPSILONS))


def _study(task: Replicates, count: int):
    return na.run_study(task, count, batch_size=min(BATCH, count // 2), progress=False)


def coverage_at(name: str, way: str, epsilon: float, count: int) -> Rows:
    found = _study(Replicates(name, way, epsilon), count)
    shares = np.mean(found["covered"], axis=0)
    print(
        f"  {name}, {way}, epsilon {epsilon}: covered "
        f"{' '.join(f'{share:.2f}' for share in shares)}; R-hat {np.median(found['r_hat']):.2f}, "
        f"effective {np.median(found['ess']):.0f}", flush=True,
    )  # fmt: skip
    return [
        {
            "model": name, "way": way, "epsilon": epsilon, "param": index + 1,
            "covered": float(share), "replicates": count,
            "mean": float(np.mean(found["mean"][:, index])),
            "r_hat": float(np.median(found["r_hat"])),
            "ess": float(np.median(found["ess"])),
            "acceptance": float(np.mean(found["acceptance"])),
        }
        for index, share in enumerate(shares)
    ]  # fmt: skip


def coverage(name: str, quick: bool) -> dict[str, Rows]:
    """Table 1 or the supplement's, once more with each of our ways."""
    return _table(f"coverage_{name}", coverage_at, _coverage_cells(name, quick), quick)


def _table(title: str, function, cells: list[tuple], quick: bool) -> dict[str, Rows]:
    count = NUM_QUICK if quick else NUM_REPLICATES
    path = None if quick else RESULTS / f"{title}.csv"
    return {title: rows_of(function, [(*cell, count) for cell in cells], path)}


def _means_cells(name: str, quick: bool) -> list[tuple[str, str, float]]:
    if quick:
        return [(name, "paper", epsilon) for epsilon in EPSILONS[::2] if name == "regression"]
    return list(itertools.product([name], WAYS, EPSILONS))


def means_at(name: str, way: str, epsilon: float, count: int) -> Rows:
    found = _study(Replicates(name, way, epsilon, fixed=SEED), count)
    print(
        f"  {name}, {way}, epsilon {epsilon}: mean acceptance "
        f"{np.mean(found['acceptance']):.3f}, smallest {np.min(found['smallest']):.3g}, bound "
        f"{np.exp(-epsilon):.3g}", flush=True,
    )  # fmt: skip
    rows = []
    for replicate in range(count):
        row = {"model": name, "way": way, "epsilon": epsilon, "replicate": replicate}
        row |= {
            key: float(found[key][replicate]) for key in ("acceptance", "smallest_rate", "smallest")
        }
        row["bound"] = float(np.exp(-epsilon))
        row |= {f"mean_{i + 1}": float(mean) for i, mean in enumerate(found["mean"][replicate])}
        rows.append(row | {f"mean_{i + 1}": "" for i in range(found["mean"].shape[1], 5)})
    return rows


def means(name: str, quick: bool) -> dict[str, Rows]:
    """Figures 1a and 1b, or 2 and S1: one data set, many releases of it."""
    return _table(f"means_{name}", means_at, _means_cells(name, quick), quick)


def confidential() -> Rows:
    """Posterior and prior means given the fixed data set: the lines of Figures 1a and 2."""
    records = PROBLEMS["log-linear"].records(SEED)
    counts = np.bincount(records["class"], minlength=5)
    rows = [
        {"model": "log-linear", "param": i + 1, "given_records": float(share), "prior": 0.2}
        for i, share in enumerate((2 + counts) / (10 + counts.sum()))
    ]
    records = PROBLEMS["regression"].records(SEED)
    design = np.stack([np.ones(len(records["y"])), records["x1"], records["x2"]], axis=1)
    precision = design.T @ design / 2 + np.eye(3) / 4
    mean = np.linalg.solve(precision, design.T @ records["y"] / 2)
    return rows + [
        {"model": "regression", "param": i + 1, "given_records": float(value), "prior": 0.0}
        for i, value in enumerate(mean)
    ]


def cells(rows: Rows) -> Rows:
    """Every cell of the paper beside ours, with Fisher's exact test of each way."""
    with open(HERE / "expected.csv", newline="") as file:
        expected = list(csv.DictReader(file))
    found = []
    for theirs in expected:
        at = (theirs["model"], float(theirs["epsilon"]), int(theirs["param"]))
        row = {
            "table": theirs["table"], "model": at[0], "epsilon": at[1], "param": at[2],
            "published": float(theirs["covered"]),
        }  # fmt: skip
        for ours in rows:
            if (ours["model"], ours["epsilon"], ours["param"]) != at:
                continue
            count, number = ours["replicates"], int(theirs["replicates"])
            hits, their_hits = round(ours["covered"] * count), round(row["published"] * number)
            table = [[hits, count - hits], [their_hits, number - their_hits]]
            row[ours["way"]] = ours["covered"]
            row[f"p_{ours['way']}"] = float(stats.fisher_exact(table).pvalue)
        if len(row) > 5:
            found.append(row)
    return found


def _agree(found: Rows, way: str, model: str) -> str:
    here = [row for row in found if row["model"] == model and f"p_{way}" in row]
    differ = [row for row in here if row[f"p_{way}"] < LEVEL / len(found)]
    listed = ", ".join(
        f"epsilon {row['epsilon']:g} param {row['param']} ({row[way]:.2f}, theirs "
        f"{row['published']:.2f})"
        for row in differ
    )
    return f"{model}, {way}: {len(here) - len(differ)} of {len(here)} cells agree" + (
        f"; not {listed}" if differ else ""
    )


PARTS = {
    f"{part.__name__}_{name}": functools.partial(part, name)
    for part in (coverage, means)
    for name in PROBLEMS
} | {"confidential": lambda quick: {"confidential": confidential()}}
TABLES = tuple(f"coverage_{name}" for name in PROBLEMS)


def conclude(tables: dict[str, Rows], folder: Path | None) -> None:
    """The cells, from tables of coverage; the figures of those models whose means are there."""
    found = cells([row for title in TABLES for row in tables[title]])
    for model, way in itertools.product(PROBLEMS, (*WAYS, "slip")):
        if any(row["model"] == model and f"p_{way}" in row for row in found):
            print(_agree(found, way, model))
    if folder is not None:
        from experiments.ju2022 import pictures

        columns = dict.fromkeys(key for row in found for key in row)
        write(folder / "cells.csv", [dict.fromkeys(columns, "") | row for row in found], SEED)
        pictures.draw(folder)
