"""The authors' public log-linear script, as far as it differs from Algorithm 1.

It scores the cell that a record leaves and the cell that it enters apart from each other, even
where they are one, and compares the count of the cell entered with the wrong noisy count: that of
level ``x[x*_k]``, the present record's level of feature number ``x*_k``, in place of ``x*_k``. What
such a chain settles on is no posterior. Whether the published table came from it is not known.
"""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from experiments.ju2022.problems import CLASSES, FEATURES, LEVELS, NUM_RECORDS, Problem


def chains(problem: Problem, values: np.ndarray, epsilon: float, seed: int, num_iterations: int):
    """Class probabilities ``[iteration, release, class]`` and acceptance rates, one chain a
    release, from the prior.
    """
    with jax.enable_x64(True):
        noisy = values.reshape(len(values), len(FEATURES), CLASSES, LEVELS)
        keys = jr.split(jr.key(seed), len(values))
        run = functools.partial(_chain, problem.model, num_iterations)
        scale = jnp.asarray(float(problem.mechanism(epsilon).scale))
        drawn, rate = jax.jit(jax.vmap(run, in_axes=(0, 0, None)))(keys, noisy, scale)
        return np.swapaxes(np.asarray(drawn), 0, 1), np.asarray(rate)


def _chain(model, num_iterations, key, noisy, scale):
    of_class = next(iter(model.supports))

    def tables(y, x):
        levels = x[:, :, None] == np.arange(LEVELS)
        classes = y[:, None] == np.arange(CLASSES)
        return jnp.einsum("nkj,ni->kij", levels.astype(float), classes.astype(float))

    def sweep(carry, key):
        params, y, x = carry
        key_params, key_records, key_uniform = jr.split(key, 3)
        records = {"class": y} | {name: x[:, k] for k, name in enumerate(FEATURES)}
        params = model.sample_posterior(key_params, params, records)
        new = model.sample_records(key_records, params, NUM_RECORDS)
        new_x = jnp.stack([new[name] for name in FEATURES], axis=1)
        log_uniform = jnp.log(jr.uniform(key_uniform, (NUM_RECORDS,)))
        features = np.arange(len(FEATURES))

        def visit(carry, record):
            counts, hits = carry
            y, x, new_y, new_x, log_uniform = record
            left = counts[features, y, x]
            entered = counts[features, new_y, new_x]
            noisy_left = noisy[features, y, x]
            noisy_entered = noisy[features, new_y, x[new_x]]  # the slip
            ratio = jnp.sum(
                jnp.abs(noisy_left - left) - jnp.abs(noisy_left - (left - 1))
                + jnp.abs(noisy_entered - entered) - jnp.abs(noisy_entered - (entered + 1))
            )  # fmt: skip
            accepted = log_uniform < ratio / scale
            moved = counts.at[features, y, x].add(-1.0).at[features, new_y, new_x].add(1.0)
            chosen = jnp.where(accepted, new_y, y), jnp.where(accepted, new_x, x)
            return (jnp.where(accepted, moved, counts), hits + accepted), chosen

        (_, hits), (y, x) = jax.lax.scan(
            visit, (tables(y, x), 0.0), (y, x, new["class"], new_x, log_uniform)
        )
        return (params, y, x), (params[of_class], hits / NUM_RECORDS)

    key_params, key_records, key_sweeps = jr.split(key, 3)
    params = model.sample_prior(key_params)
    first = model.sample_records(key_records, params, NUM_RECORDS)
    x = jnp.stack([first[name] for name in FEATURES], axis=1)
    start = (params, first["class"], x)
    _, (drawn, rates) = jax.lax.scan(sweep, start, jr.split(key_sweeps, num_iterations))
    return drawn, jnp.mean(rates)
