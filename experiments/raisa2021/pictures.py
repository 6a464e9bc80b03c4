"""Figures 6.1 to 6.9 from the tables; 6.4, 6.5 and 6.9 in one, as are 6.6 and 6.7."""

from pathlib import Path

import numpy as np
from experiments.raisa2021.problems import PROBLEMS
from experiments.tables import values_of
from matplotlib import pyplot

COLORS = {
    "penalty": "C0", "guided": "C1", "hamiltonian": "C2", "random walk": "C0", "HMC": "C2",
    "minibatch": "C3", "minibatch guided": "C4", "barker": "C5",
}  # fmt: skip
DRAWN = ("flat-2", "tempered-2", "narrow-2", "correlated-2", "circle")


def draw(folder: Path, seed: int, iterations, cells, batched, clipped) -> None:
    _posteriors(seed, folder / "figure_6_1.png")
    _iterations(iterations, folder / "figure_6_2.png")
    _clipping(clipped, folder / "figure_6_3.png")
    both = cells + batched
    _by_epsilon(both, "distance", "MMD (circle: error of mean)", folder / "figure_6_4.png")
    _by_epsilon(both, "ratios_clipped", "share of ratios clipped", folder / "figure_6_6.png")
    paths = [row for row in cells if row["algorithm"] == "hamiltonian"]
    _by_epsilon(paths, "gradients_clipped", "share of gradients clipped", folder / "figure_6_8.png")


def _posteriors(seed: int, path) -> None:
    """As densities of exact draws; the thesis has contours."""
    canvas, axes = pyplot.subplots(1, len(DRAWN), figsize=(14, 3), layout="constrained")
    for axis, name in zip(axes, DRAWN, strict=True):
        problem = PROBLEMS[name]
        exact = problem.model.posterior(
            np.random.default_rng(0), problem.simulate(seed), 200_000, problem.temperature
        )
        axis.hist2d(*exact.T, bins=80, cmap="Blues", rasterized=True)
        axis.set(title=name, xlabel="θ1", ylabel="θ2")
    canvas.savefig(path, dpi=90)


def _iterations(rows, path) -> None:
    algorithms = values_of(rows, "algorithm")
    canvas, axes = pyplot.subplots(
        1, len(algorithms), figsize=(3.4 * len(algorithms), 3), layout="constrained"
    )
    for axis, algorithm in zip(axes, algorithms, strict=True):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        for accountant in values_of(mine, "accountant"):
            points = [
                (row["epsilon"], row["iterations"])
                for row in mine
                if row["accountant"] == accountant
            ]
            axis.plot(*zip(*points), label=accountant)
        axis.set(title=algorithm, xlabel="ε", ylabel="iterations")
        axis.legend(frameon=False)
    canvas.savefig(path, dpi=90)


def _by_epsilon(rows, key, label, path) -> None:
    models = values_of(rows, "model")
    canvas, axes = pyplot.subplots(
        2, (len(models) + 1) // 2, figsize=(13, 5.5), layout="constrained", squeeze=False
    )
    for axis, model in zip(axes.flat, models, strict=False):
        mine = [row for row in rows if row["model"] == model]
        for algorithm in values_of(mine, "algorithm"):
            points = [(row["epsilon"], row[key]) for row in mine if row["algorithm"] == algorithm]
            axis.plot(*zip(*points), "o-", ms=3, color=COLORS[algorithm], label=algorithm)
        axis.set(title=model, xlabel="ε")
    for line in axes:
        line[0].set_ylabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    canvas.savefig(path, dpi=90)


def _clipping(rows, path) -> None:
    models = values_of(rows, "model")
    canvas, axes = pyplot.subplots(
        2, len(models), figsize=(3.4 * len(models), 5), layout="constrained", squeeze=False
    )
    for column, model in enumerate(models):
        for algorithm in values_of(rows, "algorithm"):
            mine = [row for row in rows if (row["model"], row["algorithm"]) == (model, algorithm)]
            for line, key in enumerate(("clip", "ratios_clipped")):
                axes[line, column].plot(
                    [row[key] for row in mine], [row["distance"] for row in mine], "o-", ms=3,
                    color=COLORS[algorithm], label=algorithm,
                )  # fmt: skip
        axes[0, column].set(title=model, xlabel="clip bound", xscale="log", ylabel="MMD")
        axes[1, column].set(xlabel="share of ratios clipped", ylabel="MMD")
    axes[0, 0].legend(frameon=False)
    canvas.savefig(path, dpi=90)
