"""Where a parameter lives, and the map to unconstrained space in which moves are made.

For each support: ``unconstrain`` and ``constrain`` are inverse to each other, and
``log_jacobian(free)`` is ``log |d value / d free|`` in the support's own coordinates (the first
K - 1 of a simplex, the lower triangle of a covariance).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float


class Support(eqx.Module):
    @abc.abstractmethod
    def unconstrain(self, value: Array) -> Array: ...

    @abc.abstractmethod
    def constrain(self, free: Array) -> Array: ...

    @abc.abstractmethod
    def log_jacobian(self, free: Array) -> Float[Array, ""]: ...

    def is_inside(self, value: Array) -> Bool[Array, ""]:
        """Whether the value, as rounded, has an unconstrained point."""
        return jnp.all(jnp.isfinite(self.unconstrain(value)))


class RealLine(Support):
    def unconstrain(self, value):
        return value

    def constrain(self, free):
        return free

    def log_jacobian(self, free):
        return jnp.zeros(())


class Positive(Support):
    def unconstrain(self, value):
        return jnp.log(value)

    def constrain(self, free):
        return jnp.exp(free)

    def log_jacobian(self, free):
        return jnp.sum(free)


class UnitInterval(Support):
    def unconstrain(self, value):
        return jnp.log(value) - jnp.log1p(-value)

    def constrain(self, free):
        return jax.nn.sigmoid(free)

    def log_jacobian(self, free):
        return jnp.sum(jax.nn.log_sigmoid(free) + jax.nn.log_sigmoid(-free))


class Simplex(Support):
    """Log ratios to the last entry, along the last axis; the Jacobian is ``prod_k p_k``."""

    def unconstrain(self, value):
        log_value = jnp.log(value)
        return log_value[..., :-1] - log_value[..., -1:]

    def constrain(self, free):
        return jax.nn.softmax(_with_zero(free), axis=-1)

    def log_jacobian(self, free):
        return jnp.sum(jax.nn.log_softmax(_with_zero(free), axis=-1))


class Covariance(Support):
    """``L L^T``, with the diagonal of L on the log scale.

    The Jacobian of L is ``2^p prod_i L_ii^(p - i + 1)``, i = 1..p; the logs add one ``L_ii`` each.
    """

    size: int = eqx.field(static=True)

    def unconstrain(self, value):
        factor = jnp.linalg.cholesky(value)
        log_diagonal = jnp.log(jnp.diagonal(factor))
        return jnp.concatenate([log_diagonal, factor[np.tril_indices(self.size, -1)]])

    def constrain(self, free):
        below = jnp.zeros((self.size, self.size)).at[np.tril_indices(self.size, -1)]
        factor = below.set(free[self.size :]) + jnp.diag(jnp.exp(free[: self.size]))
        return factor @ factor.T

    def log_jacobian(self, free):
        powers = self.size + 1 - np.arange(self.size)
        return self.size * jnp.log(2.0) + jnp.sum(powers * free[: self.size])

    def is_inside(self, value):
        # By the diagonal alone: a factor would be taken at every point tried.
        return jnp.all(jnp.isfinite(value)) & jnp.all(jnp.diagonal(value) > 0)


def _with_zero(free: Array) -> Array:
    return jnp.concatenate([free, jnp.zeros((*free.shape[:-1], 1))], axis=-1)


def unconstrain(supports: dict[str, Support], params: dict[str, Array]):
    """Params as one unconstrained vector, and the function that takes such a vector back
    to ``(params, log |d params / d vector|)``.

    Far out, params round to the edge of their support, from which no vector leads back and where a
    prior's density may be infinite. The logarithm there is minus infinity: no move ends at a point
    that it could not leave.
    """
    free = {name: supports[name].unconstrain(value) for name, value in params.items()}
    vector, unravel = ravel_pytree(free)

    def constrain(vector):
        free = unravel(vector)
        params = {name: supports[name].constrain(value) for name, value in free.items()}
        log_jacobian = sum(supports[name].log_jacobian(value) for name, value in free.items())
        is_inside = [supports[name].is_inside(value) for name, value in params.items()]
        return params, jnp.where(jnp.all(jnp.stack(is_inside)), log_jacobian, -jnp.inf)

    return vector, constrain
