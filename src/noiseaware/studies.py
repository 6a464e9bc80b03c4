"""Thousands of fits, anywhere: numbered tasks in batches, over pinned processes or a Dask cluster.

What a task returns depends on its number alone, and a batch always holds the same numbers. Every
batch runs in a process of its own kind, pinned to one core before JAX starts: on this machine one a
core, on a cluster one a worker. So the table does not depend on how many there were, nor on which
of them died: a batch is one file, written when it is whole, and what is missing is run again.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from noiseaware import validate
from noiseaware.running import num_cores, progress_bar

Table = dict[str, np.ndarray]
Task = Callable[[np.ndarray], Table]
MAX_DEATHS = 3  # of processes over one batch
LENGTH = struct.Struct("<Q")
LOOK_SECONDS = 1.0  # between looks at whether the parent lives
PREFIX = "of "  # of a column in a file: its name may be one that NumPy uses


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
        identity: what the batches in a folder belong to, in words: a folder of another is refused.
        processes: pinned to a core each, by default as many as there are cores, or none where JAX
            has an accelerator; 0 runs in this process, on all its cores, so with other rounding.
        cluster: address of a Dask scheduler, whose workers are used in place of this machine.
        progress: show a bar, where there is a terminal.
    """
    validate.positive_integer("count", count)
    validate.positive_integer("batch_size", batch_size)
    if folder is not None and not identity:
        raise ValueError("identity must say what the folder's batches belong to, got none.")
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
    for table in tables:
        if set(table) != set(tables[0]):
            raise ValueError(f"task must always return {sorted(tables[0])}, got {sorted(table)}.")
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
            with _whole(stamp) as file:
                file.write(json.dumps({"study": identity}).encode())
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
        with _whole(self._path(index)) as file:
            np.savez(
                file,
                allow_pickle=False,
                **{PREFIX + name: column for name, column in table.items()},
            )

    def table(self, index: int) -> Table:
        if self._folder is None:
            return self._tables[index]
        with np.load(self._path(index), allow_pickle=False) as file:
            return {name.removeprefix(PREFIX): column for name, column in file.items()}


@contextlib.contextmanager
def _whole(path: Path):
    """A file that is there when it is whole, and not before."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    with open(unfinished, "wb") as file:
        yield file
    os.replace(unfinished, path)


class _Process:
    """A pinned process that holds a task and answers numbers with tables."""

    def __init__(self, core: int):
        self._pipe = subprocess.Popen(
            [sys.executable, "-m", "noiseaware.studies", str(core)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the study, which ends its processes
        )  # fmt: skip
        self._has_task = False

    def __call__(self, payload: bytes, numbers: np.ndarray) -> Table:
        """``EOFError`` or ``BrokenPipeError`` where the process has died."""
        import cloudpickle

        if not self._has_task:
            _send(self._pipe.stdin, payload)
            self._has_task = True
        _send(self._pipe.stdin, cloudpickle.dumps(numbers))
        table, error = cloudpickle.loads(_receive(self._pipe.stdout))
        if error is not None:
            raise StudyError(f"a task of {numbers[0]} to {numbers[-1]} failed:\n{error}")
        return table

    def kill(self) -> None:
        self._pipe.kill()
        self._pipe.communicate()


class _Post:
    """A place for a process on one core. One that dies is replaced, until the post is closed."""

    def __init__(self, payload: bytes, core: int):
        self._payload, self._core = payload, core
        self._process: _Process | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __call__(self, numbers: np.ndarray) -> Table:
        for _ in range(MAX_DEATHS):
            process = self._manned()
            try:
                return process(self._payload, numbers)
            except (EOFError, BrokenPipeError):
                self._leave(process)
        raise StudyError(
            f"tasks {numbers[0]} to {numbers[-1]} ended {MAX_DEATHS} processes: is there memory "
            "enough?"
        )

    def _manned(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise StudyError("the study was stopped.")
            if self._process is None:
                self._process = _Process(self._core)
            return self._process

    def _leave(self, process: _Process) -> None:
        process.kill()
        with self._lock:
            self._process = None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()


def _on_this_machine(
    task: Task, batches: Sequence[np.ndarray], left: Sequence[int], count: int
) -> Iterator[tuple[int, Table]]:
    import cloudpickle

    payload = cloudpickle.dumps(task)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in left:
        waiting.put(index)
    done: queue.SimpleQueue[tuple[int, Table | BaseException]] = queue.SimpleQueue()
    posts = [_Post(payload, core) for core in range(count)]

    def serve(post: _Post) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                index = waiting.get_nowait()
                try:
                    done.put((index, post(batches[index])))
                except BaseException as error:  # raised below, and ends the study
                    done.put((index, error))
                    return

    threads = [threading.Thread(target=serve, args=(post,), daemon=True) for post in posts]
    for thread in threads:
        thread.start()
    try:
        for _ in left:
            index, table = done.get()
            if isinstance(table, BaseException):
                raise table
            yield index, table
    finally:
        for post in posts:
            post.close()
        for thread in threads:
            thread.join()


_posts: dict[int, tuple[str, _Post]] = {}  # of a Dask worker, by its threads
_numbers = itertools.count()


def _on_worker(numbers: np.ndarray, payload: bytes) -> tuple[Table | None, str | None]:
    """On a Dask worker: by a process of its thread, which holds the task from one batch on. What
    fails is returned, since Dask would try again what it sees raised.
    """
    thread, digest = threading.get_ident(), hashlib.sha256(payload).hexdigest()
    held = _posts.get(thread)
    if held is None or held[0] != digest:
        if held is not None:
            held[1].close()
        _posts[thread] = held = (digest, _Post(payload, os.getpid() + next(_numbers)))
    try:
        return held[1](numbers), None
    except StudyError as error:
        return None, str(error)


def _on_cluster(
    task: Task, batches: Sequence[np.ndarray], left: Sequence[int], address: str
) -> Iterator[tuple[int, Table]]:
    import cloudpickle
    from distributed import Client, as_completed

    with Client(address) as client:
        # A result, not scattered data: it is made again where the worker that held it dies.
        payload = client.submit(bytes, cloudpickle.dumps(task), pure=False)
        submit = functools.partial(client.submit, _on_worker, pure=False)
        futures = {submit(batches[index], payload): index for index in left}
        for future, (table, error) in as_completed(futures, with_results=True):
            if error is not None:
                raise StudyError(error)
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


def _end_with(parent: int) -> None:
    """A batch takes minutes, and only after it would the end of the pipe be seen."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _serve(core: int) -> None:
    """Answer until the other end of the pipe is closed."""
    import cloudpickle

    _pin(core)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a task reads or prints is not part of the talk.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    task = None
    with contextlib.suppress(EOFError):
        payload = _receive(questions)
        while True:
            numbers = cloudpickle.loads(_receive(questions))
            try:
                task = cloudpickle.loads(payload) if task is None else task
                answer = cloudpickle.dumps((task(numbers), None))
            except Exception:  # told to the other end, which raises it
                answer = cloudpickle.dumps((None, traceback.format_exc()))
            _send(answers, answer)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
