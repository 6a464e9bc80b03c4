"""A run of chains, from the start over warm-up to the last draw kept.

Every chain starts from its own draw of the prior. Many records make every sweep of a long warm-up
dear; so from ``PILOT_FROM`` records on, a pilot with up to a hundredth of them warms up first, on
the release scaled to so many (``pilot.py``), and if need be after a pilot of its own. The chains
then start from its draws, still spread wider than the posterior. Chains over sums start from draws
of the prior weighed by the release. Where warm-up starts from changes
what it costs, never the target.
"""

import concurrent.futures
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from noiseaware import pilot
from noiseaware.chains import (
    CHUNK_DRAWS,
    NUM_PRIOR_DRAWS,
    Draw,
    Problem,
    State,
    Tuning,
    information,
    run_chunk,
    stack,
    start,
)
from noiseaware.convergence import MIN_ESS
from noiseaware.elliptical_slice import Shape
from noiseaware.models.model import Params
from noiseaware.running import Checkpoint, Progress, Silent, num_cores
from noiseaware.samplers.layout import Layout
from noiseaware.samplers.layout import choose as choose_layout
from noiseaware.samplers.proposals import from_model
from noiseaware.samplers.record_augmentation import RecordAugmentationState
from noiseaware.samplers.statistic_gibbs import StatisticGibbsState
from noiseaware.warming import (
    MAX_WINDOWS,
    MIN_WINDOWS,
    SHARE_LEFT,
    TARGET_EFFICIENCY,
    WINDOW_DRAWS,
    Limits,
    learn,
    learn_shape,
    params_cholesky,
)

CHUNK_SECONDS = 0.5  # what a call should take: the bar moves, and Ctrl-C is heard
FIRST_STAND_INS = 64  # segments
PRIOR_DRAWS_OF_MANY = 200  # a fit: of many params, or short chains, more would be felt
# Chains in one call, where there are several data sets: more of them if they are of few records.
CPU_LANES, CPU_RECORDS, CPU_LANES_OF_SUMS = 16, 1600, 512
PILOT_FROM, MIN_PILOT_RECORDS, PILOT_SHARE = 100_000, 10_000, 100
PILOT_WINDOWS, WINDOWS_AFTER_PILOT = 4, 2

Groups = tuple[State, ...]


class Settings(NamedTuple):
    """What a caller asks of a run."""

    kernel: str
    num_records: int
    num_chains: int
    num_draws: int
    sweeps_per_draw: int | None = None
    keep_records: int = 0
    is_pilot: bool = False
    can_scale: bool = True
    num_prior_draws: int = NUM_PRIOR_DRAWS

    @property
    def has_pilot(self) -> bool:
        return self.has_records and self.num_records >= PILOT_FROM and self.can_scale

    @property
    def min_efficiency(self) -> float:
        """That its draws be enough, unless they are too few for that or, of a pilot, none."""
        num_draws = self.num_chains * self.num_draws
        return min(TARGET_EFFICIENCY, MIN_ESS / max(1, num_draws))

    @property
    def has_records(self) -> bool:
        return self.kernel != "statistic_gibbs"


class Run(NamedTuple):
    """All that a fit reports; arrays lead with (data set, chain, draw)."""

    draws: Draw
    prior: Params
    records: dict[str, np.ndarray] | None
    warm_up_sweeps: int
    tuning: Tuning
    layout: Layout
    warm_up_seconds: float
    sampling_seconds: float
    is_complete: bool


class _Batch(NamedTuple):
    """Data sets that travel together."""

    keys: PRNGKeyArray
    problems: Sequence[Problem]

    def fold_in(self, number: int) -> PRNGKeyArray:
        return jax.vmap(lambda key: jr.fold_in(key, number))(self.keys)


