"""What a fit assumes of code that is not the library's own, tried on a few draws before sampling.

Each failure names the function, what it was given, and the rule [JAGR22, A1-A4 where they apply].
Passing proves nothing: draws may miss the place where a rule is broken.
"""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from noiseaware.chains import Problem
from noiseaware.mechanisms import FunctionMechanism
from noiseaware.models import ExponentialFamily, FunctionModel, Model
from noiseaware.models.support import unconstrain
from noiseaware.samplers import ParamsKernel
from noiseaware.schema import Binary, Category, Kind, Whole
from noiseaware.statistics import FunctionStatistic
from noiseaware.tracing import attempt, name_of

NUM_PARAMS, MAX_RECORDS, MAX_COMBINATIONS = 8, 500, 100
MAX_FAMILY_ERROR = 1e-6


def check(problem: Problem, num_records: int) -> None:
    """Say what is wrong with the parts of the problem that somebody else wrote, if anything is."""
    model, step = problem.model, problem.params_step
    parts = (model, problem.statistic, problem.mechanism, problem.proposal, step)
    if all(map(is_built_in, parts)):
        return
    size = min(num_records, MAX_RECORDS)
    known = {name: column[:size] for name, column in problem.known.items()}
    prior, record = _names(model)
    params = _try(f"{prior}(key)", _draw_params, model)
    _check_numbers(f"{prior}(key)", params)
    params = _inside(prior, model, params)
    if isinstance(model, ExponentialFamily) and not is_built_in(model):
        _check_family(model, params)
    if problem.num_records is not None:
        return  # no records are drawn
    records = _try(f"{record}(key, params)", _draw_records, model, params, known, size)
    if not is_built_in(model):
        _check_records(record, model, records, known, size)
        if model.has_densities:
            _check_densities(model, params, records)
    if size == num_records:  # a step may count on as many as there are
        if step is None and model.has_posterior_step and not is_built_in(model):
            _check_step("posterior", model.sample_posterior, params, records)
        if step is not None and not isinstance(step, ParamsKernel):
            _check_step("params_step", step, params, records)
    if not is_built_in(problem.statistic):
        _check_statistic(problem, records)
    if not is_built_in(problem.mechanism):
        _check_mechanism(problem, records, num_records / size)
    if not is_built_in(problem.proposal):
        _check_proposal(problem, params, records)


def _inside(prior: str, model: Model, params):
    """The draws that do not round to the edge of their support, where unconstrained params are
    infinite; outside they are no numbers, or lead back to other params.
    """
    free, again = jax.tree.map(np.asarray, _there_and_back(model, params))
    is_at_edge = np.any(np.isinf(free), axis=1)
    for index in range(NUM_PARAMS):
        one = {name: value[index] for name, value in params.items()}
        is_back = all(
            np.allclose(again[name][index], value, rtol=1e-6, atol=1e-9)
            for name, value in one.items()
        )
        if not is_at_edge[index] and not is_back:
            raise ValueError(
                f"{prior}(key) must draw params from their supports, {model.supports}, got "
                f"{_at(params, index)}."
            )
    if np.all(is_at_edge):
        raise ValueError(f"{prior}(key) must not round to the edge, got {_at(params, 0)}.")
    order = np.resize(np.flatnonzero(~is_at_edge), NUM_PARAMS)
    return {name: value[order] for name, value in params.items()}


def _check_family(model: ExponentialFamily, params) -> None:
    """That its functions belong to one density of x."""
    name = type(model).__name__
    log_total, slope, mean = _try(
        f"{name}.log_density(params, x)", _family_at_points, model, params
    )
    for index in range(NUM_PARAMS):
        at = _at(params, index)
        if not np.abs(log_total[index]) < MAX_FAMILY_ERROR:
            raise ValueError(
                f"{name}.log_density(params, x) must have the total probability 1 over its domain, "
                f"got {np.exp(log_total[index]):g} at {at}."
            )
        if not np.allclose(slope[index], mean[index], rtol=MAX_FAMILY_ERROR, atol=MAX_FAMILY_ERROR):
            raise ValueError(
                f"the slope of {name}.log_partition(natural) must be the mean of its features, "
                f"{mean[index]}, got {slope[index]} at {at}."
            )


