"""What the methods of this library are compared with [BS18, Section 4]: each labelled as what it
is, none of them a posterior given the release.

- ``fit_records``: the posterior given the records themselves. Not private.
- ``fit_naive``: the conjugate update on noisy sums as if they were the sums. It ignores the noise,
  and redaction or clamping too. Given noisy sums that were not bounded at all it is the paper's
  "cheating" variant: it sees more than was published.
- ``fit_one_posterior_samples``: draws that are themselves the release, each from the posterior's
  density, prior and likelihood, raised to a power [WFS15]. Private, but too wide.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats

import noiseaware
from noiseaware import draws as draws_
from noiseaware import validate
from noiseaware.models import BetaBernoulli, ExponentialFamily, Model
from noiseaware.release import Release
from noiseaware.schema import as_records

NUM_PRIOR_DRAWS = 4000
NUM_FIRST_STEPS = 500  # left out: a step may be one of a Gibbs sampler
NUM_CELLS = 4096
NUM_HALVINGS = 50


def fit_records(records: Mapping[str, Any], model: Model, *, seed: int, chains=4, draws=1000):
    """Draws of ``p(params | records)``: what could be known without privacy. The draws are as
    confidential as the records.
    """
    columns = as_records(records, model.columns)
    if not model.has_posterior_step:
        raise ValueError(f"{type(model).__name__} has no step for params given records.")
    with jax.enable_x64(True):
        step = eqx.Partial(_given_records, model=model, records=columns)
        return _fitted(
            model, step, seed, chains, draws, "fit_records", "not private: reads records"
        )


def fit_naive(
    release: Release | Mapping[str, float] | Any,
    model: ExponentialFamily,
    *,
    seed: int,
    num_records: int | None = None,
    chains=4,
    draws=1000,
):
    """The conjugate update on released sums as if they were the model's own, moved to the first
    that are possible on the way to those expected under the prior.

    ``release`` may be a Release or, for what was never published, sums in the order of the model's
    features, with ``num_records``.
    """
    if not isinstance(model, ExponentialFamily):
        raise ValueError(f"model must be an ExponentialFamily, got {model!r}.")
    sums = release
    if isinstance(release, Release):
        num_records = release.num_records if num_records is None else num_records
        sums = _sums_in(release, model)
    if num_records is None:
        raise ValueError("num_records must be given.")
    count = float(validate.positive_integer("num_records", num_records))
    sums = validate.finite("sums", sums)
    if sums.shape != (len(model.features),):
        raise ValueError(f"sums must be those of {model.features}, got shape {sums.shape}.")
    with jax.enable_x64(True):
        possible = nearest_possible(model, jnp.asarray(sums), count)
        step = eqx.Partial(_given_sums, model=model, sums=possible, num_records=count)
        return _fitted(model, step, seed, chains, draws, "fit_naive", "wrong: ignores the noise")


def fit_one_posterior_samples(
    records: Mapping[str, Any],
    model: BetaBernoulli,
    *,
    seed: int,
    epsilon: float,
    draws: int,
    lower: float,
    upper: float,
):
    """Draws of ``epsilon / draws`` each under ``replace``: from the density of Beta(a + s, b + n -
    s) to the power ``w = epsilon / (2 D draws)`` within [lower, upper], on a grid of ``NUM_CELLS``
    cells.

    Between neighbours the log likelihood changes by at most ``D = log max(upper / (1 - upper), (1 -
    lower) / lower)``, the largest log-odds within the bounds; so a draw's density changes by a
    factor of at most ``exp(2 w D)``. From a seeded generator: for studies, not for release.
    """
    if not isinstance(model, BetaBernoulli):
        raise ValueError(f"model must be a BetaBernoulli, got {model!r}.")
    column = as_records(records, model.columns)[model.column]
    epsilon = float(validate.scalar("epsilon", validate.positive("epsilon", epsilon)))
    draws = validate.positive_integer("draws", draws)
    if not 0 < lower < upper < 1:
        raise ValueError(f"lower and upper must lie in order between 0 and 1, got {lower, upper}.")
    change = np.log(max(upper / (1 - upper), (1 - lower) / lower))
    weight = epsilon / (2 * draws * change)
    with jax.enable_x64(True):
        step = eqx.Partial(
            _tempered,
            model=model,
            ones=np.sum(column),
            zeros=len(column) - np.sum(column),
            weight=weight,
            bounds=np.array([lower, upper]),
        )
        label = f"simulated draws of a tempered posterior, epsilon {epsilon:g}, not for release"
        return _fitted(model, step, seed, 1, draws, "fit_one_posterior_samples", label)


def nearest_possible(model: ExponentialFamily, sums, num_records):
    """The sums, or where they are not possible the first that are on the way to the prior's median
    of expected sums. What is possible is convex.
    """
    params = jax.vmap(model.sample_prior)(jr.split(jr.key(0), NUM_PRIOR_DRAWS))
    means = jax.vmap(lambda params: jax.grad(model.log_partition)(model.natural(params)))(params)
    centre = num_records * jnp.nanmedian(means, axis=0)

    def halve(_, ends):
        out, inside = ends
        middle = (out + inside) / 2
        is_possible = model.is_possible(sums + middle * (centre - sums), num_records)
        return jnp.where(is_possible, out, middle), jnp.where(is_possible, middle, inside)

    _, share = jax.lax.fori_loop(0, NUM_HALVINGS, halve, (jnp.zeros(()), jnp.ones(())))
    share = jnp.where(model.is_possible(sums, num_records), 0.0, share)
    return sums + share * (centre - sums)


def _sums_in(release: Release, model: ExponentialFamily) -> np.ndarray:
    """Those of the model's features among the released, by what they are called."""
    wanted = [name.replace("x", model.column, 1) for name in model.features]
    if missing := [name for name in wanted if name not in release.labels]:
        raise ValueError(f"release must have the sums {missing}, got {list(release.labels)}.")
    return release.values[[release.labels.index(name) for name in wanted]]


