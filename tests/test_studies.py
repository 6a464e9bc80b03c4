"""Studies: one table, however many processes ran it, and whichever of them died."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import noiseaware as na


def squares(numbers):
    return {"number": numbers, "square": np.asarray(numbers) ** 2.0, "pid": 0 * numbers}


def fitted(numbers):
    """Fits of counts, each by its number."""
    releases = [
        na.Release(
            [30.0 + 5.0 * (number % 7)], na.Count("x"), na.Laplace(4.0), neighbours="replace",
            num_records=100, noise="simulated",
        )
        for number in numbers
    ]  # fmt: skip
    draws = na.fit_many(
        releases, na.BetaBernoulli("x"), seed=3, chains=2, draws=20, sweeps_per_draw=2,
        first=int(numbers[0]), progress=False,
    )  # fmt: skip
    return {"mean": draws.posterior["probability"].mean(("chain", "draw")).values}


def test_tables_are_joined_in_order():
    for processes in (0, 2):
        table = na.run_study(squares, 10, batch_size=3, processes=processes, progress=False)
        np.testing.assert_array_equal(table["square"], np.arange(10) ** 2.0)


def test_a_function_of_a_script_or_notebook_is_sent_along():
    power = 3

    def cubes(numbers):
        return {"cube": np.asarray(numbers) ** power}

    table = na.run_study(cubes, 4, batch_size=2, processes=1, progress=False)
    np.testing.assert_array_equal(table["cube"], [0, 1, 8, 27])


def test_a_process_ends_with_the_one_that_asks(tmp_path):
    """Even in the middle of a batch, and if that one had no time to say so."""
    script = f"""
import os, pathlib, time
import noiseaware as na

def sleep(numbers):
    pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
    time.sleep(600)

na.run_study(sleep, 1, processes=1, progress=False)
"""
    asking = subprocess.Popen([sys.executable, "-c", script])
    started = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    asking.kill()
    asking.wait()
    assert wait_for(lambda: not is_running(int(started)), seconds=10)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.1)
    return condition()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().split()[2] != "Z"


def test_an_error_of_a_task_is_told_with_its_traceback():
    def fails(numbers):
        raise KeyError("nothing of that name")

    with pytest.raises(na.StudyError, match="nothing of that name"):
        na.run_study(fails, 4, batch_size=2, processes=2, progress=False)


def test_a_process_that_always_dies_ends_the_study():
    def dies(numbers):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(na.StudyError, match="tasks 0 to 1 ended 3 processes"):
        na.run_study(dies, 2, batch_size=2, processes=1, progress=False)


def test_a_process_that_dies_once_changes_nothing(tmp_path):
    def dies_once(numbers):
        mark = tmp_path / f"died_{numbers[0]}"
        if numbers[0] == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return squares(numbers)

    table = na.run_study(dies_once, 6, batch_size=2, processes=2, progress=False)
    assert (tmp_path / "died_2").exists()
    np.testing.assert_array_equal(table["square"], np.arange(6) ** 2.0)


def test_a_folder_is_gone_on_from_and_another_studys_is_refused(tmp_path):
    calls = []

    def counted(numbers):
        calls.append(numbers[0])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return squares(numbers)

    options = {"batch_size": 2, "folder": tmp_path, "identity": "squares"}
    options |= {"processes": 0, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        na.run_study(counted, 6, **options)
    table = na.run_study(counted, 6, **options)
    assert calls == [0, 2, 2, 4], "the first batch was not run again"
    np.testing.assert_array_equal(table["square"], np.arange(6) ** 2.0)
    with pytest.raises(ValueError, match="belongs to another study"):
        na.run_study(counted, 8, **options)
    with pytest.raises(ValueError, match="belongs to another study"):
        na.run_study(counted, 6, **options | {"identity": "cubes"})
    with pytest.raises(ValueError, match="identity must say"):
        na.run_study(counted, 6, **options | {"identity": ""})


def test_a_study_that_ends_early_leaves_no_process_behind(tmp_path):
    def slow_but_first(numbers):
        if numbers[0] == 0:
            raise KeyError("the first")
        (tmp_path / str(numbers[0])).touch()
        time.sleep(0.3)
        return squares(numbers)

    with pytest.raises(na.StudyError, match="the first"):
        na.run_study(slow_but_first, 20, batch_size=1, processes=2, progress=False)
    begun = len(list(tmp_path.iterdir()))
    time.sleep(1.5)
    assert len(list(tmp_path.iterdir())) == begun < 20
    of_studies = [path for path in Path("/proc").glob("[0-9]*/stat") if _is_child(path)]
    assert of_studies == []


def _is_child(stat):
    """Of this process, and not yet gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
        command = stat.with_name("cmdline").read_bytes()
        return int(parent) == os.getpid() and state != "Z" and b"noiseaware.studies" in command
    return False


