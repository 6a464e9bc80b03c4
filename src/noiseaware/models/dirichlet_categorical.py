"""Dirichlet-categorical: ``probabilities ~ Dirichlet(concentration)``, ``x_i ~ Categorical``.

phi: x is the cell of the cumulated probabilities into which u, uniform, falls; given x, u is
uniform on that cell.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from noiseaware import randomness, validate
from noiseaware.models.domain import Levels
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import dirichlet_log_density
from noiseaware.models.support import Simplex
from noiseaware.schema import Category, as_levels


class DirichletCategorical(ExponentialFamily):
    """A column of levels. ``concentration`` counts as earlier records of each level."""

    column: str = eqx.field(static=True)
    levels: tuple[str | int, ...] = eqx.field(static=True)
    concentration: np.ndarray

    def __init__(self, column: str, levels: int | Sequence[str | int], concentration=1.0):
        self.column = validate.column_name("column", column)
        self.levels = as_levels(self.column, levels)
        if len(self.levels) < 2:
            raise ValueError(f"levels must be two or more, got {levels!r}.")
        self.concentration = concentrations(concentration, (len(self.levels),))

    @property
    def columns(self):
        return {self.column: Category(self.levels)}

    @property
    def supports(self):
        return {"probabilities": Simplex()}

    @property
    def labels(self):
        return {"probabilities": {self.column: tuple(map(str, self.levels))}}

    def sample_prior(self, key):
        return {"probabilities": jr.dirichlet(key, self.concentration)}

    def log_prior(self, params):
        return dirichlet_log_density(params["probabilities"], self.concentration)

    @property
    def features(self):
        return tuple(f"x={level}" for level in self.levels)

    @property
    def domain(self):
        return Levels(len(self.levels))

    def sufficient(self, x):
        return jnp.asarray(x == np.arange(len(self.levels)), float)

    def natural(self, params):
        return jnp.log(params["probabilities"])

    def log_partition(self, natural):
        return jax.nn.logsumexp(natural)

    def log_base(self, x):
        return jnp.zeros_like(x)

    def log_density(self, params, x):
        return jnp.log(params["probabilities"][jnp.asarray(x, int)])

    def sample_params(self, key, params, sums, num_records):
        return {"probabilities": jr.dirichlet(key, self.concentration + sums)}

    def is_possible(self, sums, num_records):
        return jnp.all(sums >= 0)

    def sample_noise(self, key, num_records):
        return {self.column: randomness.uniform(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: cell(edges(params["probabilities"]), noise[self.column])}

    def noise(self, params, record, fresh):
        bounds = edges(params["probabilities"])
        return {self.column: within_cell(bounds, record[self.column], fresh[self.column])}


def concentrations(value, shape: tuple[int, ...]) -> np.ndarray:
    array = validate.positive("concentration", value)
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise ValueError(
            f"concentration must be one number or of shape {shape}, got shape {array.shape}."
        ) from None


def edges(probabilities: Float[Array, "*rows k"]) -> Float[Array, "*rows k+1"]:
    """Cumulated probabilities from 0 to exactly 1; added one by one, since k is small."""
    sums = [jnp.zeros(probabilities.shape[:-1])]
    for level in range(probabilities.shape[-1] - 1):
        sums.append(sums[-1] + probabilities[..., level])
    return jnp.stack([*sums, jnp.ones(probabilities.shape[:-1])], axis=-1)


def cell(edges: Float[Array, " k+1"], uniform: Float[Array, ""]) -> Int[Array, ""]:
    """The cell that holds ``uniform``."""
    return jnp.sum(uniform >= edges[1:-1])


def within_cell(edges, index, uniform) -> Float[Array, ""]:
    """``uniform`` moved into cell ``index``."""
    return edges[index] + (edges[index + 1] - edges[index]) * uniform
