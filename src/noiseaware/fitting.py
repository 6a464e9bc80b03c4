"""The analyst's front doors: a release and a model in, draws of the posterior out."""

import dataclasses
import functools
import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

import noiseaware
from noiseaware import draws as draws_
from noiseaware import pilot, validate
from noiseaware.chains import Problem
from noiseaware.checking import check, is_built_in, is_of_numpyro
from noiseaware.convergence import bulk_ess, finite, r_hat
from noiseaware.journeys import Run, Settings, run_many, run_one
from noiseaware.models import ExponentialFamily, FunctionModel, Model
from noiseaware.models.domain import Levels
from noiseaware.release import Release, check_possible
from noiseaware.running import CONTENT, Checkpoint, Deadline, DeadlineError, progress_bar
from noiseaware.samplers.params_given_records import ParamsKernel, UserStep
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.schema import accepts, as_records
from noiseaware.statistics import Statistic
from noiseaware.warming import MIN_WINDOWS, WINDOW_DRAWS

METHODS = ("auto", "interweaving", "record_augmentation", "statistic_gibbs")
EXACT = ("auto", "interweaving", "record_augmentation")  # auto, where nothing speaks against it
APPROXIMATE = "approximate: CLT on the statistic"
OF_MANY, OF_TRIAL = 2**32 - 1, 2**32 - 3  # folded into the seed: far from a fit's own numbers
MAX_SECONDS = 600.0  # of an exact run, where there is an approximate one
LONG, SURELY_LONG = 1e8, 2e12  # records x chains x draws: shorter below, longer above
TRIAL_RECORDS, TRIAL_DRAWS, MIN_TRIAL_SECONDS = 10_000, 50, 3.0
SAMPLE_STATS = ("acceptance_rate", "min_log_ratio", "log_density")