@eqx.filter_jit
def _family_at_points(model: ExponentialFamily, params):
    def one(params):
        x, log_mass = (values.ravel() for values in model.law(params))
        mean = jax.nn.softmax(log_mass) @ jax.vmap(model.sufficient)(x)
        slope = jax.grad(model.log_partition)(model.natural(params))
        return jax.nn.logsumexp(log_mass), slope, mean

    return jax.vmap(one)(params)


def is_built_in(part: Any) -> bool:
    """Whether the library's own laws test it; None, for what was not asked for, is."""
    if part is None:
        return True
    if isinstance(part, (FunctionModel, FunctionStatistic, FunctionMechanism)):
        return False
    home = getattr(part, "__module__", None) or type(part).__module__
    return home.startswith("noiseaware.") and not is_of_numpyro(part)


def is_of_numpyro(part: Any) -> bool:
    """Without importing NumPyro, which most fits do not need."""
    return type(part).__name__ == "NumpyroModel"


def _names(model: Model) -> tuple[str, str]:
    if isinstance(model, FunctionModel):
        return name_of(model.prior_function), name_of(model.record_function)
    if is_of_numpyro(model):
        return (name_of(model.function),) * 2  # type: ignore[attr-defined]
    return f"{type(model).__name__}.sample_prior", f"{type(model).__name__}.sample_records"


def _try(what: str, function: Callable, *arguments: Any) -> Any:
    """The result as NumPy arrays."""
    return jax.tree.map(np.asarray, attempt(what, function, *arguments))


@eqx.filter_jit
def _draw_params(model: Model):
    return jax.vmap(model.sample_prior)(jr.split(jr.key(0), NUM_PARAMS))


@eqx.filter_jit
def _there_and_back(model: Model, params):
    def one(params):
        free, constrain = unconstrain(model.supports, params)
        return free, constrain(free)[0]

    return jax.vmap(one)(params)


@eqx.filter_jit
def _draw_records(model: Model, params, known, size: int):
    keys = jr.split(jr.key(1), NUM_PARAMS)
    return jax.vmap(lambda key, params: model.sample_records(key, params, size, known))(
        keys, params
    )


@eqx.filter_jit
def _log_priors(model: Model, params):
    return jax.vmap(model.log_prior)(params)


@eqx.filter_jit
def _log_records(model: Model, params, records):
    """(params, params the record was drawn at, record)."""
    of_record = jax.vmap(model.log_record, in_axes=(None, 0))
    return jax.vmap(jax.vmap(of_record, in_axes=(None, 0)), in_axes=(0, None))(params, records)


@eqx.filter_jit
def _steps(step: Callable, params, records):
    return jax.vmap(step)(jr.split(jr.key(2), NUM_PARAMS), params, records)


@eqx.filter_jit
def _contributions(problem: Problem, records):
    return jax.vmap(jax.vmap(problem.contribution))(records)


@eqx.filter_jit
def _log_noise(problem: Problem, totals):
    return jax.vmap(lambda total: problem.mechanism.log_density(problem.released, total))(totals)


@eqx.filter_jit
def _proposals(problem: Problem, params, records):
    def propose(key, params, records):
        proposed, correction = problem.proposal(key, problem.model, params, records)
        return proposed, jnp.broadcast_to(correction, (len(next(iter(records.values()))),))

    return jax.vmap(propose)(jr.split(jr.key(3), NUM_PARAMS), params, records)


def _at(tree: Any, *index: int) -> dict[str, Any]:
    """One draw, to be shown."""
    return {name: np.round(value[index], 6).tolist() for name, value in tree.items()}


