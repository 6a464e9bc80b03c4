"""The figures of [BS18], and which of its claims they bear out.

A full run writes ``results/``: tables, pictures, and ``claims.csv``. Every number comes from SEED.
"""

import csv
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from experiments.bernstein2018.problems import (
    PROBLEMS,
    Runs,
    add_noise,
    as_releases,
    calibration_cell,
    chains_of_sums,
    draws_of,
    independent_draws,
    naive_sums,
    one_posterior_ranks,
)
from experiments.tables import Rows, write

from noiseaware.diagnostics import ranks, squared_mmd, uniformity

HERE = Path(__file__).parent
SEED = 2018
EPSILONS = (0.01, 0.1)
SIZES = (10, 32, 100, 316, 1000, 3162, 10_000)
MAX_EXACT_RECORDS = 100
LEVEL = 1e-3  # of all tests of a claim together
ECDF_AT = (1000, 0.01)
TRACES_AT, NUM_ITERATIONS = (1000, 0.1), 500


def ranks_by_method(name: str, num_records: int, epsilon: float, num_sets: int):
    """Method -> ranks of the truth."""
    problem = PROBLEMS[name]
    rng = np.random.default_rng([SEED, list(PROBLEMS).index(name), num_records, int(1e3 * epsilon)])
    simulated = problem.simulate(rng, num_sets, num_records)
    noisy = add_noise(rng, simulated, epsilon)
    releases = as_releases(simulated, noisy, num_records)
    naive = naive_sums(rng, problem, simulated, noisy, num_records)
    truth = simulated.truth

    def ranks_of(method, count):
        drawn = draws_of(problem, releases[:count], method, SEED)[..., 0]
        return ranks(drawn, truth[:count], rng)

    # By the kernel itself, whose chains are many and short: a redacted sum can have two
    # explanations, and draws of a chain remember in which of them it is.
    found = {
        "ours": ranks(independent_draws(problem, releases, SEED), truth, rng),
        "non-private": problem.posterior(simulated.sums, num_records).cdf(truth),
        "naive": problem.posterior(naive, num_records).cdf(truth),
    }
    if name == "binomial":
        found["one-posterior"] = one_posterior_ranks(rng, simulated, epsilon, num_records)
    if num_records <= MAX_EXACT_RECORDS:
        found["exact"] = ranks_of("interweaving", num_sets // 4)
    return {method: np.clip(u, 1e-12, 1 - 1e-12) for method, u in found.items()}


def calibration(num_sets: int, sizes) -> tuple[Rows, Rows]:
    """Figure 1a, and 1b: empirical distribution functions at one size."""
    rows, ecdfs = [], []
    for name, epsilon, num_records in itertools.product(PROBLEMS, EPSILONS, sizes):
        found, shares = calibration_at(name, epsilon, num_records, num_sets)
        rows += found
        ecdfs += shares if (num_records, epsilon) == ECDF_AT else []
        shown = ", ".join(f"{row['method']} {row['ks']:.3f}" for row in found)
        print(f"{name}, epsilon {epsilon}, n {num_records}: KS {shown}", flush=True)
    return rows, ecdfs


def calibration_at(name: str, epsilon: float, num_records: int, num_sets: int) -> tuple[Rows, Rows]:
    rows, ecdfs = [], []
    for method, u in ranks_by_method(name, num_records, epsilon, num_sets).items():
        cell = uniformity(u)
        rows.append(
            {
                "model": name, "epsilon": epsilon, "n": num_records, "method": method,
                "sets": cell.count, "ks": cell.ks, "ks_p": cell.ks_p, "sd": cell.sd,
            }
        )  # fmt: skip
        ecdfs += [
            {"model": name, "method": method, "u": at, "share": np.mean(u <= at)}
            for at in np.linspace(0, 1, 101)
        ]
    return rows, ecdfs


def every_size(num_sets: int) -> Rows:
    """Beyond the paper: more data sets and a larger epsilon, with how much each release says."""
    cells = itertools.product(
        ("binomial", "multinomial", "exponential"), (10, 100, 1000), (*EPSILONS, 1.0)
    )
    return [every_size_at(*cell, num_sets) for cell in cells]


def every_size_at(name: str, num_records: int, epsilon: float, num_sets: int) -> dict:
    cell = calibration_cell(name, num_records, epsilon, num_sets, SEED)
    return {
        "model": name, "n": num_records, "epsilon": epsilon, "sets": num_sets,
        "ks": cell.ours.ks, "mean": cell.ours.mean, "sd": cell.ours.sd, "p": cell.ours.p,
        "ks_naive": cell.naive.ks, "sd_over_prior_sd": cell.contraction,
        "evidence": "no evidence" if cell.contraction > 0.95 else "",
    }  # fmt: skip


def utility(num_sets: int, sizes) -> Rows:
    """Figure 1c: squared MMD to the non-private posterior, by the standard normal kernel."""
    cells = itertools.product(("binomial", "multinomial"), EPSILONS, sizes)
    return [row for cell in cells for row in utility_at(*cell, num_sets)]


def utility_at(name: str, epsilon: float, num_records: int, num_sets: int) -> Rows:
    problem = PROBLEMS[name]
    rng = np.random.default_rng([SEED + 1, num_records, int(1e3 * epsilon)])
    simulated = problem.simulate(rng, num_sets, num_records)
    noisy = add_noise(rng, simulated, epsilon)
    releases = as_releases(simulated, noisy, num_records)
    naive = naive_sums(rng, problem, simulated, noisy, num_records)
    ours = draws_of(problem, releases, "statistic_gibbs", SEED)
    sample = functools.partial(problem.sample, rng, n=num_records, size=len(ours))
    found: dict[str, list[float]] = {"ours": [], "naive": []}
    for index, sums in enumerate(simulated.sums):
        reference = sample(sums)
        found["ours"].append(squared_mmd(ours[:, index], reference, 1.0))
        found["naive"].append(squared_mmd(sample(naive[index]), reference, 1.0))
    return [
        {
            "model": name, "epsilon": epsilon, "n": num_records, "method": method,
            "mmd2": np.mean(values), "error": np.std(values) / np.sqrt(num_sets),
        }
        for method, values in found.items()
    ]  # fmt: skip


def traces() -> Rows:
    """Figure 2: chains of the kernel itself, from draws of the prior."""
    num_records, epsilon = TRACES_AT
    rows = []
    for name in ("binomial", "exponential"):
        problem = PROBLEMS[name]
        rng = np.random.default_rng([SEED + 2, len(name)])
        simulated = problem.simulate(rng, 1, num_records)
        noisy = add_noise(rng, simulated, epsilon)
        releases = as_releases(simulated, noisy, num_records)
        runs = Runs(3, 3, NUM_ITERATIONS, 0)
        values = chains_of_sums(problem, releases, SEED, runs)
        rows += [
            {
                "model": name, "chain": i, "iteration": at, "value": float(value),
                "truth": simulated.truth[0],
            }
            for i, series in enumerate(values[:, :, 0, 0].T)
            for at, value in enumerate(series)
        ]  # fmt: skip
    return rows


class Found:
    """The tables, and what they say of each claim: whether it holds, and by which figure."""

    def __init__(self, calibration: Rows, ecdfs: Rows, utility: Rows, traces: Rows):
        self.calibration, self.ecdfs, self.utility, self.traces = (
            calibration, ecdfs, utility, traces,
        )  # fmt: skip

    def cells(self, method: str, *models: str) -> Rows:
        return [
            row for row in self.calibration
            if row["method"] == method and (row["model"] in models or not models)
            and not row["model"].endswith("bounds")
        ]  # fmt: skip

    def ours_is_calibrated(self):
        ours, plain = self.cells("ours"), self.cells("non-private")
        smallest = min(row["ks_p"] for row in ours)
        largest = [max(row["ks"] for row in rows) for rows in (ours, plain)]
        return (
            smallest > LEVEL / len(ours),
            f"smallest p {smallest:.2g} in {len(ours)} cells; largest KS {largest[0]:.3f}, "
            f"non-private {largest[1]:.3f}",
        )

    def naive_fails(self, model: str):
        cells = self.cells("naive", model)
        first = min(cells, key=lambda row: (row["epsilon"], row["n"]))
        return first["ks_p"] < LEVEL, f"KS {first['ks']:.3f} at n = {first['n']}, epsilon = 0.01"

    def naive_improves(self):
        shown, holds = [], True
        for model in ("binomial", "multinomial", "exponential"):
            cells = sorted(self.cells("naive", model), key=lambda row: (row["epsilon"], row["n"]))
            holds &= cells[-1]["ks"] < 0.5 * cells[0]["ks"]
            shown.append(f"{model} {cells[0]['ks']:.3f} to {cells[-1]['ks']:.3f}")
        return holds, "KS from the smallest n and epsilon to the largest: " + ", ".join(shown)

    def one_posterior_fails(self):
        cells = self.cells("one-posterior")
        smallest = min(cells, key=lambda row: row["ks"])
        largest_p = max(row["ks_p"] for row in cells)
        return (
            largest_p < LEVEL / len(cells),
            f"smallest KS {smallest['ks']:.3f} (n = {smallest['n']}, epsilon = "
            f"{smallest['epsilon']}), largest p {largest_p:.2g}",
        )

    def share_in_tails(self, method: str) -> float:
        ecdf = {
            round(row["u"], 2): row["share"] for row in self.ecdfs
            if (row["model"], row["method"]) == ("binomial", method)
        }  # fmt: skip
        return ecdf[0.05] + 1 - ecdf[0.95]

    def naive_is_too_narrow(self):
        share = self.share_in_tails("naive")
        return share > 0.2, f"share of ranks within 0.05 of 0 or 1: {share:.2f}, not 0.10"

    def one_posterior_is_too_wide(self):
        share = self.share_in_tails("one-posterior")
        return share < 0.08, f"share of ranks within 0.05 of 0 or 1: {share:.2f}, not 0.10"

    def ours_is_nearer(self, model: str):
        pairs = {}
        for row in self.utility:
            if row["model"] == model:
                pairs.setdefault((row["epsilon"], row["n"]), {})[row["method"]] = row
        excess = {
            at: (pair["ours"]["mmd2"] - pair["naive"]["mmd2"])
            / np.hypot(pair["ours"]["error"], pair["naive"]["error"])
            for at, pair in pairs.items()
        }
        worst = max(excess, key=excess.get)
        return (
            excess[worst] < 4,
            f"of {len(excess)} cells the worst, epsilon = {worst[0]} and n = {worst[1]}: ours less "
            f"naive is {excess[worst]:.1f} standard errors",
        )

    def chains_arrive(self, model: str):
        rows = [row for row in self.traces if row["model"] == model]
        last = np.array([row["value"] for row in rows if row["iteration"] >= NUM_ITERATIONS // 2])
        away = abs(np.mean(last) - rows[0]["truth"]) / np.std(last)
        return away < 3, f"truth at {away:.1f} sd of the second half of the iterations"

    def claims(self) -> Rows:
        rows = []
        with open(HERE / "expected.csv", newline="") as file:
            for row in csv.DictReader(file):
                holds, shown = self._check(row["check"])()
                rows.append(
                    {
                        "figure": row["figure"], "claim": row["claim"],
                        "found": "confirmed" if holds else "not confirmed", "figures": shown,
                    }
                )  # fmt: skip
        return rows

    def _check(self, name: str) -> Callable:
        """By its name, or by what stands before the model in it."""
        if hasattr(self, name):
            return getattr(self, name)
        check, _, model = name.rpartition("_")
        return functools.partial(getattr(self, check), model)


def _scale(quick: bool) -> tuple[int, tuple[int, ...]]:
    """Data sets a cell, and their sizes."""
    return (200, (10, 100, 1000)) if quick else (1000, SIZES)


TABLES = ("calibration", "ecdfs", "utility", "traces")


def _calibration(quick: bool) -> dict[str, Rows]:
    return dict(zip(TABLES[:2], calibration(*_scale(quick)), strict=True))


def _utility(quick: bool) -> dict[str, Rows]:
    num_sets, sizes = _scale(quick)
    return {"utility": utility(num_sets // 10, sizes)}


def _every_size(quick: bool) -> dict[str, Rows]:
    return {} if quick else {"every_size": every_size(10_000)}


PARTS = {
    "calibration": _calibration,
    "utility": _utility,
    "traces": lambda quick: {"traces": traces()},
    "every_size": _every_size,
}


def conclude(tables: dict[str, Rows], folder: Path | None) -> None:
    claims = Found(**tables).claims()
    for row in claims:
        print(f"[{row['figure']}] {row['claim']}: {row['found']} ({row['figures']})")
    if folder is not None:
        from experiments.bernstein2018 import pictures

        write(folder / "claims.csv", claims, SEED)
        pictures.draw(folder, **tables)
