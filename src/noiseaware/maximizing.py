"""Maximum likelihood and posterior mode from the same sweeps: Monte Carlo EM [JAGR22, Section 6].

With L the likelihood of the release, records integrated out, and ``s(x) = d log f(x | theta) /
d theta``, Fisher's identity gives

    S(theta) = d log L / d theta = E[sum_i s(x_i) | theta, release],

and sweeps over the records at fixed theta average over that law. EM climbs along S by the
complete-data information, which crawls where the noise hides most of it. Here Newton's method
finds S = 0, with the information of L itself, from differences of S.

In units of the standard error the variance of ``sum_i s(x_i)`` is the missing over the observed
information, without bound as the noise grows. But a visit that proposes ``x*_i ~ f(. | theta)``
and accepts it with probability a_i leaves the law of x invariant, so ``E s(x_i) = E[(1 - a_i)
s(x_i) + a_i s(x*_i)]``; and ``E s(x*_i) = 0``. Hence

    S(theta) = E sum_i (1 - a_i) (s(x_i) - s(x*_i)),

whose variance falls with the rejections: where all is missing there are none.

The search is in unconstrained coordinates ``z = location + cholesky w``. A round runs chains of
records at w = 0 and at ``w = +-h e_j``, with the same random numbers, and counts the later
half of its sweeps. Differences of S give the information J, ``J^-1 S`` the next location, and
``cholesky J^-1 cholesky^T`` the next unit, soon the standard error. When the points move, records
are rebuilt from their noises, ``x = phi(theta, u)``, and the chains go on. Sweeps double until the
round is long for its chains and the Monte Carlo errors, from the spread over chains, are small.
Once the maximum seems less than ``CLOSE`` standard errors away, the score must point back to it
from ``AWAY`` units beyond, on both sides of every axis; if it points on, the search ends without
a maximum.

The density whose mode is found is that in the params' own coordinates, so no Jacobian enters; for a
simplex these are all entries but one, for a covariance the lower triangle. Standard errors are
those of the delta method, ``G J^-1 G^T`` with ``G = d params / d z``.
"""

import dataclasses
import functools
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from noiseaware import validate
from noiseaware.chains import Problem
from noiseaware.draws import ConvergenceWarning, scalars
from noiseaware.fitting import fit, known_columns
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.release import Release
from noiseaware.running import Progress, progress_bar
from noiseaware.samplers.layout import Layout
from noiseaware.samplers.layout import choose as choose_layout
from noiseaware.samplers.proposals import from_model
from noiseaware.samplers.record_augmentation import sweep_records
from noiseaware.schema import Records
from noiseaware.warming import learn_shape

OF_MAXIMUM = 2**32 - 2  # folded into the seed: far from the numbers that a fit folds in
NOT_SHOWN = "has no maximum inside the support, or is too flat to show one, or has several"
TARGETS = ("likelihood", "posterior")
WARM_UP_DRAWS = 250
MAX_STEP = 8.0  # units
MAX_STRETCH = 4.0  # by which the unit shrinks in one round
MIN_CURVATURE = 1e-12
FIRST_SWEEPS, MAX_SWEEPS = 16, 2**13
MAX_UNCLEAR_SWEEPS = 2**10  # then the density is too flat to show a maximum
MAX_WIDTH = 100.0  # posterior sds: with a standard error beyond, the search runs off to an edge
MAX_ROUNDS = 60
MIN_CHAINS = 16  # for errors from their spread
MIN_EXCHANGES = 10  # of every record while the last round counts
MAX_CORRELATION = 0.5  # over chains, of a round's third quarter with its last
CLOSE = 0.1  # standard errors to go, when it is time to look from beyond
AWAY = 2.0  # units
NOISY = 0.25  # Monte Carlo errors above which a round decides little
MAX_Z = 4.0  # a step, or a slope, of so many Monte Carlo errors is real


@dataclasses.dataclass(frozen=True)
class Maximum:
    """Where the density is largest: dicts by parameter, in the params' own coordinates.

    ``monte_carlo_errors`` are those of ``params``; ``relative_error`` is that of the standard
    errors, the largest of them.
    """

    target: str
    params: dict[str, np.ndarray]
    standard_errors: dict[str, np.ndarray]
    monte_carlo_errors: dict[str, np.ndarray]
    relative_error: float
    labels: dict[str, tuple[str, tuple[int, ...]]]

    def table(self):
        """A data frame, one row a parameter."""
        import pandas

        columns = {
            "estimate": self.params,
            "standard_error": self.standard_errors,
            "monte_carlo_error": self.monte_carlo_errors,
        }
        rows = self.labels.items()
        return pandas.DataFrame(
            {
                title: {label: float(values[name][index]) for label, (name, index) in rows}
                for title, values in columns.items()
            }
        )

    def __str__(self) -> str:
        title = f"Maximum of the {self.target}, standard errors +- {self.relative_error:.1%}"
        return f"{title}\n{self.table().to_string(float_format='{:.4g}'.format)}"


