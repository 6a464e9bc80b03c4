"""Poisson column: ``rate ~ Gamma(shape, rate)``, ``x_i ~ Poisson(rate)``.

phi: ``x = F^-1(u | rate)``, u uniform; given x, u is uniform on (F(x-1), F(x)]. The noise is stored
as ``logit(u)``, which keeps both tails: near 1 a float of u itself has no digits left.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import gammainc, gammaincc, ndtri
from jax.scipy.stats import poisson
from jaxtyping import Array, Float, Int

from noiseaware import validate
from noiseaware.models.domain import Wholes
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import GammaPrior
from noiseaware.models.special import log_factorial
from noiseaware.models.support import Positive
from noiseaware.schema import Whole


class Poisson(ExponentialFamily):
    """A column of counts with mean ``rate``."""

    column: str = eqx.field(static=True)
    rate: GammaPrior

    def __init__(self, column: str, rate: GammaPrior):
        self.column = validate.column_name("column", column)
        if not isinstance(rate, GammaPrior):
            raise ValueError(f"rate must be a GammaPrior, got {rate!r}.")
        self.rate = rate

    @property
    def columns(self):
        return {self.column: Whole()}

    @property
    def supports(self):
        return {"rate": Positive()}

    def sample_prior(self, key):
        return {"rate": self.rate.sample(key)}

    def log_prior(self, params):
        return self.rate.log_density(params["rate"])

    @property
    def domain(self):
        return Wholes()

    def natural(self, params):
        return jnp.stack([jnp.log(params["rate"])])

    def log_partition(self, natural):
        return jnp.exp(natural[0])

    def log_base(self, x):
        return -log_factorial(x)

    def sample_params(self, key, params, sums, num_records):
        return {"rate": self.rate.sample_posterior(key, sums[0], num_records)}

    def is_possible(self, sums, num_records):
        return sums[0] >= 0

    def sample_noise(self, key, num_records):
        return {self.column: jr.logistic(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: quantile(noise[self.column], params["rate"])}

    def noise(self, params, record, fresh):
        x, rate = record[self.column], params["rate"]
        return {self.column: noise_of_count(x, rate, fresh[self.column])}


def noise_of_count(x: Float[Array, "..."], rate, fresh) -> Float[Array, "..."]:
    """The logit of a uniform between ``F(x - 1)`` and ``F(x)``."""
    mass = jnp.exp(poisson.logpmf(x, rate))
    below = mass * jax.nn.sigmoid(fresh)
    smallest = jnp.finfo(mass.dtype).tiny
    lower_tail = jnp.maximum(gammaincc(x + 1, rate) - below, smallest)
    upper_tail = jnp.maximum(gammainc(x + 1, rate) + below, smallest)
    return jnp.log(lower_tail) - jnp.log(upper_tail)


def quantile(logit: Float[Array, ""], rate: Float[Array, ""]) -> Float[Array, ""]:
    """The smallest k with ``F(k) >= u``: from a normal guess, one unit at a time.

    Both tails of the guess are computed once and then carried by adding or taking single
    masses. ``F(k) >= u`` is read off the smaller tail, which has all its digits.
    """
    below, above = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)
    score = jnp.where(logit < 0, ndtri(below), -ndtri(above))
    guess = jnp.floor(jnp.maximum(rate + jnp.sqrt(rate) * score + (score**2 - 1) / 6, 0.0))
    mass = jnp.exp(poisson.logpmf(guess, rate))
    start = _Search(guess, mass, gammaincc(guess + 1, rate), gammainc(guess + 1, rate), 0)

    def reaches(lower_tail, upper_tail):
        return jnp.where(logit < 0, lower_tail >= below, upper_tail <= above)

    def is_short(at: _Search):
        return ~reaches(at.lower_tail, at.upper_tail) & (at.steps < MAX_STEPS)

    def is_long(at: _Search):
        reaches_before = reaches(at.lower_tail - at.mass, at.upper_tail + at.mass)
        return (at.k > 0) & reaches_before & (at.steps < MAX_STEPS)

    def step_up(at: _Search):
        mass = at.mass * rate / (at.k + 1)
        return _Search(at.k + 1, mass, at.lower_tail + mass, at.upper_tail - mass, at.steps + 1)

    def step_down(at: _Search):
        lower_tail, upper_tail = at.lower_tail - at.mass, at.upper_tail + at.mass
        return _Search(at.k - 1, at.mass * at.k / rate, lower_tail, upper_tail, at.steps + 1)

    found = jax.lax.while_loop(is_short, step_up, start)
    return jax.lax.while_loop(is_long, step_down, found).k


# The guess is off by a few units wherever the posterior has mass; the bound stops a search at
# rates so large that k + 1 == k.
MAX_STEPS = 1000


class _Search(NamedTuple):
    k: Float[Array, ""]
    mass: Float[Array, ""]
    lower_tail: Float[Array, ""]
    upper_tail: Float[Array, ""]
    steps: Int[Array, ""] | int
