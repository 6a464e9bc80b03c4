"""The figures of [R21] on penalty and HMC chains, which of its claims they bear out, and what comes
of a start that a curator can have.

A full run writes ``results/``: tables, pictures, and ``claims.csv``. Every number comes from SEED.
The twenty chains of a cell have a budget each, as in the thesis: one call with twenty budgets.
"""

import csv
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from experiments.raisa2021.advice import advice
from experiments.raisa2021.problems import EPSILONS, PROBLEMS, Banana, Circle, Problem
from experiments.tables import Rows, write

import noiseaware as na
from noiseaware.diagnostics import squared_mmd
from noiseaware.private_mcmc.budgets import squared_mu_of

HERE = Path(__file__).parent
SEED, OTHER_SEEDS = 2021, (2022, 2023, 2024)
NUM_CHAINS, NUM_REFERENCE = 20, 1000
CLIP_BOUNDS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1000.0)
QUICK = ("flat-2", "tempered-2", "correlated-2", "circle")
NUM_PILOTS, PILOT_EPSILONS, PILOT_SHARE = 5, (1.0, 4.0), 0.2
# Of a budget that buys too few draws for settings to be tuned: no run, nothing spent.
REFUSED = {"iterations": 0, "distance": math.nan, "worst": math.nan, "ratios_clipped": math.nan}
PILOTED = ("flat-2", "flat-10", "tempered-2", "gauss-30", "narrow-2", "correlated-2")


@functools.cache
def data_of(name: str, seed: int = SEED):
    """Records, and exact draws of their posterior."""
    problem = PROBLEMS[name]
    records = problem.simulate(seed)
    rng = np.random.default_rng([SEED, 1])
    exact = problem.model.posterior(rng, records, NUM_REFERENCE, problem.temperature)
    return records, exact