def maximize(
    release: Release,
    model: Model,
    *,
    seed: int,
    target: str = "likelihood",
    num_records: int | None = None,
    known: Mapping[str, Any] | None = None,
    chains: int = 64,
    precision: float = 0.02,
    progress: bool = True,
) -> Maximum:
    """Maximum likelihood or posterior mode, with standard errors that account for the noise.

    The maximum is a local one: the search starts in the middle of the posterior, from a short
    ``fit``. Of two that lie within some standard errors of each other it may find neither. It takes
    (2 d + 1) times the memory of a fit with as many chains and d unconstrained params.

    Args:
        release: what was published; see ``publish``, ``read`` and ``Release``.
        model: prior and record law; under ``"likelihood"`` the prior only says where to start.
        seed: of all random numbers; the same seed gives the same maximum.
        target: ``"likelihood"`` or, for the mode of the posterior density, ``"posterior"``.
        num_records: n, where the release does not make it public.
        known: the columns that the model calls known, as for ``fit``.
        chains: of records, at each point; Monte Carlo errors are taken from their spread.
        precision: the Monte Carlo error to reach, as a part of the standard error.
        progress: show a bar, where there is a terminal.
    """
    validate.one_of("target", target, TARGETS)
    if isinstance(model, Model) and not model.has_noise_map:
        raise ValueError("model must have a noise map for maximize: use fit.")
    precision = validate.probability("precision", precision)
    if validate.positive_integer("chains", chains) < MIN_CHAINS:
        raise ValueError(f"chains must be at least {MIN_CHAINS}, got {chains}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is only a start
        draws = fit(
            release, model, seed=seed, num_records=num_records, known=known, draws=WARM_UP_DRAWS,
            progress=progress,
        )  # fmt: skip
    if not draws.attrs["is_complete"]:
        raise KeyboardInterrupt
    num_records = int(draws.attrs["num_records"])
    posterior = {name: draws.posterior[name].values for name in model.supports}
    layout = choose_layout(
        jax.default_backend() != "cpu", num_records, len(release.values), chains, np.nan
    )
    with jax.enable_x64(True), progress_bar(progress) as bar:
        goal = _Goal(
            Problem(
                model,
                release.statistic,
                release.mechanism,
                release.values,
                from_model,
                known_columns(model, known),
            ),
            jax.tree.map(lambda values: values[0, 0], posterior),
            np.asarray(float(target == "posterior")),
            layout._replace(block_size=draws.attrs["block_size"]),
        )
        key = jr.fold_in(jr.key(seed), OF_MAXIMUM)
        start = _posterior_frame(model, posterior)
        walk = _Chains(key, goal, _points(start, 0.0), num_records, chains)
        report = _search(goal, start, walk, precision, bar)
    if isinstance(report, str):
        advice = "use target='posterior', or fit" if target == "likelihood" else "use fit"
        raise ValueError(f"the {target} {report}: {advice}.")
    if not report.is_settled:
        warnings.warn(
            "The chains of records mix too slowly for the longest round: the maximum, its standard "
            "errors and their Monte Carlo errors may all be wrong. Use fit.",
            ConvergenceWarning,
            stacklevel=2,
        )
    elif report.error > precision:
        warnings.warn(
            f"Monte Carlo errors are up to {report.error:.1%} of the standard errors, where "
            f"{precision:.1%} was asked for. Maximize again with more chains.",
            ConvergenceWarning,
            stacklevel=2,
        )
    labels = {label: (name, index) for name, index, label in scalars(draws.posterior)}
    return Maximum(
        target,
        report.params,
        report.standard_errors,
        report.monte_carlo_errors,
        report.relative_error,
        labels,
    )


class _Frame(NamedTuple):
    """``z = location + cholesky w``."""

    location: Float[np.ndarray, " d"]
    cholesky: Float[np.ndarray, "d d"]


class _Goal(eqx.Module):
    """What is maximised; its numbers are traced, so they never recompile."""

    problem: Problem
    template: Params  # only its shapes are read
    prior_weight: Float[np.ndarray, ""]
    layout: Layout = eqx.field(static=True)

    def params(self, free: Float[Array, " d"]) -> Params:
        _, constrain = unconstrain(self.problem.model.supports, self.template)
        return constrain(free)[0]

    def log_prior(self, free):
        return self.prior_weight * self.problem.model.log_prior(self.params(free))

    def log_ratio(self, free, current: Records, proposed: Records, weights):
        """``sum_i weight_i (log f(x_i) - log f(x*_i))``."""
        log_record = functools.partial(self.problem.model.log_record, self.params(free))
        return weights @ (jax.vmap(log_record)(current) - jax.vmap(log_record)(proposed))


def _posterior_frame(model: Model, posterior: Params) -> _Frame:
    pooled = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), posterior)
    free = jax.vmap(lambda params: unconstrain(model.supports, params)[0])(pooled)
    free = np.asarray(free)
    location, cholesky = learn_shape(free[None, np.all(np.isfinite(free), axis=1)])
    return _Frame(np.asarray(location[0]), np.asarray(cholesky[0]))


