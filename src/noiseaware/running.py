"""Long runs in chunks: one bar on the terminal that says what is going on."""

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    def say(self, what: str) -> None:
        """Name the present phase."""

    def expect(self, total: int) -> None:
        """Say how much work the present phase holds, and start it at nothing."""

    def advance(self, amount: int) -> None: ...


class _Silent:
    def say(self, what: str) -> None: ...

    def expect(self, total: int) -> None: ...

    def advance(self, amount: int) -> None: ...


class _Bar:
    def __init__(self, bar, task):
        self._bar, self._task = bar, task

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def expect(self, total: int) -> None:
        self._bar.reset(self._task, total=total)

    def advance(self, amount: int) -> None:
        self._bar.advance(self._task, amount)


@contextlib.contextmanager
def progress_bar(is_shown: bool) -> Iterator[Progress]:
    """A bar on standard error; silent if not asked for, or where no terminal is there."""
    if not is_shown:
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None))
