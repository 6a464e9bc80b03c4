"""Thousands of fits, anywhere: numbered tasks in batches, over pinned processes or a Dask cluster.

What a task returns depends on its number alone, and a batch always holds the same numbers. Every
batch runs in a process of its own kind, pinned to one core before JAX starts: on this machine one a
core, on a cluster one a worker. So the table does not depend on how many there were, nor on which
of them died: a batch is one file, written when it is whole, and what is missing is run again.
"""

import contextlib
import functools
import hashlib
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noiseaware import validate
from noiseaware.running import num_cores, progress_bar

Table = dict[str, np.ndarray]
Task = Callable[[np.ndarray], Table]
MAX_DEATHS = 3  # of processes over one batch
LENGTH = struct.Struct("<Q")


class StudyError(RuntimeError):
    """A task failed; its own traceback is in the message."""


def run_study(
    task: Task,
    count: int,
    *,
    batch_size: int = 64,
    folder: str | os.PathLike | None = None,
    identity: str = "",
    processes: int | None = None,
    cluster: str | None = None,
    progress: bool = True,
) -> Table:
    """Tasks 0 to ``count - 1``, as one table.

    Args:
        task: called with an array of numbers, returns a dict of arrays with a row for each. It is
            sent to other processes with cloudpickle, and must take its randomness from the numbers.
        count: how many tasks.
        batch_size: how many to a call. Fits of one call share what warm-up chooses, so this
            belongs to the study; the number of processes does not.
        folder: where batches are kept, one file each; the same call goes on after a kill.
        identity: what the folder's files belong to; another study's folder is refused.
        processes: pinned to a core each, by default as many as there are cores, or none where JAX
            has an accelerator; 0 runs in this process.
        cluster: address of a Dask scheduler, whose workers are used in place of this machine.
        progress: show a bar, where there is a terminal.
    """
    validate.positive_integer("count", count)
    validate.positive_integer("batch_size", batch_size)
    batches = [np.arange(at, min(at + batch_size, count)) for at in range(0, count, batch_size)]
    kept = _Kept(folder, f"{count} tasks by {batch_size}, {identity}")
    left = [index for index in range(len(batches)) if not kept.has(index)]
    with progress_bar(progress) as bar:
        bar.say("study")
        bar.expect(count, sum(len(batches[i]) for i in range(len(batches)) if i not in left))
        for index, table in _found(task, batches, left, processes, cluster):
            kept.keep(index, _checked(table, len(batches[index])))
            bar.advance(len(batches[index]))
    tables = [kept.table(index) for index in range(len(batches))]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _found(
    task: Task, batches: Sequence[np.ndarray], left: Sequence[int], processes, cluster
) -> Iterator[tuple[int, Table]]:
    if cluster is not None:
        return _on_cluster(task, batches, left, cluster)
    if processes is None:
        import jax

        processes = num_cores() if jax.default_backend() == "cpu" else 0
    if processes == 0:
        return ((index, task(batches[index])) for index in left)
    validate.positive_integer("processes", processes)
    return _on_this_machine(task, batches, left, min(processes, max(len(left), 1)))


def _checked(table: Table, count: int) -> Table:
    table = {name: np.asarray(column) for name, column in table.items()}
    for name, column in table.items():
        if len(column) != count or column.dtype == object:
            raise ValueError(f"task must return {count} rows of numbers in {name!r}.")
    return table


