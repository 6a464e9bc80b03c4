"""Where a private chain starts and what its settings are taken from, for a share of the budget.

Neither may be chosen by looking at the records; draws of the prior may lie far from the posterior.
A pilot spends a share of the budget on params that are plausible given the records:

- ``PilotRelease``: publishes a statistic with normal noise, and takes the draws that ``fit`` makes
  of that release, or an estimate at the released sums, each time with noise added once more;
- ``PilotChain``: short chains at rising temperatures, ``n T`` from 1 on by factors of 10 up to a
  tenth of n, each tuned at the last one's draws. Noise is tempered too, so all but the last
  cost next to nothing.

The squares of mu add, so a share is of these. Draws of a pilot follow from what it released.
"""

import abc
import functools
import math
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from noiseaware import validate
from noiseaware.accounting import GDP
from noiseaware.fitting import check_fit, fit
from noiseaware.mechanisms import Gaussian
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.private_mcmc import Penalty
from noiseaware.private_mcmc.access import Access
from noiseaware.private_mcmc.budgets import max_iterations
from noiseaware.private_mcmc.chains import run
from noiseaware.private_mcmc.host_noise import MAX_STDDEV
from noiseaware.private_mcmc.queries import num_bits, sensitivity
from noiseaware.private_mcmc.tuning import tune
from noiseaware.publishing import calibrate, exact_total, publish, simulate_release
from noiseaware.release import Noise, Release
from noiseaware.running import Progress
from noiseaware.schema import Neighbours, as_records
from noiseaware.statistics import Statistic

NUM_DRAWS = 500
TRIED_RECORDS = 1000  # as if, for a first call of an estimate
FACTOR = 10.0
MAX_ITERATIONS = 2000


Estimate = Callable[[dict[str, float]], Params]


class Learned(NamedTuple):
    """Draws of params, with a leading axis, and what they cost."""

    params: Params
    squared_mu: float


class Pilot(eqx.Module):
    share: eqx.AbstractVar[float]

    @abc.abstractmethod
    def check(self, access: Access) -> None:
        """Whatever can fail must fail before anything is spent."""

    @abc.abstractmethod
    def variation(self, access: Access, squared_mu: float) -> float:
        """How far, in total variation, numbers drawn for this budget are at most from what their
        cost assumes (``host_noise.py``).
        """

    @abc.abstractmethod
    def learn(self, access: Access, squared_mu: float, bar: Progress) -> Learned:
        """Within this budget."""


class PilotRelease(Pilot):
    """A release of a statistic, whose bounds are the curator's choice.

    ``estimate`` takes a dict of sums, by the statistic's labels, to params. It is for models whose
    posterior ``fit`` does not reach in a short time, and may read several statistics, which then
    share the pilot's budget. It is called at noisy sums, once they are paid for: whatever those are
    it must return, not a number where there are no such params.
    """

    statistics: tuple[Statistic, ...]
    share: float = eqx.field(static=True)
    estimate: Estimate | None = eqx.field(static=True)

    def __init__(
        self,
        statistic: Statistic | Sequence[Statistic],
        *,
        share: float,
        estimate: Estimate | None = None,
    ):
        self.statistics = (statistic,) if isinstance(statistic, Statistic) else tuple(statistic)
        self.share, self.estimate = validate.probability("share", share), estimate
        if len(self.statistics) != 1 and estimate is None:
            raise ValueError("estimate must be given with several statistics, got none.")
        labels = [label for statistic in self.statistics for label in statistic.labels]
        validate.distinct("labels of the statistics", labels)

    def check(self, access):
        if callable(access.columns):
            raise ValueError("records must be in memory for a PilotRelease, got shards.")
        sums: dict[str, float] = {}
        for statistic in self.statistics:
            noise = calibrate(Gaussian, statistic, neighbours=access.neighbours, mu=1.0)
            exact_total(as_records(access.records, statistic.columns), statistic)
            middle = TRIED_RECORDS * np.mean(statistic.contribution_bounds(), axis=0)
            sums |= dict(zip(statistic.labels, middle, strict=True))
        if self.estimate is not None:
            _check_params(access.model, self.estimate(sums))
            return
        _check_public(access)
        tried = Release(
            middle, statistic, noise, neighbours=access.neighbours, num_records=TRIED_RECORDS,
            noise=Noise.SIMULATED,
        )  # fmt: skip
        check_fit(tried, access.model)

    def variation(self, access, squared_mu):
        return 0.0  # OpenDP's normals have a grid of 2^-1074

    def learn(self, access, squared_mu, bar):
        bar.say("pilot")
        spent = squared_mu
        seed = secrets.randbits(31) if access.seed is None else access.seed
        releases = []
        for index, statistic in enumerate(self.statistics):
            mu = math.sqrt(spent / len(self.statistics))
            noise = calibrate(Gaussian, statistic, neighbours=access.neighbours, mu=mu)
            inputs = (access.records, statistic, noise)
            if access.seed is None:
                releases.append(publish(*inputs, neighbours=access.neighbours))
            else:
                key = jr.fold_in(jr.key(seed), index)
                releases.append(simulate_release(key, *inputs, neighbours=access.neighbours))
        if self.estimate is None:
            return Learned(_fitted(releases[0], access.model, seed), spent)
        return Learned(_estimates(access.model, releases, self.estimate, seed), spent)


def _check_public(access: Access) -> None:
    if access.neighbours is not Neighbours.REPLACE:
        raise ValueError(
            "start must be params, or a PilotRelease with an estimate, under add_remove: other "
            "pilots read the number of records, which is secret."
        )


