"""The analyst's front door: a release and a model in, draws of the posterior out."""

import hashlib
import json
import os
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

import noiseaware
from noiseaware import draws as draws_
from noiseaware import validate
from noiseaware.chains import Problem, Run, run_chains
from noiseaware.models import Model
from noiseaware.release import Release, check_possible
from noiseaware.running import Checkpoint, progress_bar
from noiseaware.samplers.proposals import Proposal, from_model
from noiseaware.schema import accepts
from noiseaware.statistics import Statistic


class IncompleteWarning(UserWarning):
    """The fit was interrupted: there are fewer draws than asked for."""


METHODS = ("auto", "interweaving", "record_augmentation")


def fit(
    release: Release,
    model: Model,
    *,
    seed: int,
    num_records: int | None = None,
    method: str = "auto",
    chains: int = 4,
    draws: int = 1000,
    sweeps_per_draw: int | None = None,
    proposal: Proposal | None = None,
    keep_records: int = 0,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
):
    """Draw from ``p(params | release)``, exactly accounting for the noise.

    Args:
        release: what was published; see ``publish``, ``read`` and ``Release``.
        model: prior and record law; its columns must include those the release's statistic reads.
        seed: of all random numbers; the same seed gives the same draws.
        num_records: n, where the release does not make it public.
        method: ``"interweaving"``, ``"record_augmentation"`` (the plain sweep) or ``"auto"``.
        chains: number of chains, each started from its own draw of the prior.
        draws: kept draws a chain.
        sweeps_per_draw: sweeps between kept draws; chosen in warm-up if not given.
        proposal: how records are proposed, from the model if not given; see ``RandomWalk``.
        keep_records: how many imputed data sets to keep a chain: draws of ``p(records | release)``.
        checkpoint: a file to write now and then; the same call goes on from it after a kill.
        progress: show a bar, where there is a terminal.

    Ctrl-C, once draws are being kept, returns those with a warning and ``is_complete`` 0.

    Returns:
        ArviZ's ``InferenceData`` with the groups posterior, prior, sample_stats, observed_data and
        posterior_predictive (the release replicated), and provenance in its attributes.
    """
    if not isinstance(release, Release):
        raise ValueError(f"release must be a Release, got {release!r}.")
    num_records = _agreed_count(release, num_records)
    _check_match(release.statistic, model)
    _check_names(model)
    validate.one_of("method", method, METHODS)
    is_integer = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2^63 - 1, got {seed!r}.")
    if proposal is not None and not callable(proposal):
        raise ValueError(f"proposal must be a Proposal such as RandomWalk, got {proposal!r}.")
    chains = validate.positive_integer("chains", chains)
    draws = validate.positive_integer("draws", draws)
    if sweeps_per_draw is not None:
        validate.positive_integer("sweeps_per_draw", sweeps_per_draw)
    is_integer = isinstance(keep_records, (int, np.integer)) and not isinstance(keep_records, bool)
    if not is_integer or not 0 <= keep_records <= draws:
        raise ValueError(
            f"keep_records must be an integer from 0 to draws = {draws}, got {keep_records!r}."
        )

    kernel = "interweaving" if method == "auto" else method
    problem = Problem(
        model, release.statistic, release.mechanism, release.values, proposal or from_model
    )
    settings = _settings(problem) | {
        "seed": seed,
        "method": kernel,
        "num_records": num_records,
        "chains": chains,
        "draws": draws,
        "sweeps_per_draw": sweeps_per_draw,
        "keep_records": keep_records,
    }
    with jax.enable_x64(True), progress_bar(progress) as bar:
        run = run_chains(
            jr.key(seed),
            problem,
            kernel=kernel,
            num_records=num_records,
            num_chains=chains,
            num_draws=draws,
            sweeps_per_draw=sweeps_per_draw,
            keep_records=keep_records,
            bar=bar,
            checkpoint=Checkpoint(checkpoint, settings),
        )
    attrs = _attrs(release, model, num_records) | {
        "method": kernel,
        "method_reason": _reason(method),
        "proposal": getattr(problem.proposal, "__name__", type(problem.proposal).__name__),
        "exactness": "exact",
        "seed": seed,
        "warm_up_sweeps": run.warm_up_sweeps,
        "sweeps_per_draw": run.tuning.sweeps_per_draw,
        "block_size": run.layout.block_size,
        "has_params_move": int(kernel == "interweaving" and run.tuning.is_moving),
        "warm_up_seconds": run.warm_up_seconds,
        "sampling_seconds": run.sampling_seconds,
        "is_complete": int(run.is_complete),
    }
    if not run.is_complete:
        made = run.draws.free.shape[1]
        warnings.warn(
            f"interrupted after {made} of {draws} draws a chain", IncompleteWarning, stacklevel=2
        )
    return _container(release, model, run, attrs)


def _settings(problem: Problem) -> dict[str, str]:
    """What a checkpoint must agree with: versions, and all that the kernel reads."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(problem) if not callable(leaf)]
    digest = hashlib.sha256(eqx.tree_pformat(problem).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return {
        "noiseaware": noiseaware.__version__,
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "release and model": digest.hexdigest(),
    }


def _container(release: Release, model: Model, run: Run, attrs: dict[str, Any]):
    kept = run.draws
    container = draws_.as_inference_data(
        posterior=kept.params,
        prior={name: np.asarray(value)[None] for name, value in run.prior.items()},
        sample_stats={
            "acceptance_rate": kept.acceptance_rate,
            "min_log_ratio": kept.min_log_ratio,
            "log_density": kept.log_density,
        },
        observed=release.values,
        replicated=kept.replicated,
        release_labels=release.labels,
        param_labels=model.labels,
        records=run.records,
        attrs=attrs,
    )
    summary = draws_.summarize(container)
    container.attrs["sd_ratio"] = draws_.learned_json(summary)
    draws_.warn_if_not_converged(summary)
    return container


def _attrs(release: Release, model: Model, num_records: int) -> dict[str, Any]:
    cost = release.cost
    return {
        "created_by": f"noiseaware {noiseaware.__version__}",
        "model": type(model).__name__,
        "statistic": type(release.statistic).__name__,
        "mechanism": type(release.mechanism).__name__,
        "num_records": num_records,
        "neighbours": str(release.neighbours),
        "noise": str(release.noise),
        "cost": json.dumps({"name": type(cost).__name__} | cost.__dict__),
    }


def _reason(method: str) -> str:
    if method != "auto":
        return "asked for"
    return "the model writes a record as a function of params and noise, so params can move freely"


def _agreed_count(release: Release, num_records: int | None) -> int:
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


def _check_names(model: Model) -> None:
    """Axes of the draws are named after columns, and must not meet another name there."""
    taken = {"chain", "draw", "sum", "release", *model.supports}
    for axes in model.labels.values():
        for axis in axes:
            if axis in taken:
                raise ValueError(f"a column must not be called {axis!r}: the draws use that name.")


def _check_match(statistic: Statistic, model: Model) -> None:
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