class _Crew:
    """Moves the chains of a batch along, in groups of equal size side by side, one a thread.

    What a chain draws depends on its own key; how chains are grouped only changes rounding.
    """

    def __init__(self, batch: _Batch, settings: Settings, layout: Layout, num_threads: int):
        self.settings, self.layout = settings, layout
        self.limits = Limits(
            has_fixed_sweeps=settings.sweeps_per_draw is not None,
            all_stand_in=-(-settings.num_records // layout.stand_in_size),
            target_rate=getattr(batch.problems[0].params_step, "target_rate", None),
            min_efficiency=settings.min_efficiency,
            min_windows=WINDOWS_AFTER_PILOT if settings.has_pilot else MIN_WINDOWS,
            max_windows=PILOT_WINDOWS if settings.is_pilot else MAX_WINDOWS,
        )
        self._problems = stack(batch.problems)
        self._chunk = functools.partial(
            run_chunk, problems=self._problems, kernel=settings.kernel, layout=layout
        )
        num_chains = settings.num_chains
        keys = jax.vmap(lambda key: jr.split(key, num_chains))(batch.fold_in(1))
        num_groups = _num_groups(num_chains, num_threads)
        self._size = num_chains // num_groups
        self._keys = [keys[:, at : at + self._size] for at in range(0, num_chains, self._size)]
        self._pool = concurrent.futures.ThreadPoolExecutor(num_groups)
        self._num_calls = 0
        self._seconds_per_sweep = np.inf

    def groups_of(self, states: State) -> Groups:
        if len(self._keys) == 1:
            return (states,)
        return tuple(
            jax.tree.map(lambda x, at=index * self._size: x[:, at : at + self._size], states)
            for index in range(len(self._keys))
        )

    def information(self, groups: Groups, shape: Shape) -> np.ndarray | None:
        """Of params given records where the chains are, if their step needs it."""
        if self.limits.target_rate is None:
            return None
        found = [information(states, self._problems, shape, self.layout) for states in groups]
        return np.concatenate(found, axis=1)

    def advance(
        self, groups: Groups, first: int, limit: int, tuning: Tuning
    ) -> tuple[Groups, Draw]:
        """At least one draw of every chain, and at most ``limit``: as many as are quick."""
        affordable = CHUNK_SECONDS / (self._seconds_per_sweep * tuning.sweeps_per_draw)
        count = int(np.clip(affordable, 1, min(limit, CHUNK_DRAWS)))

        def advance_group(keys, states):
            with jax.enable_x64(True):  # a thread's own setting
                traced = jax.tree.map(np.asarray, tuning)
                states, drawn = self._chunk(keys, states, traced, *map(np.asarray, (first, count)))
                return states, jax.tree.map(lambda x: np.asarray(x)[:, :, :count], drawn)

        begin = time.perf_counter()
        # The first call compiles: one group after the other, so that only one of them does.
        in_order = map if self._num_calls == 0 or len(groups) == 1 else self._pool.map
        done = list(in_order(advance_group, self._keys, groups))
        if self._num_calls > 0:
            elapsed = time.perf_counter() - begin
            self._seconds_per_sweep = elapsed / (count * tuning.sweeps_per_draw)
        self._num_calls += 1
        return tuple(states for states, _ in done), _joined([drawn for _, drawn in done], axis=1)


def _num_groups(num_chains: int, num_threads: int) -> int:
    """As many as there are threads, if they can be of equal size."""
    return max(k for k in range(1, num_chains + 1) if num_chains % k == 0 and k <= num_threads)


def _joined(parts: Sequence, axis: int) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)


@dataclasses.dataclass(frozen=True)
class _Journey:
    """How far a run has come: all that a checkpoint must hold. Each chunk makes a new one, so that
    an interrupt finds the old or the new, never a mixture.

    Draws are numbered through warm-up and sampling. ``warm`` has the unconstrained draws of
    warm-up, ``moves`` how often and how far params moved, ``kept`` the draws since, ``snapshots``
    the records at some of those.
    """

    groups: Groups
    tuning: Tuning
    is_warm: bool = False
    was_idle: bool = False
    warm_up_sweeps: int = 0
    warm_up_seconds: float = 0.0
    sampling_seconds: float = 0.0
    warm: tuple[Any, ...] = ()
    moves: tuple[np.ndarray, ...] = ()
    kept: tuple[Draw, ...] = ()
    snapshots: tuple[dict[str, np.ndarray], ...] = ()

    @property
    def num_warm(self) -> int:
        return sum(part.shape[2] for part in self.warm)

    @property
    def num_kept(self) -> int:
        return sum(part.free.shape[2] for part in self.kept)

    def kept_draws(self) -> Draw:
        return _joined(self.kept, axis=2)

    def kept_records(self) -> dict[str, np.ndarray] | None:
        if not self.snapshots:
            return None
        return jax.tree.map(lambda *columns: np.stack(columns, axis=2), *self.snapshots)