class _Kept:
    """Batches that are done, in memory or as files."""

    def __init__(self, folder: str | os.PathLike | None, identity: str):
        self._folder = None if folder is None else Path(folder)
        self._tables: dict[int, Table] = {}
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = self._folder / "study.json"
        if not stamp.exists():
            stamp.write_text(json.dumps({"study": identity}))
        elif (found := json.loads(stamp.read_text())["study"]) != identity:
            raise ValueError(
                f"folder {self._folder} belongs to another study ({found}; this is {identity}): "
                "give another, or delete it."
            )

    def _path(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder / f"batch_{index:06d}.npz"

    def has(self, index: int) -> bool:
        return self._folder is not None and self._path(index).exists()

    def keep(self, index: int, table: Table) -> None:
        if self._folder is None:
            self._tables[index] = table
            return
        unfinished = self._path(index).with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            np.savez(file, allow_pickle=False, **table)
        os.replace(unfinished, self._path(index))

    def table(self, index: int) -> Table:
        if self._folder is None:
            return self._tables[index]
        with np.load(self._path(index), allow_pickle=False) as file:
            return dict(file)


class _Process:
    """A pinned process that holds a task and answers numbers with tables."""

    def __init__(self, payload: bytes, core: int):
        self._pipe = subprocess.Popen(
            [sys.executable, "-m", "noiseaware.studies", str(core)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        _send(self._pipe.stdin, payload)

    def __call__(self, numbers: np.ndarray) -> Table:
        """``EOFError`` or ``BrokenPipeError`` where the process has died."""
        import cloudpickle

        _send(self._pipe.stdin, cloudpickle.dumps(numbers))
        table, error = cloudpickle.loads(_receive(self._pipe.stdout))
        if error is not None:
            raise StudyError(f"a task of {numbers[0]} to {numbers[-1]} failed:\n{error}")
        return table

    def kill(self) -> None:
        self._pipe.kill()
        self._pipe.communicate()


def _persistent(payload: bytes, core: int, process: _Process | None, numbers: np.ndarray):
    """The table of a batch, by this process or, should it die, by another."""
    for death in range(MAX_DEATHS):
        if process is None:
            process = _Process(payload, core)
        try:
            return process, process(numbers)
        except (EOFError, BrokenPipeError):
            process.kill()
            process = None
            if death == MAX_DEATHS - 1:
                raise StudyError(
                    f"tasks {numbers[0]} to {numbers[-1]} ended {MAX_DEATHS} processes: is there "
                    "memory enough?"
                ) from None
    raise AssertionError


def _on_this_machine(
    task: Task, batches: Sequence[np.ndarray], left: Sequence[int], count: int
) -> Iterator[tuple[int, Table]]:
    import cloudpickle

    payload = cloudpickle.dumps(task)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in left:
        waiting.put(index)
    done: queue.SimpleQueue[tuple[int, Table | BaseException]] = queue.SimpleQueue()
    running: dict[int, _Process | None] = dict.fromkeys(range(count))

    def serve(core: int) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                index = waiting.get_nowait()
                try:
                    running[core], table = _persistent(payload, core, running[core], batches[index])
                except BaseException as error:  # handed on, below
                    done.put((index, error))
                    return
                done.put((index, table))

    threads = [threading.Thread(target=serve, args=(core,), daemon=True) for core in running]
    for thread in threads:
        thread.start()
    try:
        for _ in left:
            index, table = done.get()
            if isinstance(table, BaseException):
                raise table
            yield index, table
    finally:
        for process in running.values():
            if process is not None:
                process.kill()


_of_worker: dict[tuple[int, str], _Process] = {}


def _on_worker(numbers: np.ndarray, payload: bytes) -> Table:
    """On a Dask worker: by a process of its thread, which holds the task from one batch on."""
    key = (threading.get_ident(), hashlib.sha256(payload).hexdigest())
    core = os.getpid()  # any, not always the same
    _of_worker[key], table = _persistent(payload, core, _of_worker.get(key), numbers)
    return table


def _on_cluster(
    task: Task, batches: Sequence[np.ndarray], left: Sequence[int], address: str
) -> Iterator[tuple[int, Table]]:
    import cloudpickle
    from distributed import Client, as_completed

    with Client(address) as client:
        payload = client.scatter(cloudpickle.dumps(task), broadcast=True)
        submit = functools.partial(client.submit, _on_worker, pure=False, retries=MAX_DEATHS)
        futures = {submit(batches[index], payload): index for index in left}
        for future, table in as_completed(futures, with_results=True):
            yield futures[future], table


def _send(pipe, message: bytes) -> None:
    pipe.write(LENGTH.pack(len(message)) + message)
    pipe.flush()


def _receive(pipe) -> bytes:
    (length,) = LENGTH.unpack(_read(pipe, LENGTH.size))
    return _read(pipe, length)


def _read(pipe, count: int) -> bytes:
    message = pipe.read(count)
    if len(message) < count:
        raise EOFError
    return message


def _pin(number: int) -> None:
    """To one of the cores that this process may use. Before JAX starts, which counts them."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _serve(core: int) -> None:
    """Answer until the other end of the pipe is closed."""
    import cloudpickle

    _pin(core)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints must not be taken for an answer
    task = None
    with contextlib.suppress(EOFError):
        payload = _receive(sys.stdin.buffer)
        while True:
            numbers = cloudpickle.loads(_receive(sys.stdin.buffer))
            answer: tuple[Any, str | None]
            try:
                task = cloudpickle.loads(payload) if task is None else task
                answer = task(numbers), None
            except Exception:  # told to the other end, which raises it
                answer = None, traceback.format_exc()
            _send(answers, cloudpickle.dumps(answer))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
