"""Params given records [JAGR22, Assumption 1]: the model's own step, the caller's, or one of these.

They target ``p(theta | x)``, proportional to ``p(theta) prod_i f(x_i | theta)``, in unconstrained
coordinates, whose Jacobian enters, and leave it invariant whatever their tuning, as long as that is
fixed beforehand:

- ``Slice``: a generalised elliptical slice. Its shape is the one that warm-up learns of the private
  posterior. That is the wider of the two, so the bracket shrinks further, by itself: there is no
  step size to adapt.
- ``Metropolis``: a normal random walk, symmetric, so accepted with the ratio of densities.
- ``HMC`` and ``NUTS`` [HG14]: Hamiltonian dynamics, by NumPyro's integrator and tree.

The last three move on the scale of ``p(theta | x)`` itself. Warm-up takes it from the curvature of
``log p(theta | x)`` where the chains are (``information_of``), and adapts a step in its units to an
acceptance rate.
"""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from noiseaware import elliptical_slice, randomness, validate
from noiseaware.elliptical_slice import Point, Shape
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.samplers.layout import Layout, total_of
from noiseaware.schema import Records

UserStep = Callable[[PRNGKeyArray, Params, Records], Params]
ParamsStep = Callable[[PRNGKeyArray, Params, Records], tuple[Params, Float[Array, ""]]]
LogDensity = Callable[[Float[Array, " d"]], Float[Array, ""]]

JITTER = 0.2  # of HMC's step: an orbit of fixed length may return to where it began


class Scale(NamedTuple):
    """What warm-up learns: the private posterior's shape, a factor of the covariance of ``p(theta |
    x)``, and a step in its units.
    """

    shape: Shape
    cholesky: Float[Array, "d d"]
    step_size: Float[ArrayLike, ""]


