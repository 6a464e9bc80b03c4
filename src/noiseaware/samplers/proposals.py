"""Proposals for one sweep over the records [JAGR22, Alg. 2].

A proposal draws ``x*_i ~ q(. | x_i, theta)`` for all records at once and returns with them
``log f(x*_i) q(x_i | x*_i) - log f(x_i) q(x*_i | x_i)``, one number a record. It must be able to
reach every record that the model can produce [JAGR22, A4].
"""

from collections.abc import Mapping
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware import randomness, validate
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.schema import Real, Records


class Proposal(Protocol):
    def __call__(
        self, key: PRNGKeyArray, model: Model, params: Params, records: Records
    ) -> tuple[Records, Float[Array, "*n"]]: ...


def from_model(key, model, params, records):
    """``q = f(. | theta)``: Algorithm 1, where f and q cancel."""
    num_records = len(next(iter(records.values())))
    known = model.known_of(records)
    return model.sample_records(key, params, num_records, known), jnp.zeros(())


class RandomWalk(eqx.Module):
    """``x* = x + stddev e``, e standard normal, in every column but the known ones, all of which
    must be real; ``stddevs`` maps column to step: ``RandomWalk({"x": 0.5})``.

    Symmetric, so the correction is ``log f(x*) - log f(x)``. Small steps change the total
    little: they are accepted at large epsilon, where fresh records are not.
    """

    stddevs: dict[str, np.ndarray]

    def __init__(self, stddevs: Mapping[str, float]):
        self.stddevs = {}
        if not isinstance(stddevs, Mapping):
            raise ValueError(f"stddevs must map column to step, got {stddevs!r}.")
        for name, value in stddevs.items():
            stddev = validate.positive(f"stddev of {name}", value)
            self.stddevs[name] = validate.scalar(f"stddev of {name}", stddev)

    def __call__(self, key, model, params, records):
        self._check(model)
        keys = jr.split(key, len(self.stddevs))
        moved = {
            name: records[name]
            + self.stddevs[name] * randomness.normal(key_column, records[name].shape)
            for name, key_column in zip(sorted(self.stddevs), keys, strict=True)
        }
        proposed = records | moved
        log_record = jax.vmap(model.log_record, in_axes=(None, 0))
        return proposed, log_record(params, proposed) - log_record(params, records)

    def _check(self, model: Model) -> None:
        unknown = {name: kind for name, kind in model.columns.items() if name not in model.known}
        for name, kind in unknown.items():
            if not isinstance(kind, Real):
                raise ValueError(f"RandomWalk needs real columns, got {name!r} of {kind}.")
        if set(self.stddevs) != set(unknown):
            raise ValueError(f"stddevs must name {sorted(unknown)}, got {sorted(self.stddevs)}.")


class CrankNicolson(eqx.Module):
    """``u* = sqrt(1 - step^2) u + step e`` for the noises u of a record, e standard normal.

    For models whose noise is standard normal, under which the move is reversible: the correction
    is 0. A step of 1 is a fresh record; shorter ones change the total less. They pay where the
    bounds bind and epsilon is large: from about 30 on in ``make bench ONLY=proposals``.
    """

    step: np.ndarray

    def __init__(self, step: float):
        self.step = validate.scalar("step", validate.positive("step", step))
        if self.step > 1:
            raise ValueError(f"step must be at most 1, got {step!r}.")

    def __call__(self, key, model, params, records):
        if not model.has_normal_noise:
            raise ValueError(
                f"CrankNicolson needs a model with normal noise, got {type(model).__name__}."
            )
        key_noise, key_fresh = jr.split(key)
        noise = model.noises(key_noise, params, records)
        fresh = model.sample_noise(key_fresh, len(next(iter(records.values()))))
        kept = jnp.sqrt(1 - self.step**2)
        moved = {name: kept * noise[name] + self.step * fresh[name] for name in fresh}
        return model.records(params, noise | moved), jnp.zeros(())
