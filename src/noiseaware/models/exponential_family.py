"""Exponential families with a conjugate prior [BS18, Section 3]:

    f(x | params) = h(x) exp(eta(params) . t(x) - A(eta)),

for one column. A family states eta, t, A and h, where x lives, and how params are drawn given
``sum_i t(x_i)``, the conjugate update; ``docs/exponential-families.md`` has one in full.

All that a release of sums can depend on is the joint law of ``t(x)`` and of what the release sums,
for one record. ``law`` gives it as points and probabilities: gradient and Hessian of A, over
all x or only those within some bounds, are the mean and covariance of t over these points.
"""

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from noiseaware.models.domain import Bounds, Domain
from noiseaware.models.model import Model, Params
from noiseaware.schema import FEATURES


class ExponentialFamily(Model):
    column: eqx.AbstractVar[str]

    @property
    def features(self) -> tuple[str, ...]:
        """The entries of t, by their keys in ``schema.FEATURES``."""
        return ("x",)

    @property
    @abc.abstractmethod
    def domain(self) -> Domain:
        """Where the column lives."""

    @abc.abstractmethod
    def natural(self, params: Params) -> Float[Array, " k"]:
        """``eta``."""

    @abc.abstractmethod
    def log_partition(self, natural: Float[Array, " k"]) -> Float[Array, ""]:
        """``A(eta)``."""

    @abc.abstractmethod
    def log_base(self, x: Float[Array, ""]) -> Float[Array, ""]:
        """``log h(x)``, for x in the domain."""

    @abc.abstractmethod
    def sample_params(
        self, key: PRNGKeyArray, params: Params, sums: Float[Array, " k"], num_records
    ) -> Params:
        """Params given ``sum_i t(x_i)`` of so many records: a draw, or one step of a kernel that
        leaves their law invariant.
        """

    @abc.abstractmethod
    def is_possible(self, sums: Float[Array, " k"], num_records) -> Bool[Array, ""]:
        """Whether so many records can have these sums, up to rounding to whole numbers."""

    def sufficient(self, x: Float[Array, ""]) -> Float[Array, " k"]:
        """``t(x)``."""
        return jnp.stack([FEATURES[name].function(x) for name in self.features])

    def law(self, params: Params, bounds: Bounds | None = None):
        """x and its log probability at points, a row for each part of the domain: below the
        bounds, within and above, or one row without bounds.
        """
        log_density = functools.partial(self.log_density, params)
        x, log_weight = self.domain.points(log_density, bounds)
        return x, log_weight + jax.vmap(jax.vmap(log_density))(x)

    def sample_posterior(self, key, params, records):
        column = records[self.column]
        sums = jnp.sum(jax.vmap(self.sufficient)(column), axis=0)
        return self.sample_params(key, params, sums, column.shape[0])

    def log_density(self, params: Params, x: Float[Array, ""]) -> Float[Array, ""]:
        """``log f(x | params)`` for x in the domain, or between its points."""
        natural = self.natural(params)
        return self.log_base(x) + natural @ self.sufficient(x) - self.log_partition(natural)

    def log_record(self, params, record):
        x = record[self.column]
        return jnp.where(self.domain.has(x), self.log_density(params, x), -jnp.inf)
