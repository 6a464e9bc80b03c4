"""Figures 1a-c and 2 from the tables."""

from pathlib import Path

from experiments.tables import values_of
from matplotlib import pyplot

COLORS = {
    "ours": "C0", "exact": "C4", "non-private": "C2", "naive": "C1", "one-posterior": "C3",
}  # fmt: skip


def draw(folder: Path, calibration, ecdfs, utility, traces) -> None:
    _against_n(calibration, "ks", "KS distance of ranks", folder / "figure_1a.png")
    _ecdfs(ecdfs, folder / "figure_1b.png")
    _against_n(utility, "mmd2", "squared MMD to non-private", folder / "figure_1c.png")
    _traces(traces, folder / "figure_2.png")


def _against_n(rows, key, label, path) -> None:
    models, epsilons = values_of(rows, "model"), values_of(rows, "epsilon")
    canvas, axes = pyplot.subplots(
        len(epsilons), len(models), figsize=(3.4 * len(models), 5), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for line, epsilon in zip(axes, epsilons, strict=True):
        for axis, model in zip(line, models, strict=True):
            cells = [row for row in rows if (row["model"], row["epsilon"]) == (model, epsilon)]
            for method in values_of(cells, "method"):
                points = [(row["n"], row[key]) for row in cells if row["method"] == method]
                axis.plot(*zip(*points), "o-", ms=3, color=COLORS[method], label=method)
            axis.set_title(f"{model}, ε = {epsilon:g}", fontsize=9)
            axis.set_xscale("log")
    for axis in axes[-1]:
        axis.set_xlabel("n")
    for line in axes:
        line[0].set_ylabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    canvas.savefig(path, dpi=90)


def _ecdfs(rows, path) -> None:
    models = values_of(rows, "model")
    canvas, axes = pyplot.subplots(
        1, len(models), figsize=(3.4 * len(models), 3), sharey=True, layout="constrained"
    )
    for axis, model in zip(axes, models, strict=True):
        cells = [row for row in rows if row["model"] == model]
        for method in values_of(cells, "method"):
            points = [(row["u"], row["share"]) for row in cells if row["method"] == method]
            axis.plot(*zip(*points), color=COLORS[method], label=method)
        axis.plot([0, 1], [0, 1], "k:", lw=1)
        axis.set(title=model, xlabel="rank of the truth")
    axes[0].set_ylabel("share below")
    axes[0].legend(frameon=False)
    canvas.savefig(path, dpi=90)


def _traces(rows, path) -> None:
    models = values_of(rows, "model")
    canvas, axes = pyplot.subplots(
        1, len(models), figsize=(4.5 * len(models), 3), layout="constrained"
    )
    for axis, model in zip(axes, models, strict=True):
        cells = [row for row in rows if row["model"] == model]
        for chain in values_of(cells, "chain"):
            axis.plot([row["value"] for row in cells if row["chain"] == chain], lw=0.7)
        axis.axhline(cells[0]["truth"], color="k", ls="--", lw=1)
        axis.set(title=model, xlabel="iteration", ylabel="parameter")
    canvas.savefig(path, dpi=90)