def run_one(
    key: PRNGKeyArray, problem: Problem, settings: Settings, bar: Progress, checkpoint: Checkpoint
) -> Run:
    """All the draws from one release or, after Ctrl-C, those kept until then."""
    begin = time.perf_counter()
    batch, num_threads = _Batch(key[None], [problem]), num_cores() if _is_cpu() else 1
    saved = checkpoint.load()
    begun = _begin(batch, settings, num_threads, bar, is_resumed=saved is not None)
    layout = _layout(batch, settings, begun.swap_variance, num_threads)
    journey, crew = _embark(batch, settings, begun, layout, num_threads)
    journey = dataclasses.replace(journey, warm_up_seconds=time.perf_counter() - begin)
    prior = begun.prior
    del begun  # many records need not be held twice
    if saved is not None:
        journey = _from_tree(saved, crew)
    journey = _warm_up(journey, crew, bar, checkpoint)
    return _run(_draw(journey, crew, bar, checkpoint), prior, crew)


def run_many(
    keys: PRNGKeyArray, problems: Sequence[Problem], settings: Settings, bar: Progress
) -> list[Run]:
    """All the draws from each of some releases of one shape, a run a batch.

    An accelerator takes all releases as one batch, side by side. On a CPU every core works on
    another batch, of a few releases: as many as fill its vectors.
    """
    settings = settings._replace(num_prior_draws=PRIOR_DRAWS_OF_MANY)
    lanes = max(CPU_LANES, CPU_RECORDS // settings.num_records)
    if not settings.has_records:
        lanes = CPU_LANES_OF_SUMS
    size = max(1, lanes // settings.num_chains) if _is_cpu() else len(problems)
    batches = _batches(keys, problems, min(size, len(problems)))
    num_threads = max(1, num_cores() // len(batches)) if _is_cpu() else 1
    is_stopped = threading.Event()
    inner = _Stoppable(is_stopped) if len(batches) > 1 else bar

    def begin(batch: _Batch) -> _Begun:
        with jax.enable_x64(True):  # a thread's own setting
            return _begin(batch, settings, num_threads, inner)

    def go(batch: _Batch, begun: _Begun) -> Run:
        with jax.enable_x64(True):
            journey, crew = _embark(batch, settings, begun, layout, num_threads)
            journey = _warm_up(journey, crew, inner, Checkpoint(None))
            inner.expect(settings.num_draws, 0)
            while journey.num_kept < settings.num_draws:  # all or none: Ctrl-C is not caught here
                journey = _draw_more(journey, crew, inner)
            run = _run(journey, begun.prior, crew)
        if inner is not bar:
            bar.advance(1)
        return run

    with concurrent.futures.ThreadPoolExecutor(num_cores()) as pool:

        def each(function: Callable, *arguments: Sequence) -> list:
            # The first alone, so that only one compiles.
            first = function(*(argument[0] for argument in arguments))
            return [first, *pool.map(function, *(argument[1:] for argument in arguments))]

        try:
            bar.say("compiling")
            begun = each(begin, batches)
            variances = np.concatenate([one.swap_variance for one in begun])
            layout = _layout(batches[0], settings, variances, num_threads)
            if inner is not bar:
                bar.say("fitting")
                bar.expect(len(batches), 0)
            return each(go, batches, begun)
        except BaseException:
            is_stopped.set()
            raise


def _batches(keys: PRNGKeyArray, problems: Sequence[Problem], size: int) -> list[_Batch]:
    """Equal ones, so that one compiled program serves all; the last problem fills up the last."""
    num_batches = -(-len(problems) // size)
    indices = np.minimum(np.arange(num_batches * size), len(problems) - 1)
    return [
        _Batch(keys[batch], [problems[i] for i in batch])
        for batch in np.split(indices, num_batches)
    ]


class _Stoppable(Silent):
    """Ends a run in a thread, soon after somebody says so."""

    def __init__(self, is_stopped: threading.Event):
        self._is_stopped = is_stopped

    def advance(self, amount: int) -> None:
        if self._is_stopped.is_set():
            raise concurrent.futures.CancelledError


class _Begun(NamedTuple):
    """Where chains start from, and what is known of the shape of their posterior."""

    prior: Params
    states: State
    swap_variance: np.ndarray
    prior_shape: Shape
    shape: Shape
    was_idle: bool


def _begin(
    batch: _Batch, settings: Settings, num_threads: int, bar: Progress, *, is_resumed: bool = False
) -> _Begun:
    bar.say("compiling")
    shape, free, was_idle = None, None, False
    if settings.has_pilot and not is_resumed:
        shape, free, was_idle = _pilot(batch, settings, num_threads, bar)
    begun = start(
        batch.fold_in(0),
        stack(batch.problems),
        free,
        settings.num_records if settings.has_records else 0,  # a shape, or none
        settings.num_chains,
        settings.kernel,
        settings.num_prior_draws,
    )
    prior_shape = learn_shape(np.asarray(begun.free))
    variance = np.asarray(begun.swap_variance)
    shape = prior_shape if shape is None else shape
    return _Begun(begun.prior, begun.states, variance, prior_shape, shape, was_idle)


def _pilot(
    batch: _Batch, settings: Settings, num_threads: int, bar: Progress
) -> tuple[Shape, np.ndarray, bool]:
    """The shape to expect, unconstrained params for the chains to start from, and whether draws
    differ enough without the params' move.
    """
    num_records = max(MIN_PILOT_RECORDS, settings.num_records // PILOT_SHARE)
    ratio = num_records / settings.num_records
    batch = _Batch(batch.fold_in(2), [pilot.scaled(problem, ratio) for problem in batch.problems])
    settings = settings._replace(
        num_records=num_records, num_draws=0, sweeps_per_draw=None, is_pilot=True
    )
    begun = _begin(batch, settings, num_threads, bar)
    layout = _layout(batch, settings, begun.swap_variance, num_threads)
    journey, crew = _embark(batch, settings, begun, layout, num_threads)
    journey = _warm_up(journey, crew, bar, Checkpoint(None))
    last = journey.warm[-1][:, :, -1]
    shape, free = pilot.transfer(begun.prior_shape, journey.tuning.shape, last, 1 / ratio)
    return shape, free, not journey.tuning.is_moving


def _layout(
    batch: _Batch, settings: Settings, swap_variances: np.ndarray, num_threads: int
) -> Layout:
    if not settings.has_records:
        return Layout()
    problem = batch.problems[0]
    # Only of fresh records is it known how a block's acceptance falls with its size.
    variance = np.nan
    if problem.proposal is from_model:
        variance = float(np.quantile(swap_variances, 1 - SHARE_LEFT))  # small enough for most
    num_abreast = settings.num_chains // _num_groups(settings.num_chains, num_threads)
    return choose_layout(
        not _is_cpu(),
        settings.num_records,
        problem.released.shape[-1],
        settings.num_chains,
        variance,
        num_abreast if len(batch.problems) == 1 else None,
    )


def _is_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _embark(
    batch: _Batch, settings: Settings, begun: _Begun, layout: Layout, num_threads: int
) -> tuple[_Journey, _Crew]:
    crew = _Crew(batch, settings, layout, num_threads)
    num_stand_ins = min(crew.limits.all_stand_in, FIRST_STAND_INS)
    sweeps = settings.sweeps_per_draw or 1
    tuning = Tuning(begun.shape, sweeps, num_stand_ins, is_moving=not begun.was_idle)
    groups = crew.groups_of(begun.states)
    found = crew.information(groups, begun.shape)
    if found is not None:
        tuning = tuning._replace(cholesky=params_cholesky(begun.shape, found))
    was_idle = begun.was_idle or not settings.has_records  # there is no params' move to try without
    return _Journey(groups, tuning, was_idle=was_idle), crew


def _warm_up(journey: _Journey, crew: _Crew, bar: Progress, checkpoint: Checkpoint) -> _Journey:
    while not journey.is_warm:
        journey = _warm_up_more(journey, crew, bar)
        checkpoint.save(functools.partial(_as_tree, journey))
    return journey


def _draw(journey: _Journey, crew: _Crew, bar: Progress, checkpoint: Checkpoint) -> _Journey:
    """All draws or, after Ctrl-C, those kept until then."""
    num_draws = crew.settings.num_draws
    bar.say(f"drawing, {journey.tuning.sweeps_per_draw} sweeps a draw")
    bar.expect(num_draws, journey.num_kept)
    try:
        while journey.num_kept < num_draws:
            journey = _draw_more(journey, crew, bar)
            checkpoint.save(functools.partial(_as_tree, journey))
    except KeyboardInterrupt:
        if not journey.kept:
            raise
    checkpoint.save(functools.partial(_as_tree, journey), is_last=True)
    return journey


def _warm_up_more(journey: _Journey, crew: _Crew, bar: Progress) -> _Journey:
    """A few more draws and, where they fill a window, what it teaches."""
    begin = time.perf_counter()
    window, done = divmod(journey.num_warm, WINDOW_DRAWS)
    sweeps = journey.tuning.sweeps_per_draw
    groups, drawn = crew.advance(
        journey.groups, journey.num_warm, WINDOW_DRAWS - done, journey.tuning
    )
    count = drawn.free.shape[2]
    bar.say(f"warming up, window {window + 1}, {sweeps} sweeps a draw")
    bar.advance(count)
    journey = dataclasses.replace(
        journey,
        groups=groups,
        warm=(*journey.warm, drawn.free),
        moves=(
            *journey.moves,
            np.stack([drawn.move_rate, drawn.move_size, drawn.params_rate], axis=-1),
        ),
        warm_up_sweeps=journey.warm_up_sweeps + sweeps * count,
    )
    if done + count == WINDOW_DRAWS:
        free, moves = np.concatenate(journey.warm, axis=2), np.concatenate(journey.moves, axis=2)
        found = crew.information(groups, journey.tuning.shape)
        lesson = learn(free, moves, journey.tuning, journey.was_idle, crew.limits, found)
        journey = dataclasses.replace(journey, **lesson._asdict())
    elapsed = time.perf_counter() - begin
    return dataclasses.replace(journey, warm_up_seconds=journey.warm_up_seconds + elapsed)


def _draw_more(journey: _Journey, crew: _Crew, bar: Progress) -> _Journey:
    """A few more draws, up to the next at which the records are kept too."""
    begin, settings = time.perf_counter(), crew.settings
    snapshot_at = np.linspace(settings.num_draws, 0, settings.keep_records, endpoint=False)
    snapshot_at = snapshot_at.astype(int)
    done = journey.num_kept
    end = min([settings.num_draws, *snapshot_at[snapshot_at > done]])
    groups, drawn = crew.advance(
        journey.groups, journey.num_warm + done, end - done, journey.tuning
    )
    count = drawn.free.shape[2]
    snapshots = journey.snapshots
    if done + count in snapshot_at:
        snapshots = (*snapshots, _joined([group.records for group in groups], axis=1))
    bar.advance(count)
    return dataclasses.replace(
        journey,
        groups=groups,
        kept=(*journey.kept, drawn),
        snapshots=snapshots,
        sampling_seconds=journey.sampling_seconds + time.perf_counter() - begin,
    )


def _run(journey: _Journey, prior: Params, crew: _Crew) -> Run:
    return Run(
        journey.kept_draws(),
        prior,
        journey.kept_records(),
        journey.warm_up_sweeps,
        journey.tuning,
        crew.layout,
        journey.warm_up_seconds,
        journey.sampling_seconds,
        is_complete=journey.num_kept == crew.settings.num_draws,
    )


_NUMBERS = ("is_warm", "was_idle", "warm_up_sweeps", "warm_up_seconds", "sampling_seconds")


def _as_tree(journey: _Journey) -> dict[str, Any]:
    """Nested dicts of arrays and numbers, for a checkpoint."""
    tree: dict[str, Any] = {name: getattr(journey, name) for name in _NUMBERS}
    tree["states"] = _joined(journey.groups, axis=1)._asdict()
    tuning = journey.tuning._asdict() | {"shape": journey.tuning.shape._asdict()}
    tree["tuning"] = {name: value for name, value in tuning.items() if value is not None}
    tree["moves"] = np.concatenate(journey.moves, axis=2)
    tree["warm"] = np.concatenate(journey.warm, axis=2)
    if journey.kept:
        tree["kept"] = journey.kept_draws()._asdict()
    if journey.snapshots:
        tree["snapshots"] = journey.kept_records()
    return tree


def _from_tree(tree: dict[str, Any], crew: _Crew) -> _Journey:
    columns = tree.get("snapshots", {})
    num_snapshots = next(iter(columns.values())).shape[2] if columns else 0
    return _Journey(
        crew.groups_of(
            (RecordAugmentationState if crew.settings.has_records else StatisticGibbsState)(
                **tree["states"]
            )
        ),
        Tuning(**tree["tuning"] | {"shape": Shape(**tree["tuning"]["shape"])}),
        **{name: tree[name] for name in _NUMBERS},
        warm=(tree["warm"],),
        moves=(tree["moves"],),
        kept=(Draw(**tree["kept"]),) if "kept" in tree else (),
        snapshots=tuple(
            {name: column[:, :, index] for name, column in columns.items()}
            for index in range(num_snapshots)
        ),
    )
