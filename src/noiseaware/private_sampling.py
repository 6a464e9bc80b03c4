"""The curator's second front door: chains on the records themselves, within a budget.

``private_sample`` draws from ``p(params) prod_i f(x_i | params)^temperature``, each record's
influence clipped, by a sampler of ``private_mcmc/``. What leaves it is a function of noisy answers
alone, whose cost is in its attributes; ``private_mcmc/queries.py`` states the guarantee.

Nothing but the noisy answers may depend on a record. So records and settings are checked before the
first question, an iteration that was begun is charged, and there is no checkpoint: to repeat a step
with fresh noise would be a second answer to the same question.
"""

import contextlib
import functools
import json
import math
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import noiseaware
from noiseaware import draws as draws_
from noiseaware import validate
from noiseaware.accounting import ApproxDP, Cost
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.private_mcmc import PrivateSampler
from noiseaware.private_mcmc.access import Access
from noiseaware.private_mcmc.budgets import (
    Purse,
    checked_for_batches,
    is_within_budget,
    less_rounding,
    max_iterations,
    purse_of,
    squared_mu_of,
)
from noiseaware.private_mcmc.chains import Run, run
from noiseaware.private_mcmc.host_noise import Secure, Simulated, Source
from noiseaware.private_mcmc.queries import MAX_RECORDS, Queries, check_shape, sensitivity
from noiseaware.private_mcmc.tuning import expected_effective, tune
from noiseaware.private_pilots import Learned, Pilot, log_prior_of
from noiseaware.release import Noise
from noiseaware.running import progress_bar
from noiseaware.schema import Category, Neighbours, as_records

NUM_PRIOR_DRAWS = 4000
NUM_SIMULATED_RECORDS = 100
SIMULATED = "simulated, not private"
PRIVATE = "private at its cost"
MIN_EFFECTIVE = 20
MAX_CLIPPED = 0.2  # of log ratios: with more, the target is another
MIN_SUMMARIZED = 4  # draws a chain
MAX_EXPONENT = 700.0  # above it e^epsilon overflows
ADVICE = "More needs a larger budget, fewer chains, a pilot or other settings."

Shards = Callable[[], Iterable[Mapping[str, Any]]]


class ClippingWarning(UserWarning):
    """So many records are clipped that the draws are of something else."""


class SmallBudgetError(ValueError):
    """The budget buys too little. Nothing was spent."""