def _search(
    goal: _Goal, start: _Frame, chains: "_Chains", precision: float, bar: Progress
) -> "_Report | str":
    """What the last round says of the maximum, or why there is none to report."""
    # The noise of a difference quotient falls with the offset, its bias grows with the square.
    offset = np.sqrt(precision) / 2
    frame, num_sweeps, radius, is_peak = start, FIRST_SWEEPS, 1.0, None
    is_precise, last_step, last_gain = False, None, None
    for index in range(MAX_ROUNDS):
        bar.say(f"maximising, round {index + 1}, {num_sweeps} sweeps")
        scores, are_mixed = chains.scores(_points(frame, offset), num_sweeps)
        if not np.all(np.isfinite(scores)):
            return "has no finite slope where it was tried"
        score = np.mean(scores[0], axis=0)
        if last_step is not None:
            radius = _next_radius(radius, score @ last_step / last_gain)
        found = _estimate(scores @ frame.cholesky, offset)
        moved = _moved(frame, found, start, radius)
        if found.is_close and is_peak is None:
            away = _points(_Frame(moved.location, frame.cholesky), AWAY)
            scores_away, are_mixed_away = chains.scores(away, num_sweeps)
            if are_mixed_away or num_sweeps == MAX_SWEEPS:
                is_peak = _is_peak(scores_away @ frame.cholesky)
        if is_peak is False:
            return NOT_SHOWN
        if is_peak and not found.is_moving:
            report = _report(goal, frame, found, is_settled=are_mixed)
            # A round that seems precise may only seem so: report the next, of twice the sweeps.
            if is_precise or num_sweeps == MAX_SWEEPS:
                return report
            is_precise = report.error <= precision and report.is_settled
        else:
            is_precise = False
        is_unclear = found.is_close and is_peak is None
        is_lost = is_unclear or _width(found, frame, start) > MAX_WIDTH
        if is_lost and are_mixed and num_sweeps >= MAX_UNCLEAR_SWEEPS:
            return NOT_SHOWN
        if is_unclear or found.is_noisy or not found.is_moving:
            num_sweeps = min(2 * num_sweeps, MAX_SWEEPS)
        last_step = None
        if found.is_moving and not is_unclear:
            last_step = moved.location - frame.location
            last_gain = score @ last_step
            frame = moved
    return f"shows no maximum in {MAX_ROUNDS} rounds"


def _next_radius(radius: float, ratio: float) -> float:
    """From the score along the last step, at its end over that at its start: 0 after a good step,
    near 1 after one too short, negative after one too long.
    """
    if ratio < -0.5:  # Newton's step may cycle where the density is not concave
        return radius / 3
    return min(2 * radius, MAX_STEP) if ratio > 0.25 else radius


def _points(frame: _Frame, offset: float) -> Float[np.ndarray, "points d"]:
    """The location, then a point above it on each axis, then one below."""
    axes = offset * frame.cholesky.T
    return frame.location + np.concatenate([np.zeros((1, len(axes))), axes, -axes])


