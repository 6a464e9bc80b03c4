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

import equinox as eqx
import numpy as np
from experiments.raisa2021.advice import advice
from experiments.raisa2021.claims import CHECKS
from experiments.raisa2021.problems import EPSILONS, PROBLEMS, Banana, Circle, Problem
from experiments.tables import Rows, write

import noiseaware as na
from noiseaware.diagnostics import squared_mmd
from noiseaware.private_mcmc.budgets import squared_mu_of

HERE = Path(__file__).parent
SEED, OTHER_SEEDS = 2021, (2022, 2023, 2024)
NUM_CHAINS, NUM_REFERENCE = 20, 1000
CLIP_BOUNDS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1000.0)
MOST_QUICK = 2_000  # iterations
PLANE = ("flat-2", "tempered-2", "narrow-2", "correlated-2", "circle")
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
    """Of fixed batches ``fourier`` is what the Fourier accountant allows at a sensitivity of 1 and
    a variance of tau, as the thesis has it: the figure of Poisson batches with noise of twice
    ``sqrt(tau)`` over a contribution, as a replaced one moves by two. ``fourier, half the noise``
    takes ``sqrt(tau)`` over a contribution. Neither bounds the cost of fixed batches.
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
    half = eqx.tree_at(lambda it: it.noise_multiplier, poisson, np.sqrt(tau))
    accounted["minibatch", "fourier, half the noise"] = functools.partial(na.max_iterations, half)
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
        for epsilon in EPSILONS[name][:1] if quick else EPSILONS[name]:
            budget = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace")
            for algorithm, sampler in PROBLEMS[name].samplers().items():
                chains = 4 if quick else NUM_CHAINS
                mu = math.sqrt(chains * squared_mu_of(budget)) * (1 + 1e-9)
                most = na.max_iterations(sampler, budget)
                most = min(most, MOST_QUICK) if quick else most
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
        for epsilon in EPSILONS[name][:1] if quick else EPSILONS[name]:
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
    """The narrow banana at the largest epsilon once more, with other records: is the guided walk
    poorer than the penalty there?
    """
    rows, name, epsilon = [], "narrow-2", 6.0
    budget, chains = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace"), 4 if quick else 8
    mu = math.sqrt(chains * squared_mu_of(budget)) * (1 + 1e-9)
    for seed in OTHER_SEEDS[:1] if quick else OTHER_SEEDS:
        for algorithm in ("penalty", "guided"):
            sampler = PROBLEMS[name].samplers()[algorithm]
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
        for bound in CLIP_BOUNDS[::7] if quick else CLIP_BOUNDS:
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


def spread_of_clipping(quick: bool) -> Rows:
    """Of noisy Hamiltonian chains in two dimensions, at the smallest epsilon: what share of
    gradients and of log ratios each one clips.
    """
    rows = []
    for name in QUICK[:1] if quick else PLANE:
        epsilon = EPSILONS[name][0]
        budget = na.ApproxDP(epsilon, PROBLEMS[name].delta, "replace")
        sampler = PROBLEMS[name].samplers()["hamiltonian"]
        chains, most = 4 if quick else NUM_CHAINS, na.max_iterations(sampler, budget)
        mu = math.sqrt(chains * squared_mu_of(budget)) * (1 + 1e-9)
        stats = near_the_truth(name, sampler, na.GDP(mu, "replace"), chains, most).sample_stats
        row = {"model": name, "epsilon": epsilon}
        for kind in ("gradients_clipped", "ratios_clipped"):
            each = stats[kind].mean("draw").values
            ends = zip(("least", "median", "most"), np.quantile(each, [0.0, 0.5, 1.0]), strict=True)
            row |= {f"{kind}_{end}": float(value) for end, value in ends}
        rows.append(row)
        _say(row)
    return rows


PARTS = {
    "iterations": lambda quick: {"iterations": iterations_by_accountant()},
    "utility": lambda quick: {"utility": utility(quick)},
    "minibatch": lambda quick: {"minibatch": minibatch(quick)},
    "starts": lambda quick: {"starts": starts_of_curators(quick)},
    "advice": lambda quick: {"advice": advice(quick)},
    "clipping": lambda quick: {"clipping": clipping(quick)},
    "spread": lambda quick: {"spread": spread_of_clipping(quick)},
    "other_records": lambda quick: {"other_records": other_records(quick)},
}
TABLES = ("iterations", "utility", "minibatch", "clipping", "spread")  # that claims are about


def conclude(tables: dict[str, Rows], folder: Path | None) -> None:
    if folder is None:
        return  # a quick run has too few cells
    with open(HERE / "expected.csv", newline="") as file:
        expected = list(csv.DictReader(file))
    found = [row | CHECKS[row["check"]](tables)._asdict() for row in expected]
    write(folder / "claims.csv", found, SEED)
    for row in found:
        verdict = "confirmed" if row["confirmed"] else "REFUTED  "
        print(f"{verdict} {row['figure']} {row['claim']}: {row['figures']}")
    from experiments.raisa2021 import pictures

    drawn = ("iterations", "utility", "minibatch", "clipping")
    pictures.draw(folder, SEED, *(tables[name] for name in drawn))
