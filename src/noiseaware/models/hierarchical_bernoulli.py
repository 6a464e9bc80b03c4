"""Hierarchical Bernoulli: records in known groups, whose rates differ and are learned together.

``log_odds_g ~ N(center, spread^2)`` for each group g, ``x_i ~ Bernoulli(1 / (1 + exp(-log_odds)))``
with the log odds of the record's group.

Params given records, which matter through how many there are of a group and how many of them are 1:
each log odds by a slice of its own, then center and spread from their conjugate laws given all.
phi: ``x = 1`` where a logistic noise is below the log odds.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy import stats

from noiseaware import elliptical_slice, randomness, validate
from noiseaware.elliptical_slice import Point
from noiseaware.models.model import Model
from noiseaware.models.noise import is_below, logistic_noise, noise_given_side
from noiseaware.models.priors import NormalPrior, StddevPrior
from noiseaware.models.support import Positive, RealLine
from noiseaware.schema import Binary, Category, as_levels


class HierarchicalBernoulli(Model):
    """A yes/no column, 0 or 1, and the known column of groups. ``center`` and ``spread`` are the
    priors of the groups' log odds: around which value, and how far apart.
    """

    column: str = eqx.field(static=True)
    group: str = eqx.field(static=True)
    groups: tuple[str | int, ...] = eqx.field(static=True)
    center: NormalPrior
    spread: StddevPrior

    def __init__(
        self,
        column: str,
        group: str,
        groups: int | Sequence[str | int],
        *,
        center: NormalPrior,
        spread: StddevPrior,
    ):
        self.column = validate.column_name("column", column)
        self.group = validate.column_name("group", group)
        validate.distinct("columns", (column, group))
        self.groups = as_levels(group, groups)
        if not isinstance(center, NormalPrior) or center.location.ndim or center.scale.ndim:
            raise ValueError(f"center must be a NormalPrior of one number, got {center!r}.")
        if not isinstance(spread, StddevPrior):
            raise ValueError(f"spread must be a StddevPrior, got {spread!r}.")
        self.center, self.spread = center, spread

    @property
    def columns(self):
        return {self.column: Binary(), self.group: Category(self.groups)}

    @property
    def known(self):
        return (self.group,)

    @property
    def supports(self):
        return {"center": RealLine(), "spread": Positive(), "log_odds": RealLine()}

    @property
    def labels(self):
        return {"log_odds": {self.group: tuple(map(str, self.groups))}}

    def sample_prior(self, key):
        key_center, key_spread, key_groups = jr.split(key, 3)
        center, spread = self.center.sample(key_center), self.spread.sample(key_spread)
        log_odds = center + spread * jr.normal(key_groups, (len(self.groups),))
        return {"center": center, "spread": spread, "log_odds": log_odds}

    def log_prior(self, params):
        log_odds = stats.norm.logpdf(params["log_odds"], params["center"], params["spread"])
        of_groups = self.center.log_density(params["center"])
        return of_groups + self.spread.log_density(params["spread"]) + jnp.sum(log_odds)

    def sample_posterior(self, key, params, records):
        key_groups, key_center, key_spread = jr.split(key, 3)
        is_in = records[self.group][:, None] == jnp.arange(len(self.groups))
        sizes = jnp.sum(is_in, axis=0, dtype=float)
        ones = jnp.sum(jnp.where(is_in, records[self.column][:, None], 0.0), axis=0)
        center, spread = params["center"], params["spread"]

        def move(key, log_odds, size, ones):
            def log_density(whitened):
                at = center + spread * whitened[0]
                log_zeros = (size - ones) * jax.nn.log_sigmoid(-at)
                log_prior = -(whitened[0] ** 2) / 2
                return log_prior + ones * jax.nn.log_sigmoid(at) + log_zeros, ()

            whitened = ((log_odds - center) / spread)[None]
            start = Point(whitened, *log_density(whitened))
            end = elliptical_slice.move(key, start, log_density)
            return center + spread * end.whitened[0]

        keys = jr.split(key_groups, len(self.groups))
        log_odds = jax.vmap(move)(keys, params["log_odds"], sizes, ones)
        precision = 1 / self.center.scale**2 + len(self.groups) / spread**2
        weighted = self.center.location / self.center.scale**2 + jnp.sum(log_odds) / spread**2
        center = weighted / precision + randomness.normal(key_center) / jnp.sqrt(precision)
        spread = self.spread.sample_posterior(
            key_spread, jnp.sum((log_odds - center) ** 2), len(self.groups)
        )
        return {"center": center, "spread": spread, "log_odds": log_odds}

    def log_record(self, params, record):
        sign = 2 * record[self.column] - 1
        return jax.nn.log_sigmoid(sign * params["log_odds"][record[self.group]])

    def sample_noise(self, key, num_records):
        return {self.column: logistic_noise(key, (num_records,))}

    def record(self, params, noise):
        score = params["log_odds"][noise[self.group]]
        return {self.column: is_below(score, noise[self.column])} | self.known_of(noise)

    def noise(self, params, record, fresh):
        score = params["log_odds"][record[self.group]]
        noise = noise_given_side(score, record[self.column], fresh[self.column])
        return {self.column: noise} | self.known_of(record)
