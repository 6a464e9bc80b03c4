"""Hours of sleep, published with noise: what the noise does to an analyst who ignores it.

Both sides in one script. The curator holds 5,035 records of NHANES 2017-2018 and publishes the
clamped moments of a regression at epsilon = 1. Two analysts see only that release: one takes
the noisy numbers for true, the other fits them with noiseaware. ``data/CODEBOOK.md`` says where
data and bounds come from.

    python examples/demo.py [--seed 7]

Without a seed the noise is fresh and secure, so every run is another release; with one it is
simulated, so that a picture can be drawn again.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas

import noiseaware as na

HERE = Path(__file__).parent
RESPONSE, PREDICTORS = "sleep", ("age", "income", "household")
UNITS = {
    "age": "a year of age",
    "income": "a poverty line of income",
    "household": "a person in the house",
}
BOUNDS = {"sleep": (2, 14), "age": (0, 80), "income": (0, 5), "household": (1, 7)}
EPSILON = 1.0
INTRODUCTION = """
How do hours of sleep go with age, income (in poverty lines) and size of household? A health
survey, NHANES, asked {count:,} people. It publishes {sums} sums over them, each hidden by Laplace
noise, for a privacy cost of epsilon = 1. In the sums every column is mapped from its bounds to
[-1, 1].
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="simulate the noise with this seed")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"))
    arguments = parser.parse_args()
    begin = time.perf_counter()

    records = pandas.read_csv(HERE / "data" / "nhanes_2017_2018.csv")
    release = curator(records, arguments.seed)
    print(INTRODUCTION.format(count=release.num_records, sums=len(release.values)))
    print(release, end="\n\n")
    print("Fitting the release, less than a minute on two cores ...\n", flush=True)
    draws = analyst(release)

    slopes = draws.posterior["coefficients"].sel(coefficient=list(PREDICTORS))
    low, high = np.quantile(slopes, [0.025, 0.975], axis=(0, 1))
    intervals = {
        "confidential": ordinary_least_squares(moments(records), len(records)),
        "naive": ordinary_least_squares(release.values, release.num_records),
        "noise-aware": np.stack([low, high], axis=1),
    }
    print(table(intervals), end="\n\n")
    coverage = naive_coverage(records, release.mechanism)
    rates = ", ".join(f"{name} {rate:.0%}" for name, rate in zip(PREDICTORS, coverage, strict=True))
    print("Had the noise been drawn 1,000 times, the naive 95 % interval would have held the")
    print(f"confidential slope only so often: {rates}.\n")
    picture(intervals, arguments.picture)
    print(f"Picture: {arguments.picture}. {time.perf_counter() - begin:.0f} s in all.")


def statistic() -> na.RegressionMoments:
    return na.RegressionMoments(RESPONSE, PREDICTORS, BOUNDS)


def curator(records: pandas.DataFrame, seed: int | None) -> na.Release:
    noise = na.calibrate(na.Laplace, statistic(), neighbours="replace", epsilon=EPSILON)
    if seed is None:
        return na.publish(records, statistic(), noise, neighbours="replace")
    return na.simulate_release(seed, records, statistic(), noise, neighbours="replace")


def analyst(release: na.Release):
    """Priors in the units of the data: hours, years, poverty lines, people."""
    model = na.LinearRegression(
        RESPONSE,
        PREDICTORS,
        coefficients=na.NormalPrior(location=[8, 0, 0, 0], scale=[4, 0.2, 2, 2]),
        noise_stddev=na.StddevPrior(guess=2, weight=4),
        predictor_means=na.NormalPrior(location=[45, 2.5, 3], scale=[20, 2, 2]),
        predictor_covariance=na.CovariancePrior(stddevs=[20, 2, 2], weight=6),
    )
    return na.fit(release, model, seed=1, draws=400)


def moments(records: pandas.DataFrame) -> np.ndarray:
    """The same sums, without noise: what the curator alone could use."""
    unit = [
        2 * (records[name] - BOUNDS[name][0]) / (BOUNDS[name][1] - BOUNDS[name][0]) - 1
        for name in (*PREDICTORS, RESPONSE)
    ]
    products = [np.sum(unit[i] * unit[j]) for i in range(4) for j in range(i, 4)]
    return np.array([*(np.sum(column) for column in unit), *products])


def ordinary_least_squares(sums: np.ndarray, num_records: int) -> np.ndarray:
    """95 % intervals of the slopes, in the units of the data, from sums taken for exact."""
    size = len(PREDICTORS) + 1
    gram = np.zeros((size + 1, size + 1))
    gram[0, 0], gram[0, 1:] = num_records, sums[:size]
    gram[1:, 1:][np.triu_indices(size)] = sums[size:]
    gram = np.triu(gram) + np.triu(gram, 1).T
    design, cross, square = gram[:-1, :-1], gram[:-1, -1], gram[-1, -1]
    slopes = np.linalg.solve(design, cross)
    variance = max(square - slopes @ cross, 0.0) / (num_records - size)
    errors = np.sqrt(np.maximum(variance * np.diag(np.linalg.inv(design)), 0.0))
    width = {name: upper - lower for name, (lower, upper) in BOUNDS.items()}
    scale = np.array([width[RESPONSE] / width[name] for name in PREDICTORS])
    ends = slopes[1:, None] + 1.96 * errors[1:, None] * np.array([-1, 1])
    return ends * scale[:, None]


def naive_coverage(records: pandas.DataFrame, noise: na.Laplace) -> np.ndarray:
    """How often a naive interval holds the confidential slope, over 1,000 noise draws."""
    exact = moments(records)
    truth = ordinary_least_squares(exact, len(records)).mean(axis=1)
    draws = np.random.default_rng(0).laplace(scale=noise.scale, size=(1_000, len(exact)))
    ends = np.array([ordinary_least_squares(exact + draw, len(records)) for draw in draws])
    return np.mean((ends[..., 0] <= truth) & (truth <= ends[..., 1]), axis=0)


def table(intervals: dict[str, np.ndarray]) -> str:
    truth = intervals["confidential"].mean(axis=1)
    lines = [
        f"hours of sleep for            {'':>16}{'95 % interval':>20}   holds the confidential?"
    ]
    for index, name in enumerate(PREDICTORS):
        for who, ends in intervals.items():
            low, high = ends[index]
            holds = "" if who == "confidential" else "yes" if low <= truth[index] <= high else "NO"
            label = UNITS[name] if who == "confidential" else ""
            lines.append(f"{label:<30}{who:>14}   [{low:7.3f}, {high:7.3f}]   {holds}")
    return "\n".join(lines)


def picture(intervals: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"confidential": "#555555", "naive": "#c2452d", "noise-aware": "#2b6ca3"}
    figure, axes = plt.subplots(1, len(PREDICTORS), figsize=(9, 2.6), layout="constrained")
    for index, (name, axis) in enumerate(zip(PREDICTORS, axes, strict=True)):
        truth = intervals["confidential"][index].mean()
        axis.axvline(truth, color=colours["confidential"], linewidth=1, linestyle=":")
        for row, (who, ends) in enumerate(reversed(intervals.items())):
            line = {"color": colours[who], "linewidth": 6, "solid_capstyle": "butt"}
            axis.plot(ends[index], [row, row], **line)
        axis.set_yticks(range(3), reversed(intervals) if index == 0 else [""] * 3)
        axis.set_ylim(-0.6, 2.6)
        axis.locator_params(axis="x", nbins=4)
        axis.set_title(f"hours for {UNITS[name]}", fontsize=10)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False)
    figure.suptitle("Hours of sleep from one release at epsilon = 1: 95 % intervals", fontsize=11)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