def _check_params(model: Model, found: Params) -> None:
    if set(found) != set(model.supports):
        raise ValueError(f"estimate must return {sorted(model.supports)}, got {sorted(found)}.")
    for name, value in found.items():
        shape = tuple(map(len, model.labels.get(name, {}).values()))
        if np.shape(value) != shape:
            raise ValueError(
                f"estimate must return {name} of the shape {shape}, got {np.shape(value)}."
            )


def _fitted(release: Release, model: Model, seed: int) -> Params:
    draws = fit(release, model, seed=seed, draws=NUM_DRAWS, progress=False)
    if not draws.attrs["is_complete"]:
        raise KeyboardInterrupt  # of the whole run, not of its pilot alone
    return {
        name: values.values.reshape(-1, *values.shape[2:])
        for name, values in draws.posterior.data_vars.items()
    }


def _estimates(model: Model, releases: Sequence[Release], estimate: Estimate, seed: int) -> Params:
    """At sums as uncertain as those released, where params are possible."""
    rng = np.random.default_rng(seed)
    sums = {
        label: value + spread * rng.standard_normal(NUM_DRAWS)
        for release in releases
        for label, value, spread in zip(
            release.statistic.labels,
            release.values,
            np.broadcast_to(release.mechanism.spread(), len(release.values)),
            strict=True,
        )
    }
    each = [
        estimate({label: values[index] for label, values in sums.items()})
        for index in range(NUM_DRAWS)
    ]
    with jax.enable_x64(True):
        params = {name: jnp.asarray([one[name] for one in each]) for name in each[0]}
        free = jax.vmap(lambda each: unconstrain(model.supports, each)[0])(params)
        is_possible = np.all(np.isfinite(np.asarray(free)), axis=1)
        is_possible &= np.isfinite(jax.vmap(functools.partial(log_prior_of, model))(params))
        if not np.any(is_possible):
            raise ValueError("estimate must return possible params, got none at the noisy sums.")
        return jax.tree.map(lambda values: values[is_possible], params)


def log_prior_of(model: Model, params: Params) -> Float[Array, ""]:
    """Of the unconstrained params."""
    free, constrain = unconstrain(model.supports, params)
    return model.log_prior(params) + constrain(free)[1]


class PilotChain(Pilot):
    """Short chains at rising temperatures: for any model that simulates records."""

    share: float = eqx.field(static=True)

    def __init__(self, *, share: float):
        self.share = validate.probability("share", share)

    def check(self, access):
        _check_public(access)

    def variation(self, access, squared_mu):
        """A question that costs ``1 / multiplier^2`` is hidden by one number, of stddev
        ``multiplier * unit``; or of half of MAX_STDDEV or more, where that is why units are fewer.
        """
        of_one = sensitivity(access.neighbours)
        unit = of_one * 2.0 ** num_bits(access.num_records, of_one)
        widest = _num_stages(access) * MAX_ITERATIONS / (MAX_STDDEV / 2) ** 2
        return (squared_mu / unit**2 + widest) / 20

    def learn(self, access, squared_mu, bar):
        num_stages = _num_stages(access)
        seed = secrets.randbits(31) if access.seed is None else access.seed
        with jax.enable_x64(True):
            params = jax.vmap(access.model.sample_prior)(jr.split(jr.key(seed), NUM_DRAWS))
        params = jax.tree.map(np.asarray, params)
        left, spent = squared_mu, 0.0
        for stage in range(num_stages):
            bar.say(f"pilot, {stage + 1} of {num_stages}")
            temperature = min(FACTOR**stage, access.num_records / FACTOR) / access.num_records
            # The last may take all that is left.
            budget = GDP(math.sqrt(left / (1 if stage == num_stages - 1 else 2)), access.neighbours)
            sampler = tune(
                Penalty,
                access.model,
                access.num_records,
                budget,
                seed=seed + stage,
                params=params,
                temperature=temperature,
            )
            iterations = min(MAX_ITERATIONS, max_iterations(sampler, budget))
            params = _walk(access, sampler, params, temperature, iterations, bar)
            spent += sampler.squared_mu(iterations)
            left -= sampler.squared_mu(iterations)
        return Learned(params, spent)


def _num_stages(access: Access) -> int:
    return max(1, math.ceil(math.log(access.num_records, FACTOR)))


def _walk(access: Access, sampler, params, temperature, iterations, bar) -> Params:
    """The second half of one chain, started in the middle of the params."""
    with jax.enable_x64(True):
        start = _central(access.model, params)
        queries = access.queries(sampler, start, temperature)
        positions = queries.target.position(start)[None]
        made = run(access.source, sampler, queries, positions, iterations, bar)
        if made.made < iterations:
            raise KeyboardInterrupt
        kept = jnp.asarray(made.positions[0, iterations // 2 :])
        return jax.tree.map(np.asarray, jax.vmap(queries.target.params)(kept))


def _central(model: Model, params: Params) -> Params:
    """That of the draws which lies nearest to their median."""
    free = np.asarray(jax.vmap(lambda each: unconstrain(model.supports, each)[0])(params))
    distances = np.sum(((free - np.median(free, axis=0)) / (np.std(free, axis=0) + 1e-300)) ** 2, 1)
    nearest = int(np.nanargmin(distances))
    return jax.tree.map(lambda values: jnp.asarray(values[nearest]), params)