def fit(
    release: Release,
    model: Model,
    *,
    seed: int,
    num_records: int | None = None,
    known: Mapping[str, Any] | None = None,
    method: str = "auto",
    chains: int = 4,
    draws: int = 1000,
    sweeps_per_draw: int | None = None,
    proposal: Proposal | None = None,
    params_step: ParamsKernel | UserStep | None = None,
    keep_records: int = 0,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
):
    """Draw from ``p(params | release)``, exactly accounting for the noise unless ``method`` says
    otherwise.

    Args:
        release: what was published; see ``publish``, ``read`` and ``Release``.
        model: prior and record law; its columns must include those the release's statistic reads.
        seed: of all random numbers; the same seed gives the same draws.
        num_records: n, where the release does not make it public.
        known: the columns that the model calls known, such as groups or covariates that are public:
            a dict or a DataFrame with a row for every record.
        method: ``"interweaving"`` or ``"record_augmentation"`` (the plain sweep), exact, at a cost
            that grows with n; ``"statistic_gibbs"``, for an ``ExponentialFamily``, approximate, at
            one that does not; or ``"auto"``: exact, unless that would take more than ten minutes
            (from a short trial), the approximation is there, and no checkpoint is asked for, or the
            model cannot draw records.
        chains: number of chains, each started from its own draw of the prior or, from 100,000
            records on, of a pilot's wider posterior; over sums, of the prior's draws weighed by
            the release.
        draws: kept draws a chain.
        sweeps_per_draw: sweeps between kept draws; chosen in warm-up if not given.
        proposal: how records are proposed, from the model if not given; see ``RandomWalk`` and
            ``CrankNicolson``.
        params_step: how params move given records; by the model's own step if not given or, where
            it has none, by ``Slice()``. ``NUTS()``, ``HMC()`` and ``Metropolis()`` adapt in
            warm-up. A function ``(key, params, records) -> params`` must leave
            p(params | records) invariant.
        keep_records: how many imputed data sets to keep a chain: draws of ``p(records | release)``.
        checkpoint: a file to write every ten seconds and at the end, in warm-up too; the same call
            goes on from it after a kill, and after the end returns the same draws at once.
        progress: show a bar, where there is a terminal.

    Ctrl-C, once draws are being kept, returns those with a warning and ``is_complete`` 0.

    Returns:
        ArviZ's ``InferenceData`` with the groups posterior, prior, sample_stats, observed_data and
        posterior_predictive (the release replicated), and provenance in its attributes. Of the
        sample_stats, ``log_density`` is log g(release | imputed sums), ``acceptance_rate`` that of
        records, and ``min_log_ratio`` the smallest log g ratio of a proposal: at least -epsilon for
        a record under pure DP. Under ``"statistic_gibbs"`` the rate is that of sums drawn anew, and
        the ratio 0. ``warm_up_seconds`` count compilation.
    """
    problem, settings = _asked(
        release, model, seed=seed, num_records=num_records, known=known, method=method,
        chains=chains, draws=draws, sweeps_per_draw=sweeps_per_draw, proposal=proposal,
        params_step=params_step,
    )  # fmt: skip
    is_integer = isinstance(keep_records, (int, np.integer)) and not isinstance(keep_records, bool)
    if not is_integer or not 0 <= keep_records <= draws:
        raise ValueError(
            f"keep_records must be an integer from 0 to draws = {draws}, got {keep_records!r}."
        )
    if keep_records and not settings.has_records:
        raise ValueError("keep_records must be 0: 'statistic_gibbs' has no records to keep.")
    for name, value in {"proposal": proposal, "params_step": params_step}.items():
        if checkpoint is not None and value is not None and not isinstance(value, eqx.Module):
            raise ValueError(
                f"checkpoint needs a {name} that is an equinox Module: whether a function is the "
                f"same after a kill cannot be seen, got {value!r}."
            )
    for part in (model, release.statistic, release.mechanism):
        if checkpoint is not None and any(map(callable, part.__dict__.values())):
            raise ValueError(
                "checkpoint needs parts of numbers: whether a function is the same after a kill "
                f"cannot be seen, got {type(part).__name__}."
            )
    settings, reason = settings._replace(keep_records=keep_records), _reason(method, model)
    if method == "auto" and checkpoint is None and _why_not_sums(release, model) is None:
        seconds = _seconds_if_long(problem, settings, seed)
        if seconds > MAX_SECONDS and not (keep_records or proposal or params_step):
            settings = settings._replace(kernel="statistic_gibbs")
            problem = _of_sums(problem, settings.num_records)
            minutes = f"{seconds / 60:.0f}" if np.isfinite(seconds) else "ten"
            reason = f"the exact run would take {minutes} minutes or more"
    asked = {name.removeprefix("num_"): value for name, value in settings._asdict().items()}
    file = Checkpoint(checkpoint, _identity(problem) | {"seed": seed} | asked)
    _say_if_plain(method, model)
    with jax.enable_x64(True), progress_bar(progress) as bar:
        check(problem, settings.num_records)
        run = run_one(jr.key(seed), problem, settings, bar, file)
    if not run.is_complete:
        made = run.draws.free.shape[2]
        warnings.warn(
            f"interrupted after {made} of {draws} draws a chain",
            draws_.IncompleteWarning,
            stacklevel=2,
        )
    run = jax.tree.map(lambda x: x[0] if np.ndim(x) else x, run)  # the only data set
    attrs = _attrs(release, problem, settings, reason, seed) | {
        "warm_up_sweeps": run.warm_up_sweeps,
        "sweeps_per_draw": run.tuning.sweeps_per_draw,
        "block_size": run.layout.block_size,
        "has_params_move": int(settings.kernel == "interweaving" and run.tuning.is_moving),
        "warm_up_seconds": run.warm_up_seconds,
        "sampling_seconds": run.sampling_seconds,
        "is_complete": int(run.is_complete),
        "is_resumed": int(file.was_loaded),
    }
    container = _container(release, model, run, attrs)
    summary = draws_.summarize(container)
    container.attrs["sd_ratio"] = draws_.learned_json(summary)
    draws_.warn_if_not_converged(summary)
    return container


