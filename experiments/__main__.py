"""Reproduce the papers' experiments: ``python -m experiments --help``.

A full run writes the ``results/`` of an experiment anew, table by table; a quick one prints what it
found and writes nothing. An experiment is a module ``run`` with SEED, PARTS (name -> a function
that makes tables), TABLES (the names of all), and ``conclude``, which says what follows from them.
Those made of ``cells`` run several side by side, and go on after a kill: ``JOBS=8``.
"""

import argparse
import importlib
import time
from pathlib import Path
from types import ModuleType

from experiments.tables import read, write

EXPERIMENTS = ("bernstein2018", "calibration", "ju2022", "raisa2021")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=EXPERIMENTS)
    parser.add_argument("--part", help="one of an experiment's; other tables stay as they are")
    parser.add_argument("--quick", action="store_true", help="fewer data sets, in minutes")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else EXPERIMENTS:
        experiment = importlib.import_module(f"experiments.{name}.run")
        parts = [arguments.part] if arguments.part else list(experiment.PARTS)
        if not set(parts) <= set(experiment.PARTS):
            parser.error(f"--part must be one of {', '.join(experiment.PARTS)} with --only {name}")
        reproduce(name, experiment, parts, quick=arguments.quick)


def reproduce(name: str, experiment: ModuleType, parts: list[str], *, quick: bool) -> None:
    folder = Path(__file__).parent / name / "results"
    tables = {}
    for part in parts:
        print(f"{name}: {part}", flush=True)
        begin = time.perf_counter()
        tables |= (found := experiment.PARTS[part](quick))
        print(f"{name}: {part}, {time.perf_counter() - begin:.0f} s", flush=True)
        if not quick:
            for table, rows in found.items():
                write(folder / f"{table}.csv", rows, experiment.SEED)
    if quick:
        if set(experiment.TABLES) <= set(tables):
            experiment.conclude(tables, None)
        return
    paths = {table: folder / f"{table}.csv" for table in experiment.TABLES}
    if missing := [table for table, path in paths.items() if not path.exists()]:
        print(f"{name}: conclusions wait for {', '.join(missing)}")
        return
    experiment.conclude({table: read(path) for table, path in paths.items()}, folder)


if __name__ == "__main__":
    main()