def private_sample(
    records: Mapping[str, Any] | Shards,
    model: Model,
    sampler: PrivateSampler | type[PrivateSampler],
    budget: Cost,
    *,
    start: Mapping[str, Any] | Pilot | None = None,
    chains: int = 1,
    iterations: int | None = None,
    temperature: float = 1.0,
    discard: float = 0.5,
    seed: int | None = None,
    progress: bool = True,
    checkpoint: None = None,
):
    """Draws of the posterior given confidential records, as private as the budget says.

    Guarantee: the returned draws are private at the cost in their attributes, which is within
    ``budget``, if neither ``start`` nor the sampler's settings nor the model were chosen by looking
    at the records. Under a ``GDP`` budget they are within ``variation_of_rounding``, in total
    variation, of draws that are. That an error appears before sampling is not private.

    Args:
        records: a dict of columns or a DataFrame; or, for records that do not fit in memory, a
            function that returns an iterator over such parts, the same ones every time.
        model: with ``log_prior`` and ``log_record``.
        sampler: ``Penalty``, ``OneComponentPenalty``, ``GuidedPenalty``, ``HamiltonianPenalty`` or,
            approximate, ``Barker`` or ``Langevin``, with its settings; or one of the first four
            classes, whose settings are then tuned on simulated records, at the pilot's draws or
            the prior's.
        budget: ``ApproxDP``, ``ZCDP`` or ``GDP``, with its neighbours.
        start: params to start from, for all chains or with a leading axis for each; or a
            ``PilotRelease`` or ``PilotChain``, which spends its share of the budget first; a draw
            of the prior for each chain where not given.
        chains: they share the budget.
        iterations: of each chain; as many as the budget allows where not given. For a class it is
            the most, since what the budget allows is known once it is tuned.
        temperature: the power of the likelihood.
        discard: share of the iterations left out at the beginning.
        seed: of a simulated run for studies, which is marked as not private and also returns what
            no private run may, such as the share of records clipped.
    """
    if checkpoint is not None:
        raise ValueError(
            "checkpoint must not be given: private chains do not resume. To repeat a step with "
            "fresh noise is a second spend. Start a new run with the budget that is left."
        )
    if not model.has_densities:
        raise ValueError(f"{type(model).__name__} must have log_prior and log_record, got neither.")
    draws_.check_names(model.labels, model.supports)
    chains = validate.positive_integer("chains", chains)
    temperature = float(validate.positive_number("temperature", temperature))
    if not 0 <= discard < 1:
        raise ValueError(f"discard must be a share of at least 0 and below 1, got {discard}.")
    if iterations is not None:
        validate.positive_integer("iterations", iterations)
    _check_given(model, start)
    share = start.share if isinstance(start, Pilot) else 0.0
    if model.known and (share > 0 or isinstance(sampler, type)):
        raise ValueError(
            f"start and the sampler's settings must be given for {type(model).__name__}: without "
            f"the columns {list(model.known)} no records can be simulated."
        )
    columns, num_records = _checked_records(records, model)
    _check_batches(sampler, columns, num_records)
    purse = purse_of(sampler, budget, share)
    _check_sampler(sampler, purse.left(purse.for_pilot), chains, iterations, seed)
    if num_records > MAX_RECORDS[budget.neighbours]:
        raise ValueError(f"records must be at most {MAX_RECORDS[budget.neighbours]}.")
    _warn_of_delta(budget, num_records)
    source: Source = Secure() if seed is None else Simulated(seed)
    access = Access(records, columns, num_records, budget.neighbours, model, source, seed)
    with progress_bar(progress) as bar, jax.enable_x64(True):
        plan = _planned(access, sampler, purse, start, chains, iterations, temperature, bar)
        prior = _prior(plan.key, model)
        left = 1 - purse.share_of(plan.squared_mu_of_pilot)

        def say(begun: int) -> str:
            return f"private chains, {left * (1 - begun / plan.most):.0%} of the budget left"

        with _charged(plan.squared_mu_of_pilot > 0):
            made = run(
                source, plan.sampler, plan.queries, plan.positions, plan.iterations, bar, say
            )
    if made.made < plan.iterations:
        warnings.warn(
            f"interrupted after {made.made} of {plan.iterations} iterations, of which "
            f"{made.begun} are charged",
            draws_.IncompleteWarning,
            stacklevel=2,
        )
    attrs = {
        "created_by": f"noiseaware {noiseaware.__version__}",
        "model": type(model).__name__,
        "method": "private_sample",
        "sampler": type(plan.sampler).__name__,
        "settings": _settings(plan.sampler),
        "exactness": plan.sampler.exactness,
        "temperature": temperature,
        "iterations": made.made,
        "discard": discard,
        "privacy": PRIVATE if seed is None else SIMULATED,
        "noise": str(Noise.SECURE if seed is None else Noise.SIMULATED),
        **({"num_records": num_records} if budget.neighbours is Neighbours.REPLACE else {}),
        **({} if seed is None else {"seed": seed}),
        **_cost(plan, purse, made.begun),
    }
    container = _container(plan, made, prior, discard, attrs, is_study=seed is not None)
    _warn_if_clipped(container)
    if container.posterior.sizes["draw"] >= MIN_SUMMARIZED:
        draws_.warn_if_not_converged(draws_.summarize(container), ADVICE)
    else:
        warnings.warn(f"too few draws. {ADVICE}", draws_.ConvergenceWarning, stacklevel=2)
    return container


@contextlib.contextmanager
def _charged(has_pilot: bool, has_chains: bool = True):
    """What a run that ends without draws has spent beside the iterations that it tells of."""
    of_pilot = "the pilot's whole share is charged"
    try:
        yield
    except KeyboardInterrupt as error:
        told = [*map(str, error.args), *([of_pilot] * has_pilot)]
        if not (has_pilot or has_chains):
            told = ["nothing is charged"]
        raise KeyboardInterrupt("; ".join(told)) from None
    except Exception as error:
        if has_pilot:
            error.add_note(of_pilot)
        raise


class _Plan(NamedTuple):
    """All that is settled before the chains start, and what a pilot spent on it."""

    sampler: PrivateSampler
    queries: Queries
    positions: Float[Array, "chains d"]
    iterations: int
    most: int  # iterations that the budget allows
    squared_mu_of_pilot: float
    variation_of_pilot: float
    key: PRNGKeyArray


