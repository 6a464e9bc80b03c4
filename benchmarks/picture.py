"""``python -m benchmarks.picture``: the scaling curves, from both records, as ``scaling.png``."""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
PANELS = (  # (title, axis, {label: key up to its number})
    (
        "Records", "n, one chain",
        {"iteration": "scaling.ns_per_record.n", "plain sweep": "scaling.plain_ns_per_record.n"},
    ),
    ("Sums", "m, at n = 10⁴", {"iteration": "scaling.ns_per_record.m"}),
    ("Chains", "chains, at n = 100", {"iteration": "scaling.ns_per_record.chains"}),
    ("Privacy", "ε, at n = 10⁴", {"per accepted record": "scaling.ns_per_accepted.eps"}),
)  # fmt: skip

GPU_POINTS = (  # (key of the milliseconds, records, label)
    ("gpu.ms_per_iteration_1e7", 10**7, "iteration"),
    ("gpu.ms_per_sweep_1e6", 10**6, "plain sweep"),
)


def curve(figures: dict[str, float], prefix: str) -> tuple[list[float], list[float]]:
    """The points of one curve, in order: their number is what follows the prefix."""
    points = sorted(
        (float(key.removeprefix(prefix)), value)
        for key, value in figures.items()
        if re.fullmatch(re.escape(prefix) + r"[\d.e]+", key)
    )
    return [at for at, _ in points], [value for _, value in points]


def main() -> None:
    from matplotlib import pyplot

    figures = json.loads((HERE / "results.json").read_text())
    record = json.loads((HERE / "gpu_record.json").read_text())
    canvas, axes = pyplot.subplots(
        1, len(PANELS), figsize=(14, 3.6), sharey=True, layout="constrained"
    )
    for axis, (title, label, curves) in zip(axes, PANELS, strict=True):
        axis.set(title=title, xlabel=label, xscale="log", yscale="log")
        for name, prefix in curves.items():
            at, spent = curve(figures, prefix)
            axis.plot(at, spent, "o-", label=f"{name}, one core")
            axis.set_xticks(at, [f"{number:g}" for number in at], minor=False)
        axis.minorticks_off()
    for index, (key, size, name) in enumerate(GPU_POINTS):
        label = f"{name}, {record['device']}"
        axes[0].plot(size, record[key] * 1e6 / size, "s", color=f"C{index}", label=label)
    axes[0].set_ylabel("ns per record update")
    for axis in axes:
        axis.legend(frameon=False)
    canvas.savefig(HERE / "scaling.png", dpi=120)


if __name__ == "__main__":
    main()
