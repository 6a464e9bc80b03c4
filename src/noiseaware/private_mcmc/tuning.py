"""Settings that see no record: from records simulated at params that are plausible.

The params are draws of the prior, or of what a pilot learned (``pilots.py``). At each, records are
simulated, and the scores of the log likelihood give the information, so a guess of the posterior's
covariance ``(n T E[g g'] + P)^-1``, P the prior's precision. Its Cholesky factor is the scale: in
its units the posterior is about N(0, I).

The clip is the smallest that leaves at most ``MAX_CLIPPED`` of the records' ``|log ratio| / |z' -
z|`` above it and moves the posterior by at most ``MAX_BIAS`` of its standard deviations, which is
``n T |E[clip(g u) - g u]|`` in direction u. Records whose scores are skewed, as those of an
exponential are, need a wide one: a clipped tail counts n times, the posterior narrows with its
root.

Noise and step follow from the walk on N(0, I) in d dimensions. With steps of size s the log ratio
has standard deviation ``s sqrt(d)``, its noise ``a = c m`` times that, where m is the multiplier
and ``c = sensitivity * clip * T``; so the acceptance rate is near ``2 Phi(-x / 2)``, ``x = s
sqrt(d) sqrt(1 + a^2)``. A budget of mu allows ``mu^2 m^2`` iterations, hence squared jumps in all

    mu^2 m^2 s^2 2 Phi(-x / 2) = (mu / c)^2 / d  *  a^2 / (1 + a^2)  *  2 x^2 Phi(-x / 2).

The last factor is largest at x = 2.38, as without noise [RGG97]. The middle one grows with the
noise, since more noise allows more, if shorter, steps: ``a = 2`` reaches 80 % of its limit, and
what more would bring is computing time. What is left, ``1.3 (mu / c)^2 / d``, is what the budget
can buy: the squared posterior standard deviations that a chain travels in each direction. A
quarter of that is about the number of effective draws, ``expected_effective``: a squared jump of
``2 (1 - rho)`` goes with ``(1 - rho) / 2`` effective draws an iteration.

Paths are tuned by the same argument: for one of length t the ratio costs ``d c^2 / v_l`` and the
gradients ``d t^2 c_g^2 / v_g`` of squared mu, whatever their number of steps, with the variances
v_l and v_g that their noises give the log ratio; ``v_l + v_g = 2.38^2``, split as ``c : t c_g``.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtr

from noiseaware import validate
from noiseaware.accounting import Cost
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.private_mcmc.budgets import squared_mu_of
from noiseaware.private_mcmc.hamiltonian import HamiltonianPenalty
from noiseaware.private_mcmc.penalty import Penalty
from noiseaware.private_mcmc.private_sampler import PrivateSampler, RatioSampler
from noiseaware.private_mcmc.queries import Target, sensitivity

MAX_CLIPPED, MAX_BIAS = 0.01, 0.1
NUM_DIRECTIONS, NUM_BOUNDS = 16, 100
NUM_PLACES = 32
NUM_RECORDS = 2_000  # simulated at each place
BEST_SPREAD = 2.38
NOISE_RATIO = 2.0
MIN_ITERATIONS = 500
MIN_PATHS = 50
PATH_LENGTH = 2.0
PATH_STEPS = 10


def tune(
    kind: type[PrivateSampler],
    model: Model,
    num_records: int,
    budget: Cost,
    *,
    seed: int,
    params: Params | None = None,
    chains: int = 1,
    temperature: float = 1.0,
) -> PrivateSampler:
    """A sampler of this kind with settings for records like those that the model simulates at
    ``params``, arrays with a leading axis, or at draws of the prior. It reads no records: free.
    """
    if not (isinstance(kind, type) and issubclass(kind, (RatioSampler, HamiltonianPenalty))):
        raise ValueError(
            f"only penalty samplers' classes can be tuned, got {kind!r}: give it its settings."
        )
    if model.known:
        raise ValueError(
            f"{type(model).__name__} cannot be tuned on simulated records, which would need the "
            f"columns {list(model.known)}: give a sampler with settings."
        )
    num_records = validate.positive_integer("num_records", num_records)
    squared = squared_mu_of(budget) / validate.positive_integer("chains", chains)
    with jax.enable_x64(True):
        key_prior, key_places, key_records = jr.split(jr.key(seed), 3)
        try:
            prior = jax.vmap(model.sample_prior)(jr.split(key_prior, 1000))
            places = prior if params is None else jax.tree.map(jnp.asarray, params)
            chosen = jr.choice(key_places, len(jax.tree.leaves(places)[0]), (NUM_PLACES,))
            places = jax.tree.map(lambda values: values[chosen], places)
            size = temperature * num_records
            found = _scale_and_clips(key_records, model, prior, places, size)
        except NotImplementedError as error:
            raise ValueError(
                f"{type(model).__name__} must draw from its prior and simulate records to be "
                "tuned: give a sampler with settings."
            ) from error
    scale, clip, gradient_clip = jax.tree.map(np.asarray, found)
    if not (np.all(np.isfinite(scale)) and clip > 0 and gradient_clip > 0):
        raise ValueError(f"{type(model).__name__} could not be tuned: its scores are not finite.")
    unit = sensitivity(budget.neighbours) * temperature
    return _settings(kind, len(scale), scale, clip, gradient_clip, unit, squared)


def _settings(kind, dims: int, scale, clip, gradient_clip, unit: float, squared: float):
    shared: dict[str, Any] = {"scale": scale, "clip": clip}
    cost = unit * float(clip)  # of one posterior standard deviation, in noise
    if issubclass(kind, RatioSampler):
        multiplier = max(NOISE_RATIO / cost, math.sqrt(MIN_ITERATIONS / squared))
        moving = dims if kind is Penalty else 1
        step_size = BEST_SPREAD / math.sqrt(moving * (1 + (cost * multiplier) ** 2))
        return kind(step_size=step_size, noise_multiplier=multiplier, **shared)
    of_path = PATH_LENGTH * unit * float(gradient_clip)
    share = cost / (cost + of_path)
    ratio_stddev = BEST_SPREAD * math.sqrt(share)
    path_stddev = BEST_SPREAD * math.sqrt(1 - share)
    step_size = PATH_LENGTH / PATH_STEPS
    gradient_stddev = path_stddev / math.sqrt(PATH_LENGTH * step_size * dims)

    def sampler(shorter: float) -> HamiltonianPenalty:
        return HamiltonianPenalty(
            step_size=step_size / shorter,
            num_steps=PATH_STEPS,
            noise_multiplier=shorter * ratio_stddev / (cost * math.sqrt(dims)),
            gradient_noise_multiplier=shorter * gradient_stddev / (unit * float(gradient_clip)),
            gradient_clip=gradient_clip,
            **shared,
        )

    # Shorter paths with as much more noise, where the budget has too few of these.
    return sampler(max(1.0, math.sqrt(sampler(1.0).squared_mu(MIN_PATHS) / squared)))


def expected_effective(sampler: PrivateSampler, dims: int, unit: float, iterations: int) -> float:
    """Draws of one chain, by the argument above, if the posterior is N(0, I) in the sampler's
    units; ``unit`` is the sensitivity times the temperature.
    """
    match sampler:
        case RatioSampler():
            moving = dims if isinstance(sampler, Penalty) else 1
            noise = unit * float(sampler.clip) * float(sampler.noise_multiplier)
            spread = float(sampler.step_size) * math.sqrt(moving * (1 + noise**2))
            jump = float(sampler.step_size) ** 2 * moving / dims
        case HamiltonianPenalty():
            length = sampler.num_steps * float(sampler.step_size)
            jump = 2 * (1 - math.cos(min(length, math.pi)))
            ratio = unit * float(sampler.clip) * float(sampler.noise_multiplier)
            path = unit * float(sampler.gradient_clip) * float(sampler.gradient_noise_multiplier)
            variance = dims * (ratio**2 * jump + path**2 * length * float(sampler.step_size))
            spread = math.sqrt(variance)
        case _:
            return math.nan
    return iterations * jump * 2 * float(ndtr(-spread / 2)) / 4


@eqx.filter_jit
def _scale_and_clips(key, model: Model, prior: Params, places: Params, size):
    like = jax.tree.map(lambda values: values[0], places)
    free = jax.vmap(lambda params: unconstrain(model.supports, params)[0])(prior)
    precision = jnp.diag(1 / jnp.nanvar(free, axis=0))
    dims = free.shape[1]
    target = Target(model, like, jnp.eye(dims), jnp.ones(()))
    key_records, key_moves = jr.split(key)

    def records_at(key, params):
        return model.sample_records(key, params, NUM_RECORDS)

    records = jax.vmap(records_at)(jr.split(key_records, NUM_PLACES), places)
    positions = jax.vmap(target.position)(places)

    def scores(position, records):
        found = jax.vmap(jax.grad(target.log_record), in_axes=(None, 0))(position, records)
        return jnp.where(jnp.isfinite(found), found, 0.0)

    each = jax.vmap(scores)(positions, records)
    information = jnp.mean(jnp.einsum("pni,pnj->pij", each, each), axis=0) / NUM_RECORDS
    scale = jnp.linalg.cholesky(jnp.linalg.inv(size * information + precision))

    def ratios(key, position, records):
        move = jr.normal(key, (NUM_RECORDS, dims))
        move = move / jnp.linalg.norm(move, axis=1, keepdims=True)

        def ratio(move, record):
            end = position + scale @ move
            return target.log_record(end, record) - target.log_record(position, record)

        return jax.vmap(ratio)(move, records)

    key_ratios, key_directions = jr.split(key_moves)
    changes = jax.vmap(ratios)(jr.split(key_ratios, NUM_PLACES), positions, records)
    changes = jnp.where(jnp.isfinite(changes), jnp.abs(changes), 0.0)
    whitened = (each @ scale).reshape(-1, dims)
    lengths = jnp.linalg.norm(whitened, axis=1)
    clip = jnp.maximum(
        jnp.quantile(changes, 1 - MAX_CLIPPED), _unbiased_clip(key_directions, whitened, size)
    )
    return scale, clip, jnp.quantile(lengths, 1 - MAX_CLIPPED)


def _unbiased_clip(key, scores: Float[Array, "n d"], size) -> Float[Array, ""]:
    """The smallest of some bounds that moves no direction by more than MAX_BIAS."""
    directions = jr.normal(key, (NUM_DIRECTIONS, scores.shape[1]))
    directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    along = scores @ directions.T
    largest = jnp.max(jnp.abs(along))
    bounds = largest * jnp.linspace(0.02, 1.0, NUM_BOUNDS)

    def bias(bound):
        return size * jnp.max(jnp.abs(jnp.mean(jnp.clip(along, -bound, bound) - along, axis=0)))

    return bounds[jnp.argmax(jax.lax.map(bias, bounds) <= MAX_BIAS)]
