"""Tables made of cells, each a call of its own: several at a time, and kept as they end, so that a
run that was killed goes on. What a cell returns depends on its arguments alone.

``JOBS=8`` runs eight cells side by side, each on a share of the cores; a study inside a cell takes
as many processes as its share has.
"""

import concurrent.futures
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.tables import Rows

import noiseaware as na


def rows_of(function: Callable[..., Rows], cells: Sequence[tuple], table: Path | None) -> Rows:
    """Rows of all cells, in their order. Beside ``table`` what has ended is kept until all have: to
    begin anew after a change of the code, delete the file.
    """
    kept = _Kept(table and table.with_name(f"unfinished_{table.stem}.jsonl"))
    left = [cell for cell in cells if cell not in kept.rows]
    jobs = int(os.environ.get("JOBS", "1"))
    if jobs == 1:
        for cell in left:
            kept.add(cell, function(*cell))
    else:
        for cell, rows in _side_by_side(function, left, jobs):
            kept.add(cell, rows)
    kept.forget()
    return [row for cell in cells for row in kept.rows[cell]]


def _side_by_side(function: Callable[..., Rows], cells: Sequence[tuple], jobs: int):
    context = multiprocessing.get_context("spawn")  # JAX has threads
    shares = context.Queue()
    cores = sorted(os.sched_getaffinity(0))
    for job in range(jobs):
        shares.put(cores[job % len(cores) :: jobs])
    pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _pin, (shares,))
    with pool:
        futures = {pool.submit(function, *cell): cell for cell in cells}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()


def _pin(shares) -> None:
    """Before JAX starts, which counts cores."""
    os.sched_setaffinity(0, shares.get())


class _Kept:
    """Rows by cell, also as lines of a file, if there is one."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: dict[tuple, Rows] = {}
        if path is not None and path.exists():
            with open(path) as file:
                for version, cell, rows in map(json.loads, file):
                    if version == na.__version__:
                        self.rows[tuple(cell)] = rows

    def add(self, cell: tuple, rows: Rows) -> None:
        self.rows[cell] = rows
        if self.path is not None:
            self.path.parent.mkdir(exist_ok=True)
            lines = (json.dumps([na.__version__, *each]) + "\n" for each in self.rows.items())
            beside = self.path.with_suffix(".new")  # a kill leaves the old file or the new one
            beside.write_text("".join(lines))
            beside.replace(self.path)

    def forget(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