def _check_numbers(what: str, tree: Any) -> None:
    if not isinstance(tree, dict) or not tree:
        raise ValueError(f"{what} must return a dict of numbers, got {tree!r}.")
    for name, value in tree.items():
        if value.dtype.kind not in "fiub" or not np.all(np.isfinite(value)):
            raise ValueError(f"{what} must return finite numbers, got {name!r} = {value[0]!r}.")


def _check_records(record: str, model: Model, records, known, size: int) -> None:
    what = f"{record}(key, params)"
    _check_numbers(what, records)
    if set(records) != set(model.columns):
        raise ValueError(
            f"{what} must return the columns {sorted(model.columns)}, got {sorted(records)}."
        )
    for name, kind in model.columns.items():
        values = records[name]
        if values.shape != (NUM_PARAMS, size):
            raise ValueError(
                f"{what} must make one number of column {name!r}, for ONE record, got shape "
                f"{values.shape[2:]}."
            )
        if name in known and not np.array_equal(values, np.broadcast_to(known[name], values.shape)):
            raise ValueError(f"{what} must leave the known column {name!r} as it is.")
        is_wrong = ~_is_of(kind, values)
        if np.any(is_wrong):
            raise ValueError(
                f"{what} must return {kind.description} for column {name!r}"
                f"{', its index' if isinstance(kind, Category) else ''}, got {values[is_wrong][0]}."
            )


def _is_of(kind: Kind, values: np.ndarray) -> np.ndarray:
    match kind:
        case Category():
            return (values >= 0) & (values < len(kind.levels)) & (values == np.floor(values))
        case Binary():
            return (values == 0) | (values == 1)
        case Whole():
            return (values >= 0) & (values == np.floor(values))
    return np.isfinite(values)


def _check_densities(model: Model, params, records) -> None:
    log_prior = _try("log_prior(params)", _log_priors, model, params)
    _check_finite_scalars("log_prior(params)", log_prior, 1, params)
    log_record = _try("log_record(params, record)", _log_records, model, params, records)
    if log_record.shape != (NUM_PARAMS, *next(iter(records.values())).shape):
        raise ValueError(
            f"log_record(params, record) must return one number, got shape {log_record.shape[3:]}."
        )
    _check_sums_to_one(model, params, records)
    where = np.argwhere(~np.isfinite(log_record))
    own = [index for index in where if index[0] == index[1]]
    for at, drawn_at, index in [*own, *where][:1]:
        record = _at(records, drawn_at, index)
        value = log_record[at, drawn_at, index]
        if at == drawn_at:
            raise ValueError(
                f"log_record must be finite at a record that the law draws, got {value} at params "
                f"{_at(params, at)} and record {record}."
            )
        raise ValueError(
            "the support of the record law must not depend on params [JAGR22, A2]: the record "
            f"{record}, drawn at params {_at(params, drawn_at)}, has log density {value} at params "
            f"{_at(params, at)}. Or it underflows there: compute it in logarithms."
        )


def _check_sums_to_one(model: Model, params, records) -> None:
    """The probabilities of all records, where these can be counted."""
    kinds = {name: kind for name, kind in model.columns.items() if name not in model.known}
    sizes = [len(k.levels) if isinstance(k, Category) else 2 for k in kinds.values()]
    is_countable = all(isinstance(kind, (Category, Binary)) for kind in kinds.values())
    if not is_countable or np.prod(sizes) > MAX_COMBINATIONS:
        return
    levels = np.array(list(itertools.product(*map(range, sizes))))
    each = {name: levels[:, k].astype(records[name].dtype) for k, name in enumerate(kinds)} | {
        name: np.full(len(levels), records[name][0, 0]) for name in model.known
    }
    every = {name: np.broadcast_to(x, (NUM_PARAMS, len(levels))) for name, x in each.items()}
    sums = np.exp(np.asarray(_log_records(model, params, every))[:, 0]).sum(axis=1)
    for index in np.flatnonzero(~(np.abs(sums - 1) < 1e-6))[:1]:
        raise ValueError(
            "log_record must be the logarithm of probabilities that sum to 1 over all records, got "
            f"the sum {sums[index]:g} at params {_at(params, index)}."
        )