def test_a_task_may_read_print_and_name_its_columns_as_it_likes(tmp_path):
    def talks(numbers):
        print("hello")
        assert sys.stdin.read() == ""
        return {"file": numbers, "allow_pickle": numbers}

    options = {"batch_size": 2, "processes": 1, "progress": False}
    table = na.run_study(talks, 4, folder=tmp_path, identity="talks", **options)
    np.testing.assert_array_equal(table["file"], np.arange(4))


def test_an_answer_that_cannot_be_sent_is_told():
    def answers(numbers):
        return {"x": numbers, "lock": threading.Lock()}

    with pytest.raises(na.StudyError, match="cannot pickle"):
        na.run_study(answers, 2, batch_size=2, processes=1, progress=False)


def test_columns_must_be_the_same_in_every_batch():
    def changes(numbers):
        return {"x": numbers} | ({"y": numbers} if numbers[0] else {})

    with pytest.raises(ValueError, match="task must always return"):
        na.run_study(changes, 4, batch_size=2, processes=0, progress=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: na.run_study(squares, 0), "count must be"),
        (lambda: na.run_study(squares, 4, batch_size=0), "batch_size must be"),
        (lambda: na.run_study(squares, 4, processes=-1), "processes must be"),
        (
            lambda: na.run_study(lambda numbers: {"x": [1.0]}, 4, processes=0, progress=False),
            "task must return 4 rows of numbers in 'x'",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import noiseaware as na
from test_studies import fitted
na.run_study(fitted, 24, batch_size=4, folder={folder!r}, identity="fits", processes=2,
             progress=False)
"""


@pytest.mark.slow
def test_one_or_two_processes_a_cluster_and_killed_runs_give_the_same_numbers(tmp_path):
    from distributed import LocalCluster

    options = {"batch_size": 4, "progress": False}
    expected = na.run_study(fitted, 24, processes=1, **options)["mean"]
    assert len(np.unique(expected)) == 24
    found = {"two processes": na.run_study(fitted, 24, processes=2, **options)}

    folder = tmp_path / "killed"
    script = KILLED.format(tests=os.path.dirname(__file__), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script])
    while not list(folder.glob("batch_*.npz")):
        time.sleep(0.1)
        assert process.poll() is None
    process.kill()
    process.wait()
    assert len(list(folder.glob("batch_*.npz"))) < 6
    found["killed"] = na.run_study(
        fitted, 24, folder=folder, identity="fits", processes=2, **options
    )

    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        found["cluster"] = na.run_study(fitted, 24, cluster=address, **options)

        def kill_a_worker(numbers, mark=tmp_path / "a worker died"):
            if numbers[0] == 8 and not mark.exists():
                mark.touch()
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)
            return fitted(numbers)

        found["killed worker"] = na.run_study(kill_a_worker, 24, cluster=address, **options)
        assert (tmp_path / "a worker died").exists()
    for name, table in found.items():
        np.testing.assert_array_equal(table["mean"], expected, name)