def distance(problem: Problem, draws: np.ndarray, exact: np.ndarray) -> float:
    """The thesis's: of the circle, how far the mean is from the origin; else ``sqrt |MMD^2|`` with
    the median of 500 paired distances as bandwidth.
    """
    if isinstance(problem.model, Circle):
        return float(np.linalg.norm(draws.mean(axis=0)))
    rng = np.random.default_rng([SEED, 2])
    pairs = draws[rng.integers(0, len(draws), 500)] - exact[rng.integers(0, len(exact), 500)]
    bandwidth = float(np.median(np.linalg.norm(pairs, axis=1)))
    thinned = draws[:: max(1, len(draws) // NUM_REFERENCE)]
    return math.sqrt(abs(squared_mmd(thinned, exact, bandwidth)))


def distances(problem: Problem, draws, exact: np.ndarray) -> list[float]:
    """Of each chain."""
    return [distance(problem, chain, exact) for chain in draws.posterior["theta"].values]


def iterations_by_accountant() -> Rows:
    """Of fixed batches ``fourier`` is what the Fourier accountant allows, which is the figure of
    Poisson batches with twice the noise over a contribution; it does not bound their cost.
    """
    problem = PROBLEMS["flat-2"]
    accounted = {
        (name, accountant): functools.partial(na.max_iterations, sampler, accountant=accountant)
        for name, sampler in problem.samplers().items()
        for accountant in ("gaussian", "zcdp")
    }
    tau, step, clip, size = problem.minibatch["minibatch"]
    fixed = na.Penalty(
        step_size=step, clip=clip, noise_multiplier=math.sqrt(tau),
        batches=na.FixedBatches(num_records=problem.num_records, size=size),
    )  # fmt: skip
    poisson = problem.batch_samplers()["minibatch"]
    accounted["minibatch", "rdp"] = functools.partial(na.max_iterations, fixed)
    accounted["minibatch", "fourier"] = functools.partial(na.max_iterations, poisson)
    return [
        {"algorithm": algorithm, "epsilon": epsilon, "accountant": accountant,
         "iterations": most(na.ApproxDP(epsilon, problem.delta, "replace"))}
        for (algorithm, accountant), most in accounted.items()
        for epsilon in np.arange(0.5, 6.01, 0.5)
    ]  # fmt: skip


def utility(quick: bool, names: Iterable[str] = PROBLEMS) -> Rows:
    """Median distance and quartiles over chains that start near the truth, as the thesis's do."""
    rows = []
    for name in QUICK if quick else names:
        for epsilon in EPSILONS[name][::3] if quick else EPSILONS[name]:
            budget = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace")
            for algorithm, sampler in PROBLEMS[name].samplers().items():
                chains = 4 if quick else NUM_CHAINS
                mu = math.sqrt(chains * squared_mu_of(budget)) * (1 + 1e-9)
                most = na.max_iterations(sampler, budget)
                runs = [near_the_truth(name, sampler, na.GDP(mu, "replace"), chains, most)]
                rows.append(row_of(name, algorithm, epsilon, most, runs))
                _say(rows[-1])
    return rows


def minibatch(quick: bool, names: Iterable[str] = PROBLEMS) -> Rows:
    """The same for algorithms that ask batches, where the thesis has settings for them. Their
    budgets have no squares to add: a call for each chain.
    """
    rows = []
    for name in QUICK if quick else names:
        for epsilon in EPSILONS[name][::3] if quick else EPSILONS[name]:
            budget = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace")
            for algorithm, sampler in PROBLEMS[name].batch_samplers().items():
                most = na.max_iterations(sampler, budget)
                calls = 4 if quick else NUM_CHAINS
                runs = [
                    near_the_truth(name, sampler, budget, 1, most, SEED + call)
                    for call in range(calls)
                    if most > 1
                ]
                rows.append(row_of(name, algorithm, epsilon, most, runs))
                _say(rows[-1])
    return rows


def other_records(quick: bool) -> Rows:
    """The narrow banana at the largest epsilon once more, with other records."""
    rows, name, epsilon = [], "narrow-2", 6.0
    budget, chains = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace"), 4 if quick else 8
    mu = math.sqrt(chains * squared_mu_of(budget)) * (1 + 1e-9)
    for seed in OTHER_SEEDS[:1] if quick else OTHER_SEEDS:
        for algorithm, sampler in PROBLEMS[name].samplers().items():
            most = na.max_iterations(sampler, budget)
            run = near_the_truth(name, sampler, na.GDP(mu, "replace"), chains, most, records=seed)
            rows.append({"records": seed} | row_of(name, algorithm, epsilon, most, [run], seed))
            _say(rows[-1])
    return rows


def near_the_truth(
    name: str, sampler, budget, chains: int, iterations: int, seed: int = SEED, records: int = SEED
):
    problem = PROBLEMS[name]
    return na.private_sample(
        data_of(name, records)[0], problem.model, sampler, budget, chains=chains,
        iterations=iterations, start={"theta": problem.starts(seed, chains)},
        temperature=problem.temperature, seed=seed, progress=False,
    )  # fmt: skip


def row_of(
    name: str, algorithm: str, epsilon: float, iterations: int, runs: list, records: int = SEED
) -> dict:
    """Not a number where a budget allows no iterations."""
    row = {"model": name, "algorithm": algorithm, "epsilon": epsilon, "iterations": iterations}
    exact = data_of(name, records)[1]
    each = [one for run in runs for one in distances(PROBLEMS[name], run, exact)]
    low, middle, high = np.quantile(each or [math.nan], [0.25, 0.5, 0.75])
    return row | {
        "distance": float(middle),
        "quartile_1": float(low),
        "quartile_3": float(high),
        "accepted": _mean_of(runs, "accepted"),
        "ratios_clipped": _mean_of(runs, "ratios_clipped"),
        "gradients_clipped": _mean_of(runs, "gradients_clipped"),
    }


def _mean_of(runs: list, name: str) -> float:
    found = [run.sample_stats[name].mean() for run in runs if name in run.sample_stats]
    return float(np.mean(found)) if found else math.nan


def _say(row: dict) -> None:
    shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
    print("  " + "  ".join(shown), flush=True)


def release_pilot(problem: Problem) -> na.PilotRelease:
    """Noisy means between public bounds, and the params that have them."""
    model, names = problem.model, list(problem.model.columns)
    assert isinstance(model, Banana)

    def estimate(sums):
        means = np.array([sums[name] for name in names]) / problem.num_records
        means[1] -= float(model.curvature) * means[0] ** 2
        return {"theta": means}

    statistics = [na.Clamped(name, -20.0, 20.0) for name in names]
    return na.PilotRelease(statistics, share=PILOT_SHARE, estimate=estimate)


STARTS: dict[str, Callable[[Problem], na.PilotChain | na.PilotRelease | None]] = {
    "prior": lambda problem: None,
    "chain": lambda problem: na.PilotChain(share=PILOT_SHARE),
    "release": release_pilot,
}


def starts_of_curators(quick: bool, names: Iterable[str] = PILOTED) -> Rows:
    """The same budgets with a start and settings that saw no record for free: tuned at the prior,
    after a pilot by chains, and after a pilot by a release.
    """
    rows = []
    cells = itertools.product(
        ("correlated-2",) if quick else names,
        PILOT_EPSILONS[:1] if quick else PILOT_EPSILONS,
        (na.Penalty,) if quick else (na.Penalty, na.GuidedPenalty, na.HamiltonianPenalty),
        STARTS,
    )
    for cell in cells:
        rows.append(from_start(*cell, repeats=2 if quick else NUM_PILOTS))
        _say(rows[-1])
    return rows


def from_start(
    name: str, epsilon: float, kind: type[na.PrivateSampler], start: str, repeats: int
) -> dict:
    problem = PROBLEMS[name]
    records, exact = data_of(name)
    budget = na.ApproxDP(epsilon, problem.delta, "replace")
    row = {"model": name, "algorithm": kind.__name__, "start": start, "epsilon": epsilon}
    try:
        runs = [
            na.private_sample(
                records, problem.model, kind, budget, start=STARTS[start](problem),
                temperature=problem.temperature, seed=SEED + repeat, progress=False,
            )
            for repeat in range(repeats)
        ]  # fmt: skip
    except na.SmallBudgetError:
        return row | REFUSED
    each = [distance(problem, draws.posterior["theta"].values[0], exact) for draws in runs]
    clipped = [draws.sample_stats["ratios_clipped"].mean() for draws in runs]
    return row | {
        "iterations": runs[0].attrs["iterations"],
        "distance": float(np.median(each)),
        "worst": max(each),
        "ratios_clipped": float(np.mean(clipped)),
    }


def clipping(quick: bool) -> Rows:
    """Without noise: what clipping alone does to a random walk and to HMC."""
    rows = []
    for name in ("flat-2",) if quick else ("flat-2", "flat-10"):
        problem = PROBLEMS[name]
        records, exact = data_of(name)
        chains = 4 if quick else NUM_CHAINS
        starts = {"theta": problem.starts(SEED, chains)}
        step = {"flat-2": 0.008, "flat-10": 0.0015}[name]
        for bound in CLIP_BOUNDS[::3] if quick else CLIP_BOUNDS:
            samplers = {
                "random walk": (
                    na.Penalty(step_size=step, clip=bound, noise_multiplier=0.0), 3000
                ),
                "HMC": (
                    na.HamiltonianPenalty(
                        step_size=0.002, num_steps=10, clip=bound, gradient_clip=1000.0,
                        noise_multiplier=0.0, gradient_noise_multiplier=0.0,
                    ),
                    500,
                ),
            }  # fmt: skip
            for algorithm, (sampler, iterations) in samplers.items():
                draws = na.private_sample(
                    records, problem.model, sampler, na.GDP(1.0, "replace"), start=starts,
                    chains=chains, iterations=iterations, seed=SEED, progress=False,
                )  # fmt: skip
                each = distances(problem, draws, exact)
                rows.append(
                    {
                        "model": name,
                        "algorithm": algorithm,
                        "clip": bound,
                        "distance": float(np.median(each)),
                        "ratios_clipped": float(draws.sample_stats["ratios_clipped"].mean()),
                    }
                )
                _say(rows[-1])
    return rows


# Claims: each from the tables, true or false.


def _cell(rows: Rows, model: str, algorithm: str, epsilon: float, what: str = "distance") -> float:
    (found,) = (
        row[what]
        for row in rows
        if (row["model"], row["algorithm"], row["epsilon"]) == (model, algorithm, epsilon)
    )
    return found


def _wins(rows: Rows, model: str, first: str, second: str) -> float:
    """At which share of epsilons the first has the smaller median; what no budget allowed has the
    largest.
    """

    def median(algorithm, epsilon):
        return np.nan_to_num(_cell(rows, model, algorithm, epsilon), nan=np.inf)

    smaller = [median(first, at) < median(second, at) for at in EPSILONS[model]]
    return float(np.mean(smaller))


FLAT, BATCHED = ("flat-2", "flat-10"), ("minibatch", "minibatch guided", "barker")


def claims(
    iterations: Rows, cells: Rows, batched: Rows, clipped: Rows
) -> dict[str, Callable[[], bool]]:
    cells = cells + batched

    def most_wins(models, firsts, seconds):
        return all(
            _wins(cells, model, first, second) > 0.5
            for model in models
            for first in firsts
            for second in seconds
        )

    def ratio(model, first, second, epsilon):
        return _cell(cells, model, first, epsilon) / _cell(cells, model, second, epsilon)

    def tight():
        by = {(r["algorithm"], r["epsilon"], r["accountant"]): r["iterations"] for r in iterations}
        return all(
            by[algorithm, epsilon, "gaussian"] > 1.2 * by[algorithm, epsilon, "zcdp"]
            for algorithm, epsilon, accountant in by
            if accountant == "zcdp"
        )

    def harmless():
        rows = [row for row in clipped if row["model"] == "flat-2" and row["clip"] >= 2]
        least = {
            algorithm: min(row["distance"] for row in rows if row["algorithm"] == algorithm)
            for algorithm in ("random walk", "HMC")
        }
        return all(row["distance"] < 2 * least[row["algorithm"]] for row in rows)

    def clipped_in(models, algorithms):
        return [
            row["ratios_clipped"]
            for row in cells
            if row["model"] in models and row["algorithm"] in algorithms
        ]

    def little():
        """Almost all: nine of ten cells."""
        shares = clipped_in(PROBLEMS, ("penalty", "guided", "hamiltonian", *BATCHED[:2]))
        return float(np.mean(np.array(shares) < 0.1)) > 0.9

    def fourier():
        by = {(r["epsilon"], r["accountant"]): r["iterations"] for r in iterations}
        return all(
            count > 1.2 * by[epsilon, "rdp"]
            for (epsilon, accountant), count in by.items()
            if accountant == "fourier"
        )

    pairs = [("penalty", "guided"), ("penalty", "hamiltonian"), ("guided", "hamiltonian")]
    return {
        "tight_accounting": tight,
        "clipping_is_harmless": harmless,
        "flat_penalty_beats_hmc": lambda: most_wins(
            ("flat-2", "flat-10"), ("penalty", "guided"), ("hamiltonian",)
        ),
        "tempered_hmc_beats_penalty": lambda: most_wins(
            ("tempered-2", "tempered-10"), ("hamiltonian",), ("penalty", "guided")
        ),
        "gauss_guided_is_best": lambda: most_wins(
            ("gauss-30",), ("guided",), ("penalty", "hamiltonian")
        ),
        "gauss_hmc_beats_penalty": lambda: most_wins(("gauss-30",), ("hamiltonian",), ("penalty",)),
        "narrow_are_equal_below_4": lambda: all(
            1 / 1.5 < ratio("narrow-2", *pair, epsilon) < 1.5
            for pair in pairs
            for epsilon in (1.0, 2.0, 3.0)
        ),
        "narrow_guided_is_poor_above_4": lambda: all(
            ratio("narrow-2", "guided", other, epsilon) > 1.5
            for other in ("penalty", "hamiltonian")
            for epsilon in (5.0, 6.0)
        ),
        "correlated_penalties_are_equal": lambda: all(
            1 / 1.5 < ratio("correlated-2", "penalty", "guided", epsilon) < 1.5
            for epsilon in EPSILONS["correlated-2"]
        ),
        "correlated_hmc_is_best": lambda: most_wins(
            ("correlated-2",), ("hamiltonian",), ("penalty", "guided")
        ),
        "little_is_clipped": little,
        "narrow_guided_is_clipped": lambda: np.median(clipped_in(["narrow-2"], ["guided"])) > 0.1,
        "fourier_allows_more": fourier,
        "flat_batches_are_not_useful": lambda: (
            most_wins(("flat-2",), ("penalty", "guided", "hamiltonian"), BATCHED)
            and most_wins(("flat-10",), ("penalty", "guided", "hamiltonian"), BATCHED[:2])
        ),
        "flat_10_barker_is_useful": lambda: most_wins(("flat-10",), ("barker",), BATCHED[:2]),
        "barker_is_clipped": lambda: min(clipped_in(FLAT, ["barker"])) > 0.1,
        "circle_hmc_beats_penalty_at_half": lambda: (
            ratio("circle", "hamiltonian", "penalty", 0.5) < 1
        ),
    }


PARTS = {
    "iterations": lambda quick: {"iterations": iterations_by_accountant()},
    "utility": lambda quick: {"utility": utility(quick)},
    "minibatch": lambda quick: {"minibatch": minibatch(quick)},
    "starts": lambda quick: {"starts": starts_of_curators(quick)},
    "advice": lambda quick: {"advice": advice(quick)},
    "clipping": lambda quick: {"clipping": clipping(quick)},
    "other_records": lambda quick: {"other_records": other_records(quick)},
}
TABLES = tuple(PARTS)


def conclude(tables: dict[str, Rows], folder: Path | None) -> None:
    if folder is None:
        return  # a quick run has too few cells
    used = [tables[name] for name in ("iterations", "utility", "minibatch", "clipping")]
    with open(HERE / "expected.csv") as file:
        expected = list(csv.DictReader(file))
    checks = claims(*used)
    found = [row | {"confirmed": checks[row["check"]]()} for row in expected]
    write(folder / "claims.csv", found, SEED)
    for row in found:
        print("confirmed" if row["confirmed"] else "REFUTED  ", row["figure"], row["claim"])
    from experiments.raisa2021 import pictures

    pictures.draw(folder, *used)