def _check_finite_scalars(what: str, values: np.ndarray, ndim: int, given) -> None:
    if values.ndim != ndim:
        raise ValueError(f"{what} must return one number, got shape {values.shape[ndim:]}.")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise ValueError(
            f"{what} must be finite at draws of the prior, got {values[tuple(bad[0])]} at "
            f"{_at(given, *bad[0])}."
        )


def _check_step(what: str, step: Callable, params, records) -> None:
    call = f"{what}(key, params, records)"
    moved = _try(call, _steps, step, params, records)
    _check_numbers(call, moved)
    for name, value in params.items():
        if name not in moved or moved[name].shape != value.shape or len(moved) != len(params):
            shapes = {key: column.shape[1:] for key, column in moved.items()}
            raise ValueError(
                f"{call} must return params as it got them, {name!r} of shape {value.shape[1:]}, "
                f"got {shapes}."
            )


def _check_statistic(problem: Problem, records) -> None:
    statistic = problem.statistic
    function = statistic.function if isinstance(statistic, FunctionStatistic) else statistic
    what = f"{name_of(function)}(record{', released' if statistic.reads_release else ''})"
    has = f"{what} of a record with columns {sorted(records)}"
    contributions = _try(has, _contributions, problem, records)
    size = len(statistic.labels)
    if contributions.shape[2:] != (size,):
        raise ValueError(
            f"{what} must return {size} numbers, one a label, got shape {contributions.shape[2:]}."
        )
    lower, upper = statistic.contribution_bounds()
    slack = 1e-9 * (1 + np.abs(contributions))
    is_wrong = ~np.isfinite(contributions)
    is_out = (contributions < lower - slack) | (contributions > upper + slack)
    for wrong, rule in ((is_wrong, "be finite"), (is_out, "stay inside its bounds")):
        for i, j, k in np.argwhere(wrong)[:1]:
            raise ValueError(
                f"{what} must {rule}, got {statistic.labels[k]} = {contributions[i, j, k]} at "
                f"record {_at(records, i, j)}."
            )


def _check_mechanism(problem: Problem, records, ratio: float) -> None:
    contributions = _try("statistic", _contributions, problem, records)
    totals = np.sum(contributions, axis=1) * ratio
    if np.all(contributions == np.round(contributions)):  # discrete noise has no density between
        totals = np.round(totals)
    log_g = _try("log_density(released, total)", _log_noise, problem, totals)
    if log_g.shape != (NUM_PARAMS,):
        raise ValueError(
            f"log_density(released, total) must return one number, got shape {log_g.shape[1:]}."
        )
    for index in np.argwhere(~np.isfinite(log_g))[:1, 0]:
        raise ValueError(
            "log_density(released, total) must be finite, so that the mechanism's density is "
            f"positive [JAGR22, A3], got {log_g[index]} at total {totals[index].tolist()}."
        )


def _check_proposal(problem: Problem, params, records) -> None:
    what = f"{name_of(problem.proposal)}(key, model, params, records)"
    proposed, correction = _try(what, _proposals, problem, params, records)
    known = {name: records[name][0] for name in problem.model.known}
    name = name_of(problem.proposal)
    _check_records(name, problem.model, proposed, known, correction.shape[1])
    for i, j in np.argwhere(np.isnan(correction) | (correction == np.inf))[:1]:
        raise ValueError(
            f"{what} must return a correction below infinity, got {correction[i, j]} from record "
            f"{_at(records, i, j)} to {_at(proposed, i, j)}."
        )
    if not problem.model.has_densities:
        return
    inside = np.isfinite(np.stack([
        np.diagonal(_log_records(problem.model, params, each)).T for each in (records, proposed)
    ])).all(axis=0)  # fmt: skip
    for i, j in np.argwhere(inside & (correction == -np.inf))[:1]:
        raise ValueError(
            f"{what} must be able to reach every record that the model can draw [JAGR22, A4]: "
            f"from {_at(proposed, i, j)} it cannot go back to {_at(records, i, j)}."
        )