class _Chains:
    """Chains of records at some points, which may be brought to others."""

    def __init__(self, key, goal: _Goal, points, num_records: int, num_chains: int):
        self._key, key_start = jr.split(key)
        self._goal, self._points = goal, points
        self._records = _start(key_start, goal, points, num_records, num_chains)

    def scores(self, points, num_sweeps: int) -> tuple[Float[np.ndarray, "points chains d"], bool]:
        """Those of every chain at every point, and whether the round was long for the chains."""
        self._key, key = jr.split(self._key)
        halves, acceptance_rate, self._records = _run_round(
            key, self._goal, self._records, self._points, points, np.asarray(num_sweeps)
        )
        self._points = points
        halves = np.asarray(halves)
        num_exchanges = num_sweeps / 2 * float(acceptance_rate)
        are_mixed = num_exchanges >= MIN_EXCHANGES and _correlation(halves) < MAX_CORRELATION
        return np.mean(halves, axis=2), are_mixed


def _correlation(halves: Float[np.ndarray, "points chains 2 d"]) -> float:
    """Of the two halves over chains at the first point, the largest over coordinates."""
    first, second = np.moveaxis(halves[0] - np.mean(halves[0], axis=0), 1, 0)
    spread = np.sqrt(np.sum(first**2, axis=0) * np.sum(second**2, axis=0))
    return float(np.max(np.sum(first * second, axis=0) / np.where(spread > 0, spread, 1.0)))


@eqx.filter_jit
def _start(key, goal: _Goal, points, num_records: int, num_chains: int) -> Records:
    """Fresh records of every chain at every point, (point, chain, record)."""

    def chain(key, point):
        params = goal.params(point)
        return goal.problem.model.sample_records(key, params, num_records, goal.problem.known)

    keys = jr.split(key, num_chains)
    return jax.vmap(jax.vmap(chain, in_axes=(0, None)), in_axes=(None, 0))(keys, points)


