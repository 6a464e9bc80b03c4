"""Reproduce the figures of [BS18]: ``python -m experiments.bernstein2018.run [--quick]``.

Writes ``results/*.csv``. Every number comes from the seed; bounds of the exponential are fixed
before its rate is drawn. Unfinished: no pictures, no comparison with ``expected.csv``, no run with
the authors' bounds.
"""

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np
from experiments.bernstein2018.problems import PROBLEMS, Simulated, possible
from scipy import stats

import noiseaware as na
from noiseaware.diagnostics import ranks, squared_mmd, thinned, uniformity

HERE = Path(__file__).parent
SEED = 2018
EPSILONS = (0.01, 0.1)
SIZES = (10, 32, 100, 316, 1000, 3162, 10_000)
NUM_OPS_DRAWS, OPS_LOWER, OPS_UPPER = 100, 0.1, 0.9
MAX_EXACT_RECORDS = 100
CHAINS, DRAWS = 4, 64


def releases_of(name: str, simulated: Simulated, epsilon: float, num_records: int, rng):
    """Noisy sums ``[set, m]``, as releases and as numbers, and the scale of their noise."""
    statistic = PROBLEMS[name].statistic
    noise = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
    values = simulated.totals + rng.laplace(scale=noise.scale, size=simulated.totals.shape)
    found = [
        na.Release(
            value, statistic, noise, neighbours="replace", num_records=num_records,
            noise="simulated",
        )
        for value in values
    ]  # fmt: skip
    return found, values, float(noise.scale)


def drawn_by(method: str, name: str, releases) -> np.ndarray:
    """Nearly independent draws of all params ``[draw, set, d]``."""
    problem = PROBLEMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)
        draws = na.fit_many(
            releases, problem.model, seed=SEED, method=method, chains=CHAINS, draws=DRAWS,
            progress=False,
        )  # fmt: skip
    values = draws.posterior[problem.param].values
    values = values.reshape(*values.shape[:2], len(releases), -1)
    return thinned(values, np.full(len(releases), CHAINS * DRAWS / 4))


def one_posterior_ranks(simulated: Simulated, epsilon: float, num_records: int, rng) -> np.ndarray:
    """Of the truth among private draws, by the quantile function of a truncated beta."""
    weight = epsilon / NUM_OPS_DRAWS / (2 * np.log(OPS_UPPER / OPS_LOWER))
    ones = simulated.sums[:, 0]
    law = stats.beta(10 + weight * ones, 10 + weight * (num_records - ones))
    low, high = law.cdf(OPS_LOWER), law.cdf(OPS_UPPER)
    draws = law.ppf(low + (high - low) * rng.uniform(size=(NUM_OPS_DRAWS, len(ones))))
    return ranks(draws, simulated.truth, rng)


