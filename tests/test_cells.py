"""Cells of an experiment: in order, kept as they end, side by side."""

import os

import pytest
from experiments.cells import rows_of

CELLS = [("a", 3), ("b", 2), ("c", 1)]
calls = []


def cell(name, count):
    calls.append(name)
    if name == "c" and calls.count("c") == 1:
        raise KeyboardInterrupt
    return [{"name": name, "number": number / 3} for number in range(count)]


def cores(name, count):
    return [{"name": name, "cores": len(os.sched_getaffinity(0))}]


def test_a_run_that_was_stopped_goes_on(tmp_path):
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        rows_of(cell, CELLS, tmp_path / "table.csv")
    rows = rows_of(cell, CELLS, tmp_path / "table.csv")
    assert calls == ["a", "b", "c", "c"]
    assert [row["name"] for row in rows] == ["a", "a", "a", "b", "b", "c"]
    assert rows[1]["number"] == 1 / 3
    assert not list(tmp_path.iterdir()), "once all have ended"


def test_cells_side_by_side_share_the_cores(monkeypatch):
    monkeypatch.setenv("JOBS", "2")
    rows = rows_of(cores, CELLS, None)
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    count = len(os.sched_getaffinity(0))
    assert {row["cores"] for row in rows} <= {max(1, count // 2), -(-count // 2)}