def _planned(
    access: Access, sampler, purse: Purse, start, chains: int, iterations, temperature, bar
) -> _Plan:
    model = access.model
    seed = secrets.randbits(31) if access.seed is None else access.seed
    key_start, key_check, key_prior, key_pilot = jr.split(jr.key(seed), 4)
    learned, variation = Learned({}, 0.0), 0.0

    def settle(budget, params):
        return tune(
            sampler, model, access.num_records, budget, seed=seed, params=params, chains=chains,
            temperature=temperature,
        )  # fmt: skip

    tried = sampler
    if isinstance(sampler, type):
        left = purse.left(purse.for_pilot)
        tried = settle(left, None)
        _check_worth(tried, model, left, chains, temperature)
    if isinstance(start, Pilot):
        somewhere = _prior_draws(key_start, model, 1)
        _check_start(key_check, model, somewhere)
        start.check(access)
        like = jax.tree.map(lambda values: values[0], somewhere)
        variation = start.variation(access, purse.for_pilot)
        longest = iterations or _iterations(tried, purse.left(0.0), chains, None)
        queries = access.queries(tried, like, temperature)
        _check_rounding(tried, queries, purse, chains, longest, variation)
    with _charged(isinstance(start, Pilot), has_chains=False):
        if isinstance(start, Pilot):
            learned = start.learn(access, purse.for_pilot, bar)
            start = _some_of(key_pilot, learned.params, chains)
        left = purse.left(learned.squared_mu)
        if isinstance(sampler, type):
            sampler = settle(left, learned.params or None)
            allowed = _iterations(sampler, left, chains, None)
            iterations = allowed if iterations is None else min(allowed, iterations)
        iterations = _iterations(sampler, left, chains, iterations)
        is_priced = sampler.is_noisy and sampler.batches is None
        most = max_iterations(sampler, left, chains=chains) if is_priced else iterations
        starts = _starts(key_start, model, start, chains)
        _check_start(key_check, model, starts)
        first = jax.tree.map(lambda values: values[0], starts)
        queries = access.queries(sampler, first, temperature)
        positions = jax.vmap(queries.target.position)(starts)
        _check_rounding(sampler, queries, purse, chains, iterations, variation)
    spent = learned.squared_mu
    return _Plan(sampler, queries, positions, iterations, most, spent, variation, key_prior)


def _check_sampler(sampler, budget: Cost, chains: int, iterations: int | None, seed) -> None:
    if isinstance(sampler, PrivateSampler):
        if not sampler.is_noisy and (seed is None or iterations is None):
            raise ValueError(
                "noise_multiplier must be positive, got 0. Without noise a run is not private: "
                "give seed and iterations for a study."
            )
        _iterations(sampler, budget, chains, iterations)
    elif not (isinstance(sampler, type) and issubclass(sampler, PrivateSampler)):
        raise ValueError(f"sampler must be a PrivateSampler such as Penalty, got {sampler!r}.")
    elif budget.neighbours is not Neighbours.REPLACE:
        raise ValueError(
            "sampler must have its settings under add_remove, got a class: the number of records, "
            "which would tune it, is secret."
        )


def _check_worth(sampler, model: Model, budget: Cost, chains: int, temperature: float) -> None:
    """By the prior's records, before anything is spent."""
    dims = len(sampler.scale)
    unit = sensitivity(budget.neighbours) * temperature
    iterations = max_iterations(sampler, budget, chains=chains)
    expected = chains * expected_effective(sampler, dims, unit, iterations)
    if expected < MIN_EFFECTIVE:
        raise SmallBudgetError(
            f"budget must buy {MIN_EFFECTIVE} effective draws, got {budget} for the chains, which "
            f"buys about {expected:.3g} of {type(model).__name__} with {type(sampler).__name__}, "
            "by records of the prior. Nothing is spent. Publish a statistic and fit it in place of "
            "a chain, or take a larger budget, another sampler or a lower temperature; with "
            "settings of your own any run is made."
        )


def _variation(sampler, queries: Queries, chains, iterations, of_pilot: float) -> float:
    """How far all noise is at most from that of the stated cost, in total variation. See
    ``queries.py``.
    """
    unit = queries.sensitivity * 2.0**queries.bits
    return of_pilot + chains * sampler.variation(iterations, len(queries.target.units), unit)


def _as_delta(variation: float, epsilon: float) -> float:
    return variation * (1 + math.exp(min(epsilon, MAX_EXPONENT)))


def _check_rounding(sampler, queries: Queries, purse: Purse, chains, iterations, of_pilot) -> None:
    budget = purse.budget
    if not sampler.is_noisy or not isinstance(budget, ApproxDP):
        return
    variation = _variation(sampler, queries, chains, iterations, of_pilot)
    added = _as_delta(variation, budget.epsilon)
    if added > (kept := purse.for_rounding(sampler)):
        raise ValueError(
            f"epsilon must be smaller, or delta larger, than {budget.epsilon:g} and "
            f"{budget.delta:g}: at so large an epsilon the rounding of noise takes {added:.2g} of "
            f"delta, and {kept:.2g} of it is kept for that."
        )