def _given_records(key, params, *, model, records):
    return model.sample_posterior(key, params, records)


def _given_sums(key, params, *, model, sums, num_records):
    return model.sample_params(key, params, sums, num_records)


def _tempered(key, params, *, model, ones, zeros, weight, bounds):
    """A cell by its density, and a place in it: as quick for any records."""
    key_cell, key_place = jr.split(key)
    width = (bounds[1] - bounds[0]) / NUM_CELLS
    centres = bounds[0] + width * (np.arange(NUM_CELLS) + 0.5)
    log_density = weight * stats.beta.logpdf(centres, model.a + ones, model.b + zeros)
    cell = jr.categorical(key_cell, log_density)
    return {"probability": centres[cell] + width * (jr.uniform(key_place) - 0.5)}


@eqx.filter_jit
def _chains(key, model: Model, step, chains: int, draws: int):
    def chain(key):
        key_start, key_steps = jr.split(key)

        def advance(params, key):
            params = step(key, params)
            return params, params

        keys = jr.split(key_steps, NUM_FIRST_STEPS + draws)
        drawn = jax.lax.scan(advance, model.sample_prior(key_start), keys)[1]
        return jax.tree.map(lambda values: values[NUM_FIRST_STEPS:], drawn)

    key_chains, key_prior = jr.split(key)
    prior = jax.vmap(model.sample_prior)(jr.split(key_prior, NUM_PRIOR_DRAWS))
    return jax.vmap(chain)(jr.split(key_chains, chains)), prior


def _fitted(model, step, seed, chains, draws, name: str, label: str):
    chains = validate.positive_integer("chains", chains)
    draws = validate.positive_integer("draws", draws)
    drawn, prior = jax.tree.map(np.asarray, _chains(jr.key(seed), model, step, chains, draws))
    attrs = {
        "created_by": f"noiseaware {noiseaware.__version__}",
        "model": type(model).__name__,
        "method": name,
        "exactness": f"baseline, {label}",
        "seed": seed,
    }
    return draws_.as_inference_data(
        posterior=drawn, prior=prior, param_labels=model.labels, attrs=attrs
    )
