"""Thousands of short chains of one sampler, compiled once a case; what the chains believe of
the noise, and whether they are wrong on purpose, is data.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import noiseaware as na
from noiseaware.models.support import unconstrain
from noiseaware.samplers import interweaving, record_augmentation
from noiseaware.samplers.layout import Layout
from noiseaware.samplers.params_given_records import step_of
from noiseaware.samplers.proposals import from_model
from noiseaware.schema import Real
from noiseaware.warming import learn_shape
from tests.laws.members import CASES, known_for

SAMPLERS = ("record_augmentation", "random_walk", "crank_nicolson", "interweaving", "laid_out")
KERNELS = {
    "slice": na.Slice(), "metropolis": na.Metropolis(), "hmc": na.HMC(3), "nuts": na.NUTS(3),
}  # fmt: skip
# Blocks of two, in segments that overlap, and a third of the records standing for all.
LAYOUT = Layout(block_size=2, segment_size=3, stand_in_size=3)


def can_run(sampler, model):
    if sampler == "random_walk":
        return all(isinstance(kind, Real) for kind in model.columns.values())
    return sampler != "crank_nicolson" or model.has_normal_noise


CASES_OF = {
    sampler: [name for name, (model, _) in CASES.items() if can_run(sampler, model)]
    for sampler in SAMPLERS
}


class Snapshot(NamedTuple):
    free: jax.Array
    total: jax.Array
    released: jax.Array


def total_of(statistic, records):
    return jnp.sum(jax.vmap(statistic)(records), axis=0)


def joint_start(key, model, num_records):
    """Params from the prior, records from the model."""
    key_params, key_records = jr.split(key)
    params = model.sample_prior(key_params)
    return record_augmentation.init(
        key_records, params, model=model, num_records=num_records,
        known=known_for(model, num_records),
    )  # fmt: skip


def prior_shape(model):
    return jax.tree.map(lambda x: x[0], learn_shape(np.asarray(free_prior(model))[None]))


@eqx.filter_jit
def free_prior(model):
    params = jax.vmap(model.sample_prior)(jr.split(jr.key(77), 1_000))
    return jax.vmap(lambda params: unconstrain(model.supports, params)[0])(params)


def params_step(sampler, model, shape):
    """The model's own or, for the plain sweep called after a kernel, "nuts" or "nuts x10", that
    kernel with a step so much too large.
    """
    name, _, factor = sampler.partition(" x")
    return step_of(model, shape, kernel=KERNELS.get(name), step_size=float(factor or 1))


def make_step(sampler, model, statistic, told, released, shape):
    bound = {
        "model": model,
        "contribution": statistic,
        "log_density": functools.partial(told.log_density, released),
        "params_step": params_step(sampler, model, shape),
    }
    if sampler == "laid_out":
        return functools.partial(
            interweaving.step, shape=shape, layout=LAYOUT, num_stand_ins=1, num_moves=2, **bound
        )
    if sampler == "interweaving":
        return functools.partial(interweaving.step, shape=shape, num_moves=2, **bound)
    proposal = from_model
    if sampler == "random_walk":
        proposal = na.RandomWalk(dict.fromkeys(model.columns, 0.8))
        bound["layout"] = LAYOUT
    elif sampler == "crank_nicolson":
        proposal = na.CrankNicolson(0.6)
        bound["layout"] = LAYOUT
    return functools.partial(record_augmentation.step, proposal=proposal, **bound)


@eqx.filter_jit
def from_the_joint_law(
    key,
    sampler,
    model,
    statistic,
    mechanism,
    told,
    shape,
    fault,
    num_records,
    num_chains,
    num_steps,
):
    """Start in the joint law of (params, records, release), make some steps, look at both ends.

    ``told`` is the mechanism the kernel believes in. ``fault`` 1 returns the prior.
    """

    def snapshot(state, released):
        free, _ = unconstrain(model.supports, state.params)
        return Snapshot(free, total_of(statistic, state.records), released)

    def chain(key):
        key_start, key_noise, key_steps = jr.split(key, 3)
        start = joint_start(key_start, model, num_records)
        released = mechanism.simulate(key_noise, total_of(statistic, start.records))
        step = make_step(sampler, model, statistic, told, released, shape)

        def faulty(state, key):
            key_step, key_prior = jr.split(key)
            state, info = step(key_step, state)
            wrong = model.sample_prior(key_prior)
            params = jax.tree.map(lambda a, b: jnp.where(fault == 1, a, b), wrong, state.params)
            return state._replace(params=params), info.min_log_ratio

        state, ratios = jax.lax.scan(faulty, start, jr.split(key_steps, num_steps))
        return snapshot(start, released), snapshot(state, released), jnp.min(ratios)

    return jax.vmap(chain)(jr.split(key, num_chains))


@eqx.filter_jit
def from_afar(
    key, sampler, model, statistic, told, released, shape, fault, num_records, num_chains, num_steps
):
    """Params after many steps from records of an unrelated prior draw, one a chain.

    ``fault`` 1 returns the prior, 2 never moves a record.
    """
    step = make_step(sampler, model, statistic, told, released, shape)

    def chain(key):
        key_start, key_steps = jr.split(key)
        start = joint_start(key_start, model, num_records)

        def faulty(state, key):
            key_step, key_prior, key_params = jr.split(key, 3)
            moved, _ = step(key_step, state)
            step_params = params_step(sampler, model, shape)
            frozen = state._replace(params=step_params(key_params, state.params, state.records)[0])
            prior = state._replace(params=model.sample_prior(key_prior))
            chosen = [moved, prior, frozen]
            return jax.tree.map(lambda *options: jnp.stack(options)[fault], *chosen), None

        state, _ = jax.lax.scan(faulty, start, jr.split(key_steps, num_steps))
        return state.params, total_of(statistic, state.records)

    return jax.vmap(chain)(jr.split(key, num_chains))