def _cost(plan: _Plan, purse: Purse, begun: int) -> dict[str, Any]:
    sampler, budget = plan.sampler, purse.budget
    attrs: dict[str, Any] = {"neighbours": str(budget.neighbours)}
    if not sampler.is_noisy:
        return attrs
    chains = len(plan.positions)
    attrs |= purse.spent(sampler, chains, begun, plan.squared_mu_of_pilot)
    variation = _variation(sampler, plan.queries, chains, begun, plan.variation_of_pilot)
    attrs["variation_of_rounding"] = variation
    if "cost_epsilon" in attrs:
        attrs["delta_of_rounding"] = _as_delta(variation, attrs["cost_epsilon"])
    return attrs


def _settings(sampler: PrivateSampler) -> str:
    """As JSON: what was given, or tuned on simulated records and a pilot's draws."""

    def plain(value: Any):
        return np.asarray(value).tolist() if eqx.is_array_like(value) else str(value)

    given = {name: value for name, value in vars(sampler).items() if value is not None}
    return json.dumps({name: plain(value) for name, value in given.items()})


def _iterations(sampler, budget, chains, iterations) -> int:
    if not sampler.is_noisy:
        squared_mu_of(budget)  # refuses what normal noise cannot keep
        return validate.positive_integer("iterations", iterations)
    if iterations is not None and sampler.batches is not None:  # to price them all takes longer
        allowed = checked_for_batches(budget)
        if is_within_budget(sampler, allowed, chains * iterations):
            return iterations
    most = max_iterations(sampler, budget, chains=chains)
    if most == 0:
        raise SmallBudgetError(
            f"budget must allow one iteration of each chain, got {budget}; "
            f"{_needed(sampler, budget, chains)}. Take a larger noise_multiplier, fewer chains or "
            "a larger budget."
        )
    if iterations is None:
        return most
    if validate.positive_integer("iterations", iterations) > most:
        raise ValueError(f"iterations must be at most {most} within the budget, got {iterations}.")
    return iterations


def _needed(sampler, budget, chains: int) -> str:
    if sampler.batches is not None:
        needed = sampler.epsilon(chains, less_rounding(budget.delta, sampler))
        return f"needed is epsilon {needed:.3g} at this delta"
    needed = math.sqrt(chains * sampler.squared_mu(1))
    return f"it is GDP with mu {math.sqrt(squared_mu_of(budget)):.3g}, needed is {needed:.3g}"


def _check_batches(sampler, columns, num_records: int) -> None:
    if not isinstance(sampler, PrivateSampler) or sampler.batches is None:
        return
    if callable(columns):
        raise ValueError("records must be in memory for batches, got shards.")
    if sampler.batches.num_records != num_records:
        raise ValueError(
            f"num_records of batches must be that of the records, {num_records}, got "
            f"{sampler.batches.num_records}."
        )


def _checked_records(records, model: Model) -> tuple[Any, int]:
    """Columns as numbers, or a function that returns them part by part; and how many there are."""
    columns: Any
    if callable(records):
        columns = functools.partial(_coded_shards, records, model)
        num_records = sum(map(_length, columns()))
        if num_records == 0 or num_records != sum(map(_length, columns())):
            raise ValueError(
                "records must return an iterator over the same shards each time, got others or "
                "none the second time."
            )
    else:
        columns = as_records(records, model.columns)
        num_records = _length(columns)
    return columns, num_records


def _coded_shards(shards: Shards, model: Model):
    return (as_records(shard, model.columns) for shard in shards())


def _length(columns: Mapping[str, Any]) -> int:
    return len(next(iter(columns.values())))


def _warn_of_delta(budget: Cost, num_records: int) -> None:
    # Where their number is secret, no warning may depend on it.
    is_public = budget.neighbours is Neighbours.REPLACE
    if is_public and isinstance(budget, ApproxDP) and budget.delta >= 1 / num_records:
        warnings.warn(
            f"delta is {budget.delta:g}, at least 1 / n for the {num_records} records: a release "
            "of one whole record would be allowed. Take a delta well below 1 / n.",
            UserWarning,
            stacklevel=3,
        )