@eqx.filter_jit
def _run_round(
    key: PRNGKeyArray,
    goal: _Goal,
    records: Records,
    before: Float[np.ndarray, "points d"],
    points: Float[np.ndarray, "points d"],
    num_sweeps: Int[np.ndarray, ""],
):
    """The score at each point in the last two quarters of the round, (point, chain, 2, d), the
    mean acceptance rate, and the records, moved to these points from those before.
    """
    model, mechanism = goal.problem.model, goal.problem.mechanism
    sweep = functools.partial(
        sweep_records,
        model=model,
        contribution=goal.problem.contribution,
        log_density=functools.partial(mechanism.log_density, goal.problem.released),
        layout=goal.layout,
    )
    quarter = num_sweeps // 4

    def chain(key, records, before, point):
        key_noise, key_sweeps = jr.split(key)
        params = goal.params(point)
        noise = model.noises(key_noise, goal.params(before), records)
        tally = functools.partial(jax.grad(goal.log_ratio), point)

        def advance(index, carry):
            records, sums = carry
            key = jr.fold_in(key_sweeps, index)
            records, info, score = sweep(key, params, records, tally=tally)
            counted = jnp.append(score, info.acceptance_rate)
            return records, sums.at[index // quarter].add(counted)

        start = (model.records(params, noise), jnp.zeros((4, point.size + 1)))
        records, sums = jax.lax.fori_loop(0, 4 * quarter, advance, start)
        halves = sums[2:] / quarter
        scores = halves[:, :-1] + jax.grad(goal.log_prior)(point)
        return scores, jnp.mean(halves[:, -1]), records

    keys = jr.split(key, len(jax.tree.leaves(records)[0][0]))  # the same at all points
    chains = jax.vmap(chain, in_axes=(0, 0, None, None))
    scores, rates, records = jax.vmap(chains, in_axes=(None, 0, 0, 0))(
        keys, records, before, points
    )
    return scores, jnp.mean(rates), records


class _Estimate(NamedTuple):
    """What a round says, in units of its frame; one step and information a chain."""

    steps: Float[np.ndarray, "chains d"]
    informations: Float[np.ndarray, "chains d d"]
    variance: Float[np.ndarray, "d d"]
    is_moving: bool  # the maximum is elsewhere, or the unit too large
    is_close: bool  # as far as is known
    is_noisy: bool


def _estimate(scores: Float[np.ndarray, "points chains d"], offset: float) -> _Estimate:
    size = scores.shape[-1]
    centre, above, below = scores[0], scores[1 : size + 1], scores[size + 1 :]
    slopes = np.moveaxis(below - above, 1, 0) / (2 * offset)
    informations = (slopes + np.swapaxes(slopes, 1, 2)) / 2
    curvatures, axes = np.linalg.eigh(np.mean(informations, axis=0))
    # Uphill also where the density is not concave.
    bounded = np.clip(np.abs(curvatures), MIN_CURVATURE, MAX_STRETCH**2)
    root = axes / np.sqrt(bounded)  # from the frame's units to standard errors
    steps = centre @ root
    errors = _error_of_mean(steps)
    step = np.mean(steps, axis=0)
    is_far = np.any(np.abs(step) > MAX_Z * errors)
    is_off = np.any((curvatures < 0) | (curvatures > 2))
    noise = _error_of_mean(root.T @ informations @ root)
    return _Estimate(
        steps @ root.T,
        informations,
        root @ root.T,
        is_moving=bool(is_far or is_off),
        is_close=bool(not is_off and (not is_far or np.linalg.norm(step) < CLOSE)),
        is_noisy=bool(max(np.max(errors), np.max(noise)) > NOISY),
    )


def _is_peak(scores: Float[np.ndarray, "points chains d"]) -> bool | None:
    """Whether the score points back from both sides along every axis; None if that is unclear."""
    axes = np.arange(scores.shape[-1])
    above, below = scores[1 + axes, :, axes], scores[1 + len(axes) + axes, :, axes]
    back = np.concatenate([below, -above]).T
    means, errors = np.mean(back, axis=0), _error_of_mean(back)
    if np.any(means < -MAX_Z * errors):
        return False
    return True if np.all(means > MAX_Z * errors) else None


def _error_of_mean(chains: np.ndarray) -> np.ndarray:
    return np.std(chains, axis=0, ddof=1) / np.sqrt(len(chains))


def _moved(frame: _Frame, found: _Estimate, start: _Frame, radius: float) -> _Frame:
    """At the next location, with the standard error as unit where it is less than at the start."""
    step = np.mean(found.steps, axis=0)
    step = step * radius / max(float(np.linalg.norm(step)), radius)
    ratio = np.linalg.solve(start.cholesky, frame.cholesky)
    variances, axes = np.linalg.eigh(ratio @ found.variance @ ratio.T)
    root = start.cholesky @ (axes * np.sqrt(np.minimum(variances, 1.0)))
    return _Frame(frame.location + frame.cholesky @ step, np.linalg.cholesky(root @ root.T))


def _width(found: _Estimate, frame: _Frame, start: _Frame) -> float:
    """The largest standard error, in standard deviations of the posterior."""
    ratio = np.linalg.solve(start.cholesky, frame.cholesky)
    return float(np.sqrt(np.max(np.linalg.eigvalsh(ratio @ found.variance @ ratio.T))))


class _Report(NamedTuple):
    """As in ``Maximum``; ``error`` is the largest Monte Carlo error, in standard errors, and
    ``is_settled`` says that the last round was long for its chains: records were exchanged often,
    and a chain's third quarter says little of its last.
    """

    params: dict[str, np.ndarray]
    standard_errors: dict[str, np.ndarray]
    monte_carlo_errors: dict[str, np.ndarray]
    relative_error: float
    error: float
    is_settled: bool


def _report(goal: _Goal, frame: _Frame, found: _Estimate, *, is_settled: bool) -> _Report:
    """The maximum, in the params' own coordinates."""
    free = frame.location + frame.cholesky @ np.mean(found.steps, axis=0)
    params, derivative = map(np.asarray, _derivative(goal, free))
    weights = derivative @ frame.cholesky
    influence = weights @ found.variance
    variances = np.sum(influence * weights, axis=1)
    standard_errors = np.sqrt(variances)
    errors = _error_of_mean(found.steps @ weights.T)
    # d J^-1 = -J^-1 dJ J^-1, and a standard error changes by half as much as its square.
    changes = np.einsum("pi,kij,pj->kp", influence, found.informations, influence) / variances
    relative_error = float(np.max(_error_of_mean(changes))) / 2

    def named(values) -> dict[str, np.ndarray]:
        return jax.tree.map(np.asarray, ravel_pytree(goal.template)[1](values))

    return _Report(
        named(params),
        named(standard_errors),
        named(errors),
        relative_error,
        max(relative_error, float(np.max(errors / standard_errors))),
        is_settled,
    )


@eqx.filter_jit
def _derivative(goal: _Goal, free):
    """Params as one vector, and their derivative."""

    def flat(free):
        return ravel_pytree(goal.params(free))[0]

    return flat(free), jax.jacfwd(flat)(free)
