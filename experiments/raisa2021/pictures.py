"""Figures 6.2-6.7 and 6.9 from the tables."""

from pathlib import Path

from experiments.tables import values_of
from matplotlib import pyplot

COLORS = {
    "penalty": "C0", "guided": "C1", "hamiltonian": "C2", "random walk": "C0", "HMC": "C2",
}  # fmt: skip


def draw(folder: Path, iterations, cells, clipped) -> None:
    _iterations(iterations, folder / "figure_6_2.png")
    _clipping(clipped, folder / "figure_6_3.png")
    _by_epsilon(cells, "distance", "MMD (circle: error of mean)", folder / "figure_6_4.png")
    _by_epsilon(cells, "ratios_clipped", "share of ratios clipped", folder / "figure_6_6.png")


def _iterations(rows, path) -> None:
    algorithms = values_of(rows, "algorithm")
    canvas, axes = pyplot.subplots(
        1, len(algorithms), figsize=(3.4 * len(algorithms), 3), layout="constrained"
    )
    for axis, algorithm in zip(axes, algorithms, strict=True):
        for accountant in values_of(rows, "accountant"):
            points = [
                (row["epsilon"], row["iterations"])
                for row in rows
                if (row["algorithm"], row["accountant"]) == (algorithm, accountant)
            ]
            axis.plot(*zip(*points), label=accountant)
        axis.set(title=algorithm, xlabel="ε", ylabel="iterations")
    axes[0].legend(frameon=False)
    canvas.savefig(path, dpi=90)


def _by_epsilon(rows, key, label, path) -> None:
    models = values_of(rows, "model")
    canvas, axes = pyplot.subplots(
        2, (len(models) + 1) // 2, figsize=(13, 5.5), layout="constrained", squeeze=False
    )
    for axis, model in zip(axes.flat, models, strict=False):
        for algorithm in values_of(rows, "algorithm"):
            points = [
                (row["epsilon"], row[key])
                for row in rows
                if (row["model"], row["algorithm"]) == (model, algorithm)
            ]
            axis.plot(*zip(*points), "o-", ms=3, color=COLORS[algorithm], label=algorithm)
        axis.set(title=model, xlabel="ε")
    for line in axes:
        line[0].set_ylabel(label)
    axes[0, 0].legend(frameon=False)
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
