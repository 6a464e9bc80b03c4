"""What the thesis says in Chapter 6, each sentence checked on our tables: held or not, by which
figures.

An algorithm beats another on a model if its median distance is smaller at more than half of the
epsilons; what a budget does not allow at all is beaten by everything. The thesis has no thresholds:
those here were chosen with the tables at hand.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from experiments.raisa2021.problems import EPSILONS, PROBLEMS
from experiments.tables import Rows, values_of

Tables = Mapping[str, Rows]
PENALTIES, PATHS = ("penalty", "guided"), "hamiltonian"
BATCHED, BARKER = ("minibatch", "minibatch guided"), "barker"
ALIKE = 1.5  # distances whose ratio is less
FAR = 0.5  # a distance of chains that did not converge
RADIUS = 3.0  # of the circle


class Finding(NamedTuple):
    confirmed: bool
    figures: str


def _of(rows: Rows, **wanted) -> Rows:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _cells(tables: Tables) -> Rows:
    return [*tables["utility"], *tables["minibatch"]]


def _distances(tables: Tables, model: str, algorithm: str) -> np.ndarray:
    """By epsilon; infinite where the budget allows no iterations."""
    rows = _of(_cells(tables), model=model, algorithm=algorithm)
    by_epsilon = {row["epsilon"]: row["distance"] for row in rows}
    return np.nan_to_num([by_epsilon[at] for at in EPSILONS[model]], nan=np.inf)


def _range(values: Iterable[float]) -> str:
    values = list(values)
    return f"{min(values):.3g} to {max(values):.3g}"


def beats(models, firsts, seconds) -> Callable[[Tables], Finding]:
    """Every one of the first beats every one of the second on every model."""

    def check(tables: Tables) -> Finding:
        wins = {
            f"{first} before {second} on {model}": np.mean(
                _distances(tables, model, first) < _distances(tables, model, second)
            )
            for model in models
            for first in firsts
            for second in seconds
        }
        fewest = min(wins, key=wins.__getitem__)
        count = len(EPSILONS[models[0]])
        return Finding(
            wins[fewest] > 0.5,
            f"at {wins[fewest] * count:.0f} of {count} epsilons or more (fewest: {fewest})",
        )

    return check


def both(*checks: Callable[[Tables], Finding]) -> Callable[[Tables], Finding]:
    def check(tables: Tables) -> Finding:
        found = [each(tables) for each in checks]
        return Finding(all(f.confirmed for f in found), "; ".join(f.figures for f in found))

    return check


def are_alike(model: str, algorithms, epsilons) -> Callable[[Tables], Finding]:
    def check(tables: Tables) -> Finding:
        rows = [row for row in _cells(tables)
                if row["model"] == model and row["algorithm"] in algorithms
                and row["epsilon"] in epsilons]  # fmt: skip
        ratios = []
        for epsilon in epsilons:
            at = [row["distance"] for row in _of(rows, epsilon=epsilon)]
            ratios.append(max(at) / min(at))
        return Finding(
            max(ratios) < ALIKE,
            f"medians {_range(row['distance'] for row in rows)}; at one epsilon at most "
            f"{max(ratios):.2f} times each other",
        )

    return check


def allows_more(tight: str, loose: str) -> Callable[[Tables], Finding]:
    def check(tables: Tables) -> Finding:
        counts = {(row["algorithm"], row["epsilon"], row["accountant"]): row["iterations"]
                  for row in tables["iterations"]}  # fmt: skip
        ratios = [
            counts[algorithm, epsilon, tight] / count
            for (algorithm, epsilon, accountant), count in counts.items()
            if accountant == loose and count > 0
        ]
        return Finding(
            min(ratios) > 1.2, f"{_range(ratios)} times as many, where {loose} allows any"
        )

    return check


def clipping_is_harmless(tables: Tables) -> Finding:
    rows = [row for row in _of(tables["clipping"], model="flat-2") if row["clip"] >= 2]
    found, holds = [], True
    for algorithm in values_of(rows, "algorithm"):
        each = [row["distance"] for row in _of(rows, algorithm=algorithm)]
        holds &= max(each) < ALIKE * min(each)
        found.append(f"{algorithm} {_range(each)}")
    return Finding(holds, f"MMD at bounds of 2 and more: {', '.join(found)}")


def most_bounds_fail(tables: Tables) -> Finding:
    """Of HMC, which converges where nothing is clipped; the random walk does at no bound."""
    rows = _of(tables["clipping"], model="flat-10", algorithm="HMC")
    walk = _of(tables["clipping"], model="flat-10", algorithm="random walk")
    failed = [row["clip"] for row in rows if row["distance"] > FAR]
    left = [row["distance"] for row in rows if row["distance"] <= FAR]
    return Finding(
        len(failed) > len(rows) / 2,
        f"HMC fails at {len(failed)} of {len(rows)} bounds, those up to {max(failed):g}, and has "
        f"{_range(left)} above; the random walk {_range(row['distance'] for row in walk)}, "
        "whatever the bound",
    )


def a_tenth_is_harmless(tables: Tables) -> Finding:
    """Medians of 20 chains beside those of chains that clip nothing."""
    ratios = {}
    for row in tables["clipping"]:
        if 1e-3 < row["ratios_clipped"] < 0.1:
            like = _of(tables["clipping"], model=row["model"], algorithm=row["algorithm"])
            free = next(each["distance"] for each in like if each["clip"] == 1000)
            at = f"{row['model']}, {row['algorithm']}, {100 * row['ratios_clipped']:.1f} % clipped"
            ratios[f"{at}: MMD {row['distance']:.3f} for {free:.3f}"] = row["distance"] / free
    return Finding(max(ratios.values()) < ALIKE, max(ratios, key=ratios.__getitem__))


def narrow_varies_at_4(tables: Tables) -> Finding:
    rows = _of(tables["utility"], model="narrow-2", epsilon=4)
    widths = {row["algorithm"]: row["quartile_3"] - row["quartile_1"] for row in rows}
    others = max(width for algorithm, width in widths.items() if algorithm != "guided")
    return Finding(
        widths["guided"] > 3 * others,
        "between quartiles " + ", ".join(f"{name} {width:.3f}" for name, width in widths.items()),
    )


def narrow_is_poor(tables: Tables) -> Finding:
    found = {name: _distances(tables, "narrow-2", name)[-2:] for name in (*PENALTIES, PATHS)}
    others = np.maximum(found["penalty"], found[PATHS])
    shown = ", ".join(
        f"{name} {values[0]:.2f} and {values[1]:.2f}" for name, values in found.items()
    )
    return Finding(bool(np.all(found["guided"] > ALIKE * others)), f"at 5 and 6: {shown}")


def _clipped(tables: Tables, models, algorithms) -> list[float]:
    return [row["ratios_clipped"] for row in _cells(tables)
            if row["model"] in models and row["algorithm"] in algorithms
            and np.isfinite(row["ratios_clipped"])]  # fmt: skip


def little_is_clipped(tables: Tables) -> Finding:
    """Almost all: nine of ten cells."""
    shares = np.array(_clipped(tables, PROBLEMS, (*PENALTIES, PATHS, *BATCHED)))
    over = [f"{row['model']} {row['algorithm']}" for row in _cells(tables)
            if row["algorithm"] != BARKER and row["ratios_clipped"] > 0.1]  # fmt: skip
    return Finding(
        float(np.mean(shares < 0.1)) > 0.9,
        f"{np.sum(shares < 0.1)} of {len(shares)} cells; at most {max(shares):.2f}; not always "
        + ", ".join(dict.fromkeys(over)),
    )


def narrow_is_clipped(tables: Tables) -> Finding:
    shares = _clipped(tables, ["narrow-2"], ["guided"])
    return Finding(float(np.median(shares)) > 0.1, f"{_range(shares)} clipped")


def barker_is_clipped(tables: Tables) -> Finding:
    shares = _clipped(tables, values_of(_of(_cells(tables), algorithm=BARKER), "model"), [BARKER])
    return Finding(min(shares) > 0.1, f"{_range(shares)} clipped")


def gradients_are_constant(tables: Tables) -> Finding:
    """Over epsilon within a factor of two, over models not."""
    rows = _of(tables["utility"], algorithm=PATHS)
    by_model = {
        model: [row["gradients_clipped"] for row in _of(rows, model=model)]
        for model in values_of(rows, "model")
    }
    holds = all(max(each) < 2 * min(each) for each in by_model.values())
    centers = [float(np.median(each)) for each in by_model.values()]
    shown = ", ".join(f"{model} {_range(each)}" for model, each in by_model.items())
    return Finding(holds and max(centers) > 2 * min(centers), shown)


def gradients_vary_on_narrow(tables: Tables) -> Finding:
    """More than on any other model."""
    widths = {
        row["model"]: row["gradients_clipped_most"] - row["gradients_clipped_least"]
        for row in tables["spread"]
    }
    shown = ", ".join(
        f"{row['model']} {_range([row['gradients_clipped_least'], row['gradients_clipped_most']])}"
        for row in tables["spread"]
    )
    return Finding(max(widths, key=widths.__getitem__) == "narrow-2", f"chains clip {shown}")


def circle_is_served(tables: Tables) -> Finding:
    found = {name: _distances(tables, "circle", name) for name in ("penalty", PATHS)}
    shown = ", ".join(f"{name} {_range(values)}" for name, values in found.items())
    return Finding(
        max(max(values) for values in found.values()) < RADIUS / 2,
        f"the mean lies {shown} from the origin, of a circle of radius {RADIUS:g}",
    )


def circle_at_half(tables: Tables) -> Finding:
    paths, penalty = (_distances(tables, "circle", name)[0] for name in (PATHS, "penalty"))
    return Finding(bool(paths < penalty), f"{paths:.2f} before {penalty:.2f}")


def circle_clips_little(tables: Tables) -> Finding:
    shares = _clipped(tables, ["circle"], ("penalty", PATHS))
    return Finding(max(shares) < 0.1, f"{_range(shares)} clipped")


def circle_paths_vary(tables: Tables) -> Finding:
    """The largest share of a chain is twice the smallest or more."""
    (row,) = _of(tables["spread"], model="circle")
    least, most = row["ratios_clipped_least"], row["ratios_clipped_most"]
    return Finding(most > 2 * least, f"chains clip {least:.2g} to {most:.2g} of their ratios")


FLAT, TEMPERED = ("flat-2", "flat-10"), ("tempered-2", "tempered-10")
CHECKS: dict[str, Callable[[Tables], Finding]] = {
    "tight_accounting": allows_more("gaussian", "zcdp"),
    "fourier_allows_more": allows_more("fourier", "rdp"),
    "clipping_is_harmless": clipping_is_harmless,
    "most_bounds_fail": most_bounds_fail,
    "a_tenth_is_harmless": a_tenth_is_harmless,
    "flat_penalty_beats_hmc": beats(FLAT, PENALTIES, [PATHS]),
    "tempered_hmc_beats_penalty": beats(TEMPERED, [PATHS], PENALTIES),
    "flat_batches_are_not_useful": both(
        beats(["flat-2"], (*PENALTIES, PATHS), (*BATCHED, BARKER)),
        beats(["flat-10"], (*PENALTIES, PATHS), BATCHED),
    ),
    "flat_10_barker_is_useful": beats(["flat-10"], [BARKER], BATCHED),
    "gauss_guided_is_best": beats(["gauss-30"], ["guided"], ["penalty", PATHS]),
    "gauss_hmc_beats_penalty": beats(["gauss-30"], [PATHS], ["penalty"]),
    "narrow_are_equal_below_4": are_alike("narrow-2", (*PENALTIES, PATHS), (1.0, 2.0, 3.0)),
    "narrow_guided_varies_at_4": narrow_varies_at_4,
    "narrow_guided_is_poor_above_4": narrow_is_poor,
    "correlated_penalties_are_equal": are_alike(
        "correlated-2", PENALTIES, EPSILONS["correlated-2"]
    ),
    "correlated_hmc_is_best": beats(["correlated-2"], [PATHS], PENALTIES),
    "little_is_clipped": little_is_clipped,
    "barker_is_clipped": barker_is_clipped,
    "narrow_guided_is_clipped": narrow_is_clipped,
    "gradients_are_constant": gradients_are_constant,
    "gradients_vary_on_narrow": gradients_vary_on_narrow,
    "circle_is_served": circle_is_served,
    "circle_hmc_beats_penalty_at_half": circle_at_half,
    "circle_clips_little": circle_clips_little,
    "circle_paths_vary": circle_paths_vary,
}