def _some_of(key, params: Params, count: int) -> Params:
    chosen = jr.choice(key, len(jax.tree.leaves(params)[0]), (count,))
    return jax.tree.map(lambda values: jnp.asarray(values)[chosen], params)


def _prior_draws(key, model: Model, count: int) -> Params:
    try:
        return jax.vmap(model.sample_prior)(jr.split(key, count))
    except NotImplementedError as error:
        raise ValueError(
            f"start must be given: {type(model).__name__} has no prior to draw one from."
        ) from error


def _starts(key, model: Model, start, chains: int) -> Params:
    if start is None:
        return _prior_draws(key, model, chains)
    given = {name: jnp.asarray(validate.finite(f"start of {name}", start[name])) for name in start}
    starts = {}
    for name, value in given.items():
        shape = tuple(map(len, model.labels.get(name, {}).values()))
        if value.shape not in (shape, (chains, *shape)):
            raise ValueError(
                f"start of {name} must have the shape {shape} or {(chains, *shape)}, got "
                f"{value.shape}."
            )
        starts[name] = jnp.broadcast_to(value, (chains, *shape))
    return starts


def _check_given(model: Model, start) -> None:
    """What can be said of a start before anything is simulated."""
    if start is None or isinstance(start, Pilot):
        return
    if isinstance(start, type) and issubclass(start, Pilot):
        raise ValueError(f"start must be a pilot with its share, got the class {start.__name__}.")
    if not isinstance(start, Mapping):
        raise ValueError(f"start must be a dict of params, a pilot or None, got {start!r}.")
    if set(start) != set(model.supports):
        raise ValueError(f"start must be of {sorted(model.supports)}, got {sorted(start)}.")


def _check_start(key, model: Model, starts: Params) -> None:
    """Whatever fails must fail on simulated records, before anything is asked of real ones."""
    first = jax.tree.map(lambda values: values[0], starts)
    check_shape("log_prior", jax.eval_shape(model.log_prior, first))
    check_shape("log_record", jax.eval_shape(model.log_record, first, _record_like(model)))
    log_priors = np.asarray(jax.vmap(functools.partial(log_prior_of, model))(starts))
    if not np.all(np.isfinite(log_priors)):
        raise ValueError(
            f"log_prior must be finite at the start, got {log_priors}: is it within its support?"
        )
    if not model.has_records or model.known:
        return
    try:
        simulated = model.sample_records(key, first, NUM_SIMULATED_RECORDS)
    except NotImplementedError:
        return
    log_records = np.asarray(jax.vmap(model.log_record, in_axes=(None, 0))(first, simulated))
    if not np.all(np.isfinite(log_records)):
        count = int(np.sum(~np.isfinite(log_records)))
        raise ValueError(
            f"log_record must be finite at the start, got {count} of {NUM_SIMULATED_RECORDS} "
            "simulated records where it is not."
        )


def _record_like(model: Model):
    return {
        name: jax.ShapeDtypeStruct((), int if isinstance(kind, Category) else float)
        for name, kind in model.columns.items()
    }


def _prior(key, model: Model) -> Params | None:
    try:
        return jax.vmap(model.sample_prior)(jr.split(key, NUM_PRIOR_DRAWS))
    except NotImplementedError:
        return None


def _warn_if_clipped(container) -> None:
    """Only of a simulated run is it known."""
    shares = container.sample_stats.get("ratios_clipped")
    if shares is not None and (share := float(shares.mean())) > MAX_CLIPPED:
        warnings.warn(
            f"{share:.0%} of log ratios were clipped: what is drawn is not the posterior. A "
            "private run would not say so. Take smaller steps, a larger clip or, with batches, a "
            "lower temperature.",
            ClippingWarning,
            stacklevel=3,
        )


def _container(plan: _Plan, made: Run, prior, discard: float, attrs, *, is_study: bool):
    first = int(discard * made.made)
    target = plan.queries.target
    with jax.enable_x64(True):
        kept = jnp.asarray(made.positions[:, first:])
        posterior = jax.jit(jax.vmap(jax.vmap(target.params)))(kept)
    stats = {"accepted": made.info.is_accepted}
    if is_study:
        stats |= {
            "ratios_clipped": made.info.ratios_clipped,
            "gradients_clipped": made.info.gradients_clipped,
        }
    return draws_.as_inference_data(
        posterior=jax.tree.map(np.asarray, posterior),
        prior=None if prior is None else jax.tree.map(np.asarray, prior),
        param_labels=target.model.labels,
        attrs=attrs,
        sample_stats={
            name: value[:, first:] for name, value in stats.items() if not np.all(np.isnan(value))
        },
    )