def fit_many(
    releases: Sequence[Release],
    model: Model,
    *,
    seed: int,
    num_records: int | None = None,
    known: Mapping[str, Any] | None = None,
    method: str = "auto",
    chains: int = 4,
    draws: int = 1000,
    sweeps_per_draw: int | None = None,
    proposal: Proposal | None = None,
    params_step: ParamsKernel | UserStep | None = None,
    first: int = 0,
    progress: bool = True,
):
    """Fit each of many releases on its own: the same model, statistic and number of records, other
    sums and noise scales. For calibration and coverage studies.

    Arguments are those of ``fit``, without checkpoints and kept records; ``"auto"`` is exact for
    every model that can draw records; Ctrl-C returns nothing. Release i draws from the seed and
    ``first + i``, its number in a study of which this is a part.
    All releases share the size of blocks, and some of them what warm-up chooses beside the shape of
    the params' move: sweeps, unless given, and how many records stand for all.

    Returns:
        ``fit``'s container with one more dimension, ``fit``, after (chain, draw): ArviZ's functions
        take it as any other. The group ``fits`` has, of each fit, R-hat and bulk effective size,
        the worst over unconstrained params, its sweeps, and whether its params' move was kept.
    """
    if isinstance(releases, Release):
        raise ValueError("releases must be several: for one Release use fit.")
    releases = list(releases)
    if not releases:
        raise ValueError("releases must hold at least one Release, got none.")
    asked_of = functools.partial(
        _asked, model=model, seed=seed, num_records=num_records, known=known, method=method,
        chains=chains, draws=draws, sweeps_per_draw=sweeps_per_draw, proposal=proposal,
        params_step=params_step,
    )  # fmt: skip
    asked = [asked_of(release) for release in releases]
    problems, (settings, *others) = [problem for problem, _ in asked], [it for _, it in asked]
    for index, (problem, other) in enumerate(zip(problems[1:], others, strict=True), 1):
        _check_alike(index, problem, problems[0], other.num_records, settings.num_records)
    begin = time.perf_counter()
    _say_if_plain(method, model)
    with jax.enable_x64(True), progress_bar(progress) as bar:
        check(problems[0], settings.num_records)
        root = jr.fold_in(jr.key(seed), OF_MANY)
        keys = jax.vmap(lambda i: jr.fold_in(root, i))(first + np.arange(len(releases)))
        runs = run_many(keys, problems, settings, bar)
    reason = _reason(method, model)
    attrs = _attrs(releases[0], problems[0], settings, reason, seed)
    every = [_attrs(release, problems[0], settings, reason, seed) for release in releases]
    # Where they differ, a list, one a fit.
    for name in ("neighbours", "noise", "noise_scale", "cost"):
        if len({each[name] for each in every}) > 1:
            attrs[name] = json.dumps([each[name] for each in every])
    attrs |= {
        "block_size": runs[0].layout.block_size,
        "seconds": time.perf_counter() - begin,
    }
    container = _container_of_many(releases, model, runs, attrs)
    draws_.warn_if_fits_not_converged(container)
    return container


def _asked(
    release: Release,
    model: Model,
    *,
    seed: int,
    num_records: int | None,
    known: Mapping[str, Any] | None,
    method: str,
    chains: int,
    draws: int,
    sweeps_per_draw: int | None,
    proposal: Proposal | None,
    params_step: ParamsKernel | UserStep | None,
) -> tuple[Problem, Settings]:
    """What the caller asked for, once it makes sense."""
    if not isinstance(release, Release):
        raise ValueError(f"release must be a Release, got {release!r}.")
    statistic, mechanism = release.statistic, release.mechanism
    check_match(statistic, model)
    columns = known_columns(model, known)
    if columns:
        num_records = _agreed_length(columns, num_records)
    num_records = agreed_count(release, num_records)
    draws_.check_names(model.labels, model.supports)
    validate.one_of("method", method, METHODS)
    is_integer = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}.")
    if proposal is not None and not _is_function(proposal):
        raise ValueError(f"proposal must be a Proposal such as RandomWalk, got {proposal!r}.")
    is_kernel = isinstance(params_step, ParamsKernel)
    has_step = model.has_posterior_step if params_step is None else not is_kernel
    if not has_step and not model.has_densities:
        raise ValueError(
            f"{type(model).__name__} needs log_prior and log_record for params given records, or a "
            "posterior, or a function for params_step."
        )
    if params_step is not None and not is_kernel and not _is_function(params_step):
        raise ValueError(
            f"params_step must be a function or a kernel such as NUTS(), got {params_step!r}."
        )
    if sweeps_per_draw is not None:
        validate.positive_integer("sweeps_per_draw", sweeps_per_draw)
    settings = Settings(
        kernel=_kernel(method, model),
        num_records=num_records,
        num_chains=validate.positive_integer("chains", chains),
        num_draws=validate.positive_integer("draws", draws),
        sweeps_per_draw=sweeps_per_draw,
        can_scale=not statistic.reads_release and bool(np.all(np.isfinite(mechanism.spread()))),
    )
    proposal = from_model if proposal is None else proposal
    problem = Problem(model, statistic, mechanism, release.values, proposal, columns, params_step)
    if not settings.has_records:
        if reason := _why_not_sums(release, model):
            raise ValueError(f"method 'statistic_gibbs' needs {reason}.")
        if proposal is not from_model or params_step is not None:
            raise ValueError("method 'statistic_gibbs' takes no proposal and no params_step.")
        problem = _of_sums(problem, num_records)
    elif not model.has_records:
        raise ValueError(
            f"method {settings.kernel!r} needs {type(model).__name__} to have sample_noise and "
            "record, or sample_records."
        )
    return problem, settings