def ranks_of_methods(name: str, epsilon: float, num_records: int, num_sets: int) -> dict:
    """Method -> ranks of the truth."""
    problem = PROBLEMS[name]
    rng = np.random.default_rng([SEED, num_records, round(1000 * epsilon), len(name)])
    simulated = problem.simulate(rng, num_sets, num_records)
    releases, values, scale = releases_of(name, simulated, epsilon, num_records, rng)
    noisy = values
    if name == "exponential":  # cheating: noise of the same scale on the whole sum
        noisy = simulated.sums + rng.laplace(scale=scale, size=simulated.sums.shape)
    noisy = possible(name, noisy, num_records)
    found = {
        "ours": ranks(drawn_by("statistic_gibbs", name, releases)[..., 0], simulated.truth, rng),
        "non-private": problem.cdf(simulated.truth, simulated.sums, num_records),
        "naive": problem.cdf(simulated.truth, noisy, num_records),
    }
    if name == "binomial":
        found["one-posterior"] = one_posterior_ranks(simulated, epsilon, num_records, rng)
    if num_records <= MAX_EXACT_RECORDS:
        exact = drawn_by("interweaving", name, releases[: num_sets // 4])[..., 0]
        found["exact"] = ranks(exact, simulated.truth[: num_sets // 4], rng)
    return {method: np.clip(u, 1e-12, 1 - 1e-12) for method, u in found.items()}


def calibration(num_sets: int, sizes) -> list[dict]:
    """Figure 1a."""
    rows = []
    for name in PROBLEMS:
        for epsilon in EPSILONS:
            for num_records in sizes:
                for method, u in ranks_of_methods(name, epsilon, num_records, num_sets).items():
                    found = uniformity(u)
                    rows.append(
                        {
                            "model": name, "epsilon": epsilon, "n": num_records,
                            "method": method, "sets": found.count, "ks": found.ks,
                            "ks_p": found.ks_p, "sd": found.sd,
                        }
                    )  # fmt: skip
                print(name, epsilon, num_records, {
                    row["method"]: round(row["ks"], 3) for row in rows[-5:]
                    if (row["model"], row["epsilon"], row["n"]) == (name, epsilon, num_records)
                }, flush=True)  # fmt: skip
    return rows


def empirical_cdfs(num_sets: int) -> list[dict]:
    """Figure 1b: at n = 1000 and epsilon = 0.01."""
    grid = np.linspace(0, 1, 101)
    return [
        {"model": name, "method": method, "u": at, "share": float(np.mean(u <= at))}
        for name in PROBLEMS
        for method, u in ranks_of_methods(name, 0.01, 1000, num_sets).items()
        for at in grid
    ]


def utility(num_sets: int, sizes) -> list[dict]:
    """Figure 1c: squared MMD to the non-private posterior, standard normal kernel."""
    rows = []
    for name in ("binomial", "multinomial"):
        problem = PROBLEMS[name]
        for epsilon in EPSILONS:
            for num_records in sizes:
                rng = np.random.default_rng([SEED + 1, num_records, round(1000 * epsilon)])
                simulated = problem.simulate(rng, num_sets, num_records)
                releases, values, _ = releases_of(name, simulated, epsilon, num_records, rng)
                ours = drawn_by("statistic_gibbs", name, releases)
                noisy = possible(name, values, num_records)
                for method in ("ours", "naive"):
                    found = []
                    for index in range(num_sets):
                        size = len(ours)
                        reference = problem.sample(rng, simulated.sums[index], num_records, size)
                        other = ours[:, index]
                        if method == "naive":
                            other = problem.sample(rng, noisy[index], num_records, size)
                        found.append(squared_mmd(other, reference, 1.0))
                    rows.append(
                        {
                            "model": name, "epsilon": epsilon, "n": num_records,
                            "method": method, "mmd2": float(np.mean(found)),
                            "error": float(np.std(found) / np.sqrt(num_sets)),
                        }
                    )  # fmt: skip
    return rows


def traces() -> list[dict]:
    """Figure 2: 500 iterations of a chain from a draw of the prior, n = 1000, epsilon = 0.1."""
    rows = []
    for name in ("binomial", "exponential"):
        problem = PROBLEMS[name]
        rng = np.random.default_rng([SEED + 2, len(name)])
        simulated = problem.simulate(rng, 1, 1000)
        releases, _, _ = releases_of(name, simulated, 0.1, 1000, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", na.ConvergenceWarning)
            draws = na.fit(
                releases[0], problem.model, seed=SEED, method="statistic_gibbs", draws=500,
                sweeps_per_draw=1, progress=False,
            )  # fmt: skip
        values = draws.posterior[problem.param].values
        rows += [
            {
                "model": name, "chain": chain, "iteration": i, "value": float(value),
                "truth": float(simulated.truth[0]),
            }
            for chain, series in enumerate(values)
            for i, value in enumerate(series)
        ]  # fmt: skip
    return rows


def write(name: str, rows: list[dict]) -> None:
    path = HERE / "results" / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        file.write(f"# seed {SEED}, noiseaware {na.__version__}\n")
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: f"{x:.5g}" if isinstance(x, float) else x for key, x in row.items()}
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer data sets and sizes")
    quick = parser.parse_args().quick
    num_sets, sizes = (200, (10, 100, 1000)) if quick else (1000, SIZES)
    write("calibration", calibration(num_sets, sizes))
    write("ecdfs", empirical_cdfs(num_sets))
    write("utility", utility(num_sets // 10, sizes))
    write("traces", traces())


if __name__ == "__main__":
    main()
