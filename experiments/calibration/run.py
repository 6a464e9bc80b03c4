"""Is every sampler that claims to be exact calibrated, for every built-in model and mechanism?

A full run writes ``results/``: a table a model, with a row for each cell, 10,000 fits of 8 records,
and the controls, which must fail. Every number comes from SEED.
"""

import functools
from pathlib import Path

import numpy as np
from experiments.calibration.cases import (
    CASES,
    NUM_RECORDS,
    cells,
    from_prior,
    frozen,
    known_of,
    mechanism_of,
    naive,
)
from experiments.cells import rows_of
from experiments.tables import Rows

import noiseaware as na

SEED = 2026
NUM_FITS, NUM_QUICK, NUM_CONTROLS = 10_000, 200, 500
OPTIONS = {"num_records": NUM_RECORDS, "seed": SEED, "chains": 4, "draws": 32, "progress": False}
LEVEL = 1e-3  # of all cells together
MAX_OFF = 0.03  # of the sd of normal scores from 1, at 10,000 fits
NO_EVIDENCE = 0.95


def calibration_at(name: str, kind: str, method: str, num_fits: int) -> Rows:
    print("  ", name, kind, method)
    model, statistic = CASES[name]
    found = na.sbc(
        model, statistic, mechanism_of(kind, statistic), known=known_of(model), method=method,
        num_fits=num_fits, batch_size=500, **OPTIONS,
    )  # fmt: skip
    return [{"model": name, "mechanism": kind, "method": method} | _row(found)]


def _row(found: na.Calibration) -> dict:
    params = found.contraction[np.isfinite(found.contraction)]
    offs = {name: abs(each.sd - 1) for name, each in found.uniformities.items()}
    row = {
        "fits": len(found.ranks), "p": found.p, "worst": found.worst,
        "ks": found.uniformities[found.worst].ks, "sd_off": max(offs.values()),
        "contraction": float(np.min(params)), "contraction_most": float(np.max(params)),
        "evidence": "no evidence" if np.min(params) > NO_EVIDENCE else "",
        "unconverged": found.unconverged,
    }  # fmt: skip
    print("  ", *(f"{x:.3g}" if isinstance(x, float) else x for x in row.values()), flush=True)
    return row


def calibration(name: str, quick: bool) -> dict[str, Rows]:
    chosen, num_fits = (cells()[::12], NUM_QUICK) if quick else (cells(), NUM_FITS)
    of_model = [(*cell, num_fits) for cell in chosen if cell[0] == name]
    return {name: rows_of(calibration_at, of_model, _table(name, quick))}


def _table(name: str, quick: bool) -> Path | None:
    return None if quick else Path(__file__).parent / "results" / f"{name}.csv"


def _a_tenth_larger(release: na.Release) -> na.Release:
    mechanism = release.mechanism.with_spread(1.1 * release.mechanism.spread())
    return na.Release(
        release.values, release.statistic, mechanism, neighbours="replace",
        num_records=release.num_records, noise="simulated",
    )  # fmt: skip


CONTROLS = {
    "prior returned": (NUM_CONTROLS, {"method": from_prior}),
    "naive": (NUM_CONTROLS, {"method": naive}),
    "records frozen": (NUM_CONTROLS, {"method": frozen}),
    "noise 10 % larger": (NUM_FITS, {"told": _a_tenth_larger}),
}


def control_at(name: str, quick: bool) -> Rows:
    """On one model, whose release says much."""
    print("  ", name)
    model, statistic = CASES["BetaBernoulli"]
    num_fits, changed = CONTROLS[name]
    found = na.sbc(
        model, statistic, mechanism_of("Laplace", statistic), batch_size=100,
        num_fits=NUM_QUICK if quick else num_fits, **OPTIONS | changed,
    )  # fmt: skip
    return [{"control": name} | _row(found)]


def controls(quick: bool) -> dict[str, Rows]:
    """Noise off by a tenth needs all fits."""
    names = list(CONTROLS)[:2] if quick else CONTROLS
    called = [(name, quick) for name in names]
    return {"controls": rows_of(control_at, called, _table("controls", quick))}


PARTS = {name: functools.partial(calibration, name) for name in CASES} | {"controls": controls}
TABLES = tuple(PARTS)


def conclude(tables: dict[str, Rows], folder: Path | None) -> None:
    rows, failed = [row for name in CASES for row in tables[name]], tables["controls"]
    off = [row for row in rows if row["p"] < LEVEL / len(rows) or row["sd_off"] > MAX_OFF]
    print(f"{len(rows) - len(off)} of {len(rows)} cells are calibrated")
    for row in off if folder else ():
        print(f"  not {row['model']}, {row['mechanism']}, {row['method']}: p {row['p']:.2g}")
    for row in failed:
        print(f"  control {row['control']}: {'fails' if row['p'] < LEVEL else 'PASSES'}")