def check_fit(release: Release, model: Model) -> None:
    """Whatever ``fit`` would refuse of them."""
    _asked(
        release, model, seed=0, num_records=None, known=None, method="auto", chains=1, draws=1,
        sweeps_per_draw=None, proposal=None, params_step=None,
    )  # fmt: skip


def _why_not_sums(release: Release, model: Model) -> str | None:
    """What keeps a fit from running on sums in place of records."""
    if not isinstance(model, ExponentialFamily):
        return f"an ExponentialFamily, got {type(model).__name__}"
    statistic, name = release.statistic, type(release.statistic).__name__
    if tuple(statistic.columns) != (model.column,) or statistic.reads_release:
        return f"a statistic of the column {model.column!r} alone, got {name}"
    if statistic.bounds is None and not isinstance(model.domain, Levels):
        return f"a statistic with bounds, such as Clamped or Redacted, got {name}"
    if not release.mechanism.is_normal_mixture:
        return f"Laplace or Gaussian noise, got {type(release.mechanism).__name__}"
    return None


def _of_sums(problem: Problem, num_records: int) -> Problem:
    return dataclasses.replace(problem, num_records=np.asarray(float(num_records)))


def exact_run_is_long(
    release: Release, model: Model, *, seed: int, num_records: int | None, chains: int, draws: int
) -> bool:  # fmt: skip
    """Whether an exact fit would take more than ten minutes, by a trial."""
    problem, settings = _asked(
        release, model, seed=seed, num_records=num_records, known=None, method="auto",
        chains=chains, draws=draws, sweeps_per_draw=None, proposal=None, params_step=None,
    )  # fmt: skip
    return settings.has_records and _seconds_if_long(problem, settings, seed) > MAX_SECONDS


def _seconds_if_long(problem: Problem, settings: Settings, seed: int) -> float:
    """What the exact run would take, from a trial with at most ``TRIAL_RECORDS`` records on a
    release scaled to so many; 0 where the run is surely short, infinite where the trial was too
    long itself.
    """
    visits = settings.num_records * settings.num_chains * settings.num_draws
    if visits < LONG:
        return 0.0
    if visits > SURELY_LONG:
        return visits / SURELY_LONG * MAX_SECONDS
    num_records = min(TRIAL_RECORDS, settings.num_records)
    num_draws = min(TRIAL_DRAWS, settings.num_draws)
    trial = settings._replace(num_records=num_records, num_draws=num_draws, keep_records=0)
    ratio = num_records / settings.num_records
    # The trial is shorter than a whole run with its records: if it lasts, the run does.
    bar = Deadline(max(MAX_SECONDS * ratio, MIN_TRIAL_SECONDS))
    with jax.enable_x64(True):
        key = jr.fold_in(jr.key(seed), OF_TRIAL)
        try:
            run = run_one(key, pilot.scaled(problem, ratio), trial, bar, Checkpoint(None))
        except DeadlineError:
            return np.inf
    draws = settings.num_draws + MIN_WINDOWS * WINDOW_DRAWS
    return run.sampling_seconds / num_draws * draws / ratio


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _check_alike(index: int, problem: Problem, first: Problem, count: int, first_count: int):
    def form(problem):
        arrays, rest = eqx.partition(problem, eqx.is_array)
        return [leaf.shape for leaf in jax.tree.leaves(arrays)], jax.tree.structure(rest)

    if count != first_count:
        raise ValueError(
            f"releases must have one number of records, {first_count} as in the first, "
            f"got {count} in release {index}."
        )
    if form(problem) != form(first):
        raise ValueError(
            f"releases must be of one shape, as the first {first.statistic!r} by "
            f"{first.mechanism!r}, got {problem.statistic!r} by {problem.mechanism!r} in release "
            f"{index}."
        )


