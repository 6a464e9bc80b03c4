"""Figures 1a, 1b, 2 and S1 from the tables."""

from pathlib import Path

import numpy as np
from experiments.tables import read, values_of
from matplotlib import pyplot

FIGURES = {
    "log-linear": ("figure_1a.png", "figure_1b.png"),
    "regression": ("figure_2.png", "figure_s1.png"),
}
WAY_COLORS = {"paper": "C1", "converged": "C0"}


def draw(folder: Path) -> None:
    """Of those models whose tables are there."""
    for model, (of_means, of_rates) in FIGURES.items():
        paths = folder / f"means_{model}.csv", folder / "confidential.csv"
        if not all(path.exists() for path in paths):
            continue
        rows, confidential = map(read, paths)
        lines = [row for row in confidential if row["model"] == model]
        _means(rows, lines, folder / of_means)
        _rates([row for row in rows if row["way"] == "paper"], folder / of_rates)


def _means(rows, lines, path) -> None:
    epsilons = values_of(rows, "epsilon")
    canvas, axes = pyplot.subplots(
        1, len(lines), figsize=(2.6 * len(lines), 3), sharey=True, layout="constrained"
    )
    for axis, line in zip(axes, lines, strict=True):
        for number, (way, color) in enumerate(WAY_COLORS.items()):
            for at, epsilon in enumerate(epsilons):
                values = [
                    row[f"mean_{line['param']}"]
                    for row in rows
                    if (row["way"], row["epsilon"]) == (way, epsilon)
                ]
                shift = 0.3 * (number - 0.5)
                label = way if at == 0 else None
                axis.plot([at + shift] * len(values), values, ".", ms=2, color=color, label=label)
        axis.axhline(line["given_records"], color="k", lw=1)
        axis.axhline(line["prior"], color="k", lw=1, ls="--")
        axis.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axis.set(title=f"param {line['param']}", xlabel="ε")
    axes[0].set_ylabel("posterior means of 100 releases")
    axes[0].legend(frameon=False, fontsize=7)
    canvas.savefig(path, dpi=90)


def _rates(rows, path) -> None:
    canvas, axis = pyplot.subplots(figsize=(4.5, 3), layout="constrained")
    epsilon = np.array([row["epsilon"] for row in rows])
    axis.plot(
        epsilon, [row["acceptance"] for row in rows], ".", color="C0", label="mean of a chain"
    )
    axis.plot(epsilon, [row["smallest_rate"] for row in rows], ".", color="C1", label="worst sweep")
    axis.plot(epsilon, [row["smallest"] for row in rows], ".", color="C3", label="worst proposal")
    grid = np.geomspace(0.1, 10, 100)
    axis.plot(grid, np.exp(-grid), "k", lw=1, label="exp(-ε)")
    axis.set(xscale="log", xlabel="ε", ylabel="acceptance")
    axis.legend(frameon=False, fontsize=7)
    canvas.savefig(path, dpi=90)