class ParamsKernel(eqx.Module):
    """``target_rate`` is the acceptance rate to which warm-up adapts the step; None for no step."""

    target_rate: ClassVar[float | None] = None

    @abc.abstractmethod
    def move(
        self, key: PRNGKeyArray, free: Float[Array, " d"], log_density: LogDensity, scale: Scale
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Unconstrained params after a move, and the rate at which it is accepted."""


class Slice(ParamsKernel):
    """An elliptical slice: the default for models without a step of their own."""

    def move(self, key, free, log_density, scale):
        whitened = scale.shape.whiten(free)

        def at(whitened):
            return log_density(scale.shape.place(whitened)), ()

        end = elliptical_slice.move(key, Point(whitened, *at(whitened)), at)
        return scale.shape.place(end.whitened), jnp.ones(())


class Metropolis(ParamsKernel):
    """A random walk with the learned covariance: no gradients, for a few params."""

    target_rate: ClassVar[float | None] = 0.3

    def move(self, key, free, log_density, scale):
        key_step, key_accept = jr.split(key)
        size = 2.4 / jnp.sqrt(free.size) * scale.step_size
        proposed = free + size * scale.cholesky @ randomness.normal(key_step, free.shape)
        log_ratio = log_density(proposed) - log_density(free)
        is_accepted = -randomness.exponential(key_accept) < log_ratio
        rate = jnp.nan_to_num(jnp.exp(jnp.minimum(log_ratio, 0.0)))
        return jnp.where(is_accepted, proposed, free), rate


class HMC(ParamsKernel):
    """Hamiltonian Monte Carlo with ``num_steps`` leapfrog steps, its step varied a little."""

    num_steps: int = eqx.field(static=True)

    target_rate: ClassVar[float | None] = 0.8

    def __init__(self, num_steps: int = 5):
        self.num_steps = validate.positive_integer("num_steps", num_steps)

    def move(self, key, free, log_density, scale):
        key_momentum, key_step, key_accept = jr.split(key, 3)
        start, advance, energy = _dynamics(key_momentum, free, log_density, scale)
        jitter = 1 + JITTER * (2 * randomness.uniform(key_step) - 1)
        step_size = jitter * scale.step_size
        end = jax.lax.fori_loop(0, self.num_steps, lambda _, at: advance(step_size, at), start)
        log_ratio = energy(start) - energy(end)
        is_accepted = -randomness.exponential(key_accept) < log_ratio
        rate = jnp.nan_to_num(jnp.exp(jnp.minimum(log_ratio, 0.0)))
        return jnp.where(is_accepted, scale.cholesky @ end.z, free), rate


class NUTS(ParamsKernel):
    """The no-U-turn sampler, with trees of up to ``2^max_depth`` leapfrog steps."""

    max_depth: int = eqx.field(static=True)

    target_rate: ClassVar[float | None] = 0.8

    def __init__(self, max_depth: int = 6):
        self.max_depth = validate.positive_integer("max_depth", max_depth)

    def move(self, key, free, log_density, scale):
        from numpyro.infer import hmc_util

        key_momentum, key_tree = jr.split(key)
        start, advance, _ = _dynamics(key_momentum, free, log_density, scale)
        tree = hmc_util.build_tree(
            lambda step_size, _, at: advance(step_size, at),
            hmc_util.euclidean_kinetic_energy,
            start,
            jnp.ones_like(free),
            scale.step_size,
            key_tree,
            max_tree_depth=self.max_depth,
        )
        rate = jnp.nan_to_num(tree.sum_accept_probs / tree.num_proposals)
        is_moved = jnp.any(tree.z_proposal != start.z)  # else not even by rounding
        return jnp.where(is_moved, scale.cholesky @ tree.z_proposal, free), rate


def _dynamics(key, free, log_density: LogDensity, scale: Scale):
    """Where a path starts with a fresh momentum, in coordinates w with ``free = cholesky w``; a
    leapfrog step; and the energy.
    """
    from numpyro.infer import hmc_util

    init, update = hmc_util.velocity_verlet(
        lambda w: -log_density(scale.cholesky @ w), hmc_util.euclidean_kinetic_energy
    )
    w = jax.scipy.linalg.solve_triangular(scale.cholesky, free, lower=True)
    unit = jnp.ones_like(free)
    return (
        init(w, randomness.normal(key, free.shape)),
        lambda step_size, at: update(step_size, unit, at),
        lambda at: at.potential_energy + hmc_util.euclidean_kinetic_energy(unit, at.r),
    )


def as_given(step: UserStep) -> ParamsStep:
    """A step that does not say how often it is accepted."""
    return lambda key, params, records: (step(key, params, records), jnp.ones(()))


def step_of(
    model: Model,
    shape: Shape,
    layout: Layout = Layout(),
    kernel: ParamsKernel | UserStep | None = None,
    cholesky: Float[Array, "d d"] | None = None,
    step_size: Float[ArrayLike, ""] = 1.0,
) -> ParamsStep:
    """What was asked for or, if nothing was, the model's own step or, if it has none, a slice."""
    if kernel is None:
        kernel = model.sample_posterior if model.has_posterior_step else Slice()
    if not isinstance(kernel, ParamsKernel):
        return as_given(kernel)
    moving = kernel
    scale = Scale(shape, jnp.asarray(shape.cholesky if cholesky is None else cholesky), step_size)

    def step(key, params, records):
        free, constrain = unconstrain(model.supports, params)
        log_density = _log_density_of(model, params, records, layout)
        moved, rate = moving.move(key, free, log_density, scale)
        # Params at the edge of their support have no unconstrained point: no move then.
        is_moved = jnp.all(jnp.isfinite(moved))
        new, _ = constrain(moved)
        return {name: jnp.where(is_moved, new[name], params[name]) for name in params}, rate

    return step


def information_of(
    model: Model, params: Params, records: Records, shape: Shape, layout: Layout
) -> Float[Array, "d d"]:
    """Minus the second derivative of ``log p(theta | x)``, in whitened coordinates of the shape."""
    free, _ = unconstrain(model.supports, params)
    log_density = _log_density_of(model, params, records, layout)
    return -jax.hessian(lambda w: log_density(shape.place(w)))(shape.whiten(free))


def _log_density_of(model: Model, like: Params, records: Records, layout: Layout) -> LogDensity:
    """``log p(theta | x)`` of unconstrained params, but for a constant."""
    _, constrain = unconstrain(model.supports, like)

    def log_density(free):
        params, log_jacobian = constrain(free)

        def log_record(record):
            return model.log_record(params, record)[None]

        log_records = total_of(log_record, records, layout.segment_size)[0]
        return model.log_prior(params) + log_jacobian + log_records

    return log_density
