"""What a mechanism is: how the sums were hidden, and what that cost."""

import abc
from typing import ClassVar, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from noiseaware.accounting import Cost
from noiseaware.schema import Neighbours


class Mechanism(eqx.Module):
    """Publishes ``s`` with density or mass ``g(s, T(x))``: data, not a procedure.

    ``norm`` is the norm in which its cost measures sensitivity. Where there is one scale
    per coordinate, ``s / scale`` is the same release of ``T / scale`` with unit noise, so
    ``cost`` then takes the sensitivity of ``T / scale``.
    """

    norm: ClassVar[int]
    is_discrete: ClassVar[bool]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({np.array2string(self.spread(), threshold=4)})"

    @abc.abstractmethod
    def spread(self) -> np.ndarray:
        """Its own parameter: one scale or standard deviation, or one per coordinate; NaN where it
        has none.
        """

    @property
    def can_simulate(self) -> bool:
        return True

    @property
    def is_normal_mixture(self) -> bool:
        """Whether the noise is a normal of random variance, which ``sample_variances`` draws."""
        return type(self).sample_variances is not Mechanism.sample_variances

    def sample_variances(self, key: PRNGKeyArray, noise: Float[Array, " m"]) -> Float[Array, " m"]:
        """The variance of each coordinate's noise, given that noise."""
        raise NotImplementedError(f"{type(self).__name__} is no mixture of normals.")

    def with_spread(self, spread: np.ndarray) -> Self:
        return type(self)(spread)

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, total: Float[Array, " m"]) -> Float[Array, " m"]:
        """Noise for studies, from a seeded generator. A real release is made by ``privatize``."""

    @abc.abstractmethod
    def privatize(self, total: np.ndarray) -> np.ndarray:
        """Noise for a real release: OpenDP's samplers on the operating system's randomness."""

    @abc.abstractmethod
    def log_density(
        self, released: Float[ArrayLike, " m"], total: Float[Array, " m"]
    ) -> Float[Array, ""]:
        """``log g(released, total)``."""

    @abc.abstractmethod
    def cost(self, sensitivity: float, neighbours: Neighbours) -> Cost | None:
        """What publishing costs if ``sensitivity`` bounds the change between neighbours; None where
        that is not known.
        """


def noise_units(sensitivity: float, spread: np.ndarray) -> float:
    """Sensitivity in units of the noise; already so where each coordinate has its own."""
    return float(sensitivity / spread) if spread.ndim == 0 else float(sensitivity)


def privatize_each(make, atom: str, total: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """One OpenDP measurement a coordinate: ``make`` is ``make_laplace`` or ``make_gaussian``."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.atom_domain(T="i64") if atom == "i64" else dp.atom_domain(T="f64", nan=False)
    metric = dp.absolute_distance(T=atom)
    number = int if atom == "i64" else float
    scales = np.broadcast_to(spread, total.shape).tolist()
    measurements = {
        scale: getattr(dp.m, make)(domain, metric, scale=scale) for scale in set(scales)
    }
    noisy = [measurements[scale](number(value)) for value, scale in zip(total, scales, strict=True)]
    return np.array(noisy, np.float64)
