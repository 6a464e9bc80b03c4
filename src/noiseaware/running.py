"""Long runs and cold starts: a bar on the terminal that says what is going on, a file to go on
from, a folder for what was compiled.
"""

import contextlib
import json
import math
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

CONTENT = "release, model or proposal"  # a setting whose value says nothing to a reader
CHECKPOINT_SECONDS = 10.0
MAX_SHARE_OF_TIME = 0.05  # spent on writing checkpoints


def num_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_compilations(folder: str | os.PathLike) -> None:
    """Keep what is compiled from now on in this folder: later processes, after the same call, read
    it in place of compiling.

    This sets JAX's own persistent cache, for all of this process. The folder may be deleted at any
    time; do not share it with people you do not trust, since what is read from it is run.
    """
    import jax

    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder must be one that can be written, got {folder}.") from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Progress(Protocol):
    def say(self, what: str) -> None:
        """Name the present phase."""

    def expect(self, total: int, done: int) -> None:
        """Say how much work the present phase holds, and how much of it is done."""

    def advance(self, amount: int) -> None: ...


class Silent:
    def say(self, what: str) -> None: ...

    def expect(self, total: int, done: int) -> None: ...

    def advance(self, amount: int) -> None: ...


class DeadlineError(Exception):
    """A run lasted longer than it was given."""


class Deadline(Silent):
    """Ends a run some seconds after its first draws, which wait for the compiler."""

    def __init__(self, seconds: float):
        self.seconds, self._end = seconds, math.inf

    def advance(self, amount: int) -> None:
        if time.monotonic() > self._end:
            raise DeadlineError
        self._end = min(self._end, time.monotonic() + self.seconds)


class _Bar:
    def __init__(self, bar, task):
        self._bar, self._task = bar, task

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def expect(self, total: int, done: int) -> None:
        self._bar.reset(self._task, total=total, completed=done)

    def advance(self, amount: int) -> None:
        self._bar.advance(self._task, amount)


@contextlib.contextmanager
def progress_bar(is_shown: bool) -> Iterator[Progress]:
    """A bar on standard error; silent if not asked for, or where no terminal is there."""
    if not is_shown:
        yield Silent()
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task):
            return Text(f"{task.speed:.3g} draws/s" if task.speed else "")

    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None))


class Checkpoint:
    """Nested dicts of arrays and numbers in one file, replaced as a whole; none without a path.

    The file also holds the settings of the run it belongs to, and is refused by any other.
    """

    def __init__(self, path: str | os.PathLike | None, settings: Mapping[str, Any] | None = None):
        self._path = None if path is None else Path(path)
        if self._path is not None and not self._path.parent.is_dir():
            raise ValueError(f"checkpoint must lie in a folder that exists, got {self._path}.")
        self._settings = {name: str(value) for name, value in (settings or {}).items()}
        self._next_save = time.monotonic() + CHECKPOINT_SECONDS
        self.was_loaded = False

    def load(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            with np.load(self._path, allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                settings, paths = header["settings"], header["paths"]
                leaves = [file[str(index)] for index in range(len(paths))]
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"checkpoint {self._path} is not one of a fit: give another path, or delete it."
            ) from error
        for name, value in self._settings.items():
            if settings.get(name) != value:
                saved = settings.get(name)
                what = f"with {name} {saved}, got {value}"
                if name == CONTENT:
                    what = f"of another {CONTENT}"
                raise ValueError(
                    f"checkpoint {self._path} belongs to a fit {what}: give another path, or "
                    "delete it."
                )
        self.was_loaded = True
        return _nested(paths, leaves)

    def save(self, tree: Callable[[], dict[str, Any]], *, is_last: bool = False) -> None:
        """Write what ``tree`` returns, if the last time is long enough ago or it is the end."""
        begin = time.monotonic()
        if self._path is None or (begin < self._next_save and not is_last):
            return
        paths, leaves = _flat(tree())
        header = json.dumps({"settings": self._settings, "paths": paths})
        unfinished = self._path.with_name(self._path.name + ".unfinished")
        with open(unfinished, "wb") as file:
            arrays = {str(index): leaf for index, leaf in enumerate(leaves)}
            np.savez(file, allow_pickle=False, header=np.asarray(header), **arrays)
        os.replace(unfinished, self._path)
        end = time.monotonic()
        self._next_save = end + max(CHECKPOINT_SECONDS, (end - begin) / MAX_SHARE_OF_TIME)


def _flat(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> tuple[list, list]:
    paths: list[list[str]] = []
    leaves: list[np.ndarray] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            more_paths, more_leaves = _flat(value, (*above, name))
            paths, leaves = paths + more_paths, leaves + more_leaves
        else:
            paths.append([*above, name])
            leaves.append(np.asarray(value))
    return paths, leaves


def _nested(paths: list[list[str]], leaves: list[np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf.item() if leaf.ndim == 0 else leaf
    return tree
