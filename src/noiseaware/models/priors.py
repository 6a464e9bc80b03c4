"""Priors that a person can state in the units of the data, and their conjugate updates.

A model's argument is either a number, then known, or one of these, then learned.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import linalg, stats
from jax.scipy.special import gammaln, multigammaln
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware import validate


class NormalPrior(eqx.Module):
    """Around ``location``, give or take ``scale``; one number, or one per component."""

    location: np.ndarray
    scale: np.ndarray

    def __init__(self, location, scale):
        self.location = validate.finite("location", location)
        self.scale = validate.positive("scale", scale)
        shapes = {array.shape for array in (self.location, self.scale) if array.ndim}
        if len(shapes) > 1:
            raise ValueError(
                "location and scale must be numbers or of one shape, "
                f"got {self.location.shape} and {self.scale.shape}."
            )

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Array:
        return self.location + self.scale * jr.normal(key, shape)

    def log_density(self, value: Array) -> Float[Array, ""]:
        return jnp.sum(stats.norm.logpdf(value, self.location, self.scale))


class StddevPrior(eqx.Module):
    """As if ``weight`` earlier records had shown the standard deviation ``guess``.

    The variance is scaled-inverse-chi-squared with ``weight`` degrees of freedom and scale
    ``guess^2``; the parameter itself is the standard deviation.
    """

    guess: np.ndarray
    weight: np.ndarray

    def __init__(self, guess, weight):
        self.guess = validate.scalar("guess", validate.positive("guess", guess))
        self.weight = validate.scalar("weight", validate.positive("weight", weight))

    def sample(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return self.sample_posterior(key, jnp.zeros(()), 0)

    def sample_posterior(self, key: PRNGKeyArray, sum_of_squares, num_records: int):
        """Given ``num_records`` deviations from the mean with this sum of squares."""
        shape = (self.weight + num_records) / 2
        rate = (self.weight * self.guess**2 + sum_of_squares) / 2
        return jnp.sqrt(rate / jr.gamma(key, shape))

    def log_density(self, stddev: Float[Array, ""]) -> Float[Array, ""]:
        """Inverse gamma of the variance, times ``d variance / d stddev = 2 stddev``."""
        shape, rate = self.weight / 2, self.weight * self.guess**2 / 2
        log_variance = 2 * jnp.log(stddev)
        inverse_gamma = (
            shape * jnp.log(rate) - gammaln(shape) - (shape + 1) * log_variance - rate / stddev**2
        )
        return inverse_gamma + jnp.log(2 * stddev)


class CovariancePrior(eqx.Module):
    """As if ``weight`` earlier records had shown uncorrelated columns with these ``stddevs``.

    Inverse Wishart with ``weight + p + 1`` degrees of freedom, whose mean is
    ``diag(stddevs^2)``.
    """

    stddevs: np.ndarray
    weight: np.ndarray

    def __init__(self, stddevs, weight):
        self.stddevs = np.atleast_1d(validate.positive("stddevs", stddevs))
        self.weight = validate.scalar("weight", validate.positive("weight", weight))

    @property
    def _freedom(self):
        return self.weight + len(self.stddevs) + 1

    @property
    def _scatter(self):
        return self.weight * jnp.diag(self.stddevs**2)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "p p"]:
        size = len(self.stddevs)
        return self.sample_posterior(key, jnp.zeros((size, size)), 0)

    def sample_posterior(self, key: PRNGKeyArray, scatter: Float[Array, "p p"], num_records: int):
        """Given ``num_records`` deviations from the mean with this scatter matrix.

        Bartlett: with lower triangular A, ``A_ii^2 ~ chi^2(freedom - i)`` and normals below,
        ``A A^T`` is a standard Wishart W, and ``C W^-1 C^T`` the draw for scatter ``C C^T``.
        """
        size = len(self.stddevs)
        key_diagonal, key_below = jr.split(key)
        freedom = self._freedom + num_records
        chi_squared = 2 * jr.gamma(key_diagonal, (freedom - np.arange(size)) / 2)
        normals = jr.normal(key_below, (size, size))
        bartlett = jnp.diag(jnp.sqrt(chi_squared)) + jnp.tril(normals, -1)
        factor = jnp.linalg.cholesky(self._scatter + scatter)
        # A^-T: W^-1 = A^-T A^-1, so the draw is (C A^-T)(C A^-T)^T.
        root = linalg.solve_triangular(bartlett, factor.T, lower=True).T
        return root @ root.T

    def log_density(self, covariance: Float[Array, "p p"]) -> Float[Array, ""]:
        size, freedom = len(self.stddevs), self._freedom
        factor = jnp.linalg.cholesky(covariance)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
        log_det_scatter = jnp.sum(jnp.log(jnp.diagonal(self._scatter)))
        trace = jnp.trace(linalg.cho_solve((factor, True), self._scatter))
        return (
            (freedom * log_det_scatter - freedom * size * jnp.log(2.0)) / 2
            - multigammaln(freedom / 2, size)
            - ((freedom + size + 1) * log_det + trace) / 2
        )


class GammaPrior(eqx.Module):
    """As if ``shape`` earlier events had been seen in ``rate`` units of exposure.

    Gamma with mean ``shape / rate``.
    """

    shape: np.ndarray
    rate: np.ndarray

    def __init__(self, shape, rate):
        self.shape = validate.scalar("shape", validate.positive("shape", shape))
        self.rate = validate.scalar("rate", validate.positive("rate", rate))

    def sample(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return self.sample_posterior(key, 0, 0)

    def sample_posterior(self, key: PRNGKeyArray, events, exposure) -> Float[Array, ""]:
        drawn = jr.gamma(key, self.shape + events) / (self.rate + exposure)
        return jnp.maximum(drawn, jnp.finfo(drawn.dtype).tiny)  # 0 is not a rate

    def log_density(self, value: Float[Array, ""]) -> Float[Array, ""]:
        return stats.gamma.logpdf(value, self.shape, scale=1 / self.rate)


def dirichlet_log_density(value: Array, concentration: np.ndarray) -> Float[Array, ""]:
    """Along the last axis, summed over the others."""
    log_normaliser = jnp.sum(gammaln(concentration), -1) - gammaln(jnp.sum(concentration, -1))
    return jnp.sum(jnp.sum((concentration - 1) * jnp.log(value), -1) - log_normaliser)


def normal_prior_of_size(name: str, prior, size: int) -> NormalPrior:
    if not isinstance(prior, NormalPrior):
        raise ValueError(f"{name} must be a NormalPrior, got {prior!r}.")
    return NormalPrior(
        of_length(f"location of {name}", prior.location, size),
        of_length(f"scale of {name}", prior.scale, size),
    )


def of_length(name: str, array: np.ndarray, size: int) -> np.ndarray:
    if array.shape not in ((), (size,)):
        raise ValueError(f"{name} must be one number or {size}, got shape {array.shape}.")
    return np.broadcast_to(array, (size,)).copy()