def _identity(problem: Problem) -> dict[str, str]:
    """What a checkpoint must agree with: versions, and all that the kernel reads."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(problem) if not callable(leaf)]
    digest = hashlib.sha256(eqx.tree_pformat(problem).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return {
        "noiseaware": noiseaware.__version__,
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        CONTENT: digest.hexdigest(),
    }


def _container(release: Release, model: Model, run: Run, attrs: dict[str, Any]):
    kept = run.draws
    return draws_.as_inference_data(
        posterior=kept.params,
        prior=run.prior,
        sample_stats={name: getattr(kept, name) for name in SAMPLE_STATS},
        observed=release.values,
        replicated=kept.replicated if kept.replicated.shape[-1] else None,
        release_labels=release.labels,
        param_labels=model.labels,
        records=run.records,
        attrs=attrs,
    )


def _container_of_many(
    releases: Sequence[Release], model: Model, runs: Sequence[Run], attrs: dict[str, Any]
):
    """As of one fit, with a dimension more: ``[chain, draw, fit, ...]``."""
    joined = [(run.draws, run.prior) for run in runs]
    kept, prior = jax.tree.map(lambda *parts: np.concatenate(parts)[: len(releases)], *joined)
    kept = jax.tree.map(lambda x: np.moveaxis(x, 0, 2), kept)

    def each_fit(values):
        return np.repeat(values, [len(run.draws.free) for run in runs])[: len(releases)]

    free = finite(kept.free)
    return draws_.as_inference_data(
        posterior=kept.params,
        prior={name: np.swapaxes(value, 0, 1) for name, value in prior.items()},
        sample_stats={name: getattr(kept, name) for name in SAMPLE_STATS},
        observed=np.stack([release.values for release in releases]),
        replicated=kept.replicated if kept.replicated.shape[-1] else None,
        release_labels=releases[0].labels,
        param_labels=model.labels,
        records=None,
        attrs=attrs,
        fits={
            "r_hat": np.max(r_hat(free), axis=-1),
            "ess_bulk": np.min(bulk_ess(free), axis=-1),
            "sweeps_per_draw": each_fit([run.tuning.sweeps_per_draw for run in runs]),
            "warm_up_sweeps": each_fit([run.warm_up_sweeps for run in runs]),
            "has_params_move": each_fit([int(run.tuning.is_moving) for run in runs]),
        },
    )


def _attrs(
    release: Release, problem: Problem, settings: Settings, reason: str, seed: int
) -> dict[str, Any]:
    """Where draws come from, as far as it is known beforehand."""
    cost = release.cost
    return {
        "created_by": f"noiseaware {noiseaware.__version__}",
        "model": type(problem.model).__name__,
        "statistic": type(release.statistic).__name__,
        "mechanism": type(release.mechanism).__name__,
        "noise_scale": json.dumps(np.asarray(release.mechanism.spread()).tolist()),
        "num_records": settings.num_records,
        "neighbours": str(release.neighbours),
        "noise": str(release.noise),
        "cost": json.dumps({"name": type(cost).__name__} | cost.__dict__ if cost else None),
        "method": settings.kernel,
        "method_reason": reason,
        "proposal": _name(problem.proposal) if settings.has_records else "none",
        "params_step": _params_step(problem),
        "exactness": _exactness(release, problem) if settings.has_records else APPROXIMATE,
        "seed": seed,
    }


def _kernel(method: str, model: Model) -> str:
    if method == "interweaving" and not model.has_noise_map:
        raise ValueError("method 'interweaving' needs a model with a noise map, got one without.")
    if method != "auto":
        return method
    if not model.has_records:
        return "statistic_gibbs"
    return "interweaving" if model.has_noise_map else "record_augmentation"


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _params_step(problem: Problem) -> str:
    if problem.num_records is not None:
        return "conjugate"
    if problem.params_step is not None:
        return _name(problem.params_step)
    return "the model's own" if problem.model.has_posterior_step else "Slice"


def _exactness(release: Release, problem: Problem) -> str:
    conditions = []
    if release.num_records is None:
        conditions.append("the number of records is the one given")
    if not is_built_in(problem.statistic) or not is_built_in(problem.mechanism):
        conditions.append("statistic and mechanism are those of the release")
    if not is_built_in(problem.model) and not is_of_numpyro(problem.model):
        conditions.append("the model's functions belong together")
    if not is_built_in(problem.proposal):
        conditions.append("the proposal returns the right correction")
    if not is_built_in(problem.params_step):
        conditions.append("the params step leaves params given records invariant")
    return "exact" + (f" if {' and '.join(conditions)}" if conditions else "")


def _reason(method: str, model: Model) -> str:
    if method != "auto":
        return "asked for"
    if not model.has_records:
        return "the model cannot draw records"
    if not model.has_noise_map:
        sites = ", ".join(getattr(model, "unmapped", ()))
        what = f"record site {sites} has" if sites else "the model has"
        return f"{what} no noise map, so params move slowly where the noise is large"
    return "the model writes a record as a function of params and noise, so params can move freely"


def _say_if_plain(method: str, model: Model) -> None:
    """Aloud, where more could be hoped for: a model of functions never promised a noise map."""
    is_silent = isinstance(model, FunctionModel) or not model.has_records
    if method == "auto" and not model.has_noise_map and not is_silent:
        warnings.warn(f"plain sweeps: {_reason(method, model)}", stacklevel=3)


def agreed_count(release: Release, num_records: int | None) -> int:
    if num_records is None:
        if release.num_records is None:
            raise ValueError(
                "num_records must be given: the release does not make the number of records public."
            )
        return release.num_records
    num_records = validate.positive_integer("num_records", num_records)
    if release.num_records is None:
        check_possible(release.values, release.statistic, release.mechanism, num_records)
    if release.num_records not in (None, num_records):
        raise ValueError(
            f"num_records must be the release's {release.num_records}, got {num_records}."
        )
    return num_records


def known_columns(model: Model, known: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    if known is None:
        if model.known:
            raise ValueError(
                f"known must give {list(model.known)} of every record: {type(model).__name__} says "
                "that they are known."
            )
        return {}
    missing = [name for name in model.known if name not in known]
    if missing or not model.known:
        raise ValueError(
            f"known must have the columns {list(model.known)}, those that {type(model).__name__} "
            f"calls known, got {list(known)}."
        )
    return as_records(known, {name: model.columns[name] for name in model.known})


def _agreed_length(columns: dict[str, np.ndarray], num_records: int | None) -> int:
    length = len(next(iter(columns.values())))
    if num_records not in (None, length):
        raise ValueError(f"known must have {num_records} rows, num_records, got {length}.")
    return length


def check_match(statistic: Statistic, model: Model) -> None:
    if not isinstance(model, Model):
        raise ValueError(f"model must be a Model, got {model!r}.")
    for name, measured in statistic.columns.items():
        if name not in model.columns:
            raise ValueError(
                f"model must have the column {name!r} that {type(statistic).__name__} reads, "
                f"got {type(model).__name__} with {sorted(model.columns)}."
            )
        modelled = model.columns[name]
        if not accepts(measured, modelled):
            raise ValueError(
                f"column {name!r} must mean the same to both: {type(statistic).__name__} reads "
                f"{measured.description}, {type(model).__name__} has {modelled.description}."
            )
