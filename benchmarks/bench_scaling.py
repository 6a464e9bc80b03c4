"""Nanoseconds a record update on one core, by n, m, number of chains and epsilon.

Of the regression at epsilon = 1 with two predictors, and one of these at a time varied. A full
iteration of the default kernel is a sweep and a move of params; ``plain`` is the sweep alone.
``python -m benchmarks.picture`` draws the curves. Random numbers are also timed alone.
"""

import time

import jax
import jax.numpy as jnp
import jax.random as jr

from benchmarks.compiled_loop import Regressions, nanoseconds
from noiseaware import randomness

SIZES = {f"1e{k}": 10**k for k in range(2, 8)}
QUICK_SIZES = ("1e4", "1e5")
NUM_CHAINS = (1, 4, 16, 64)
NUM_PREDICTORS = (1, 2, 4, 8)
EPSILONS = (0.1, 1.0, 3.0, 10.0, 30.0)


def run(quick: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, size in SIZES.items():
        if quick and name not in QUICK_SIZES:
            continue
        for kernel, prefix in (("interweaving", ""), ("record_augmentation", "plain_")):
            spent, _ = nanoseconds(kernel, Regressions(size))
            found[f"scaling.{prefix}ns_per_record.n{name}"] = spent
    found["scaling.ns_per_normal"] = random_nanoseconds(randomness.normal)
    found["scaling.ns_per_normal_of_jax"] = random_nanoseconds(jr.normal)
    if quick:
        return found
    per_record = "scaling.ns_per_record"
    found[f"{per_record}_1e6_over_1e4"] = found[f"{per_record}.n1e6"] / found[f"{per_record}.n1e4"]
    for num_chains in NUM_CHAINS:
        spent, _ = nanoseconds("interweaving", Regressions(100, num_chains))
        found[f"{per_record}.chains{num_chains}"] = spent
    for num_predictors in NUM_PREDICTORS:
        regressions = Regressions(10**4, num_predictors=num_predictors)
        num_sums = len(regressions.statistic.labels)
        found[f"{per_record}.m{num_sums}"] = nanoseconds("interweaving", regressions)[0]
    for epsilon in EPSILONS:
        spent, rate = nanoseconds("interweaving", Regressions(10**4, epsilon=epsilon))
        found[f"scaling.acceptance.eps{epsilon:g}"] = rate
        found[f"scaling.ns_per_accepted.eps{epsilon:g}"] = spent / rate
    return found


def random_nanoseconds(draw) -> float:
    """Per number: three a record, for 100 records of four chains, a thousand times."""
    with jax.enable_x64(True):
        size, num_repeats = (4, 100, 3), 1_000

        def add(index, total):
            return total + jnp.asarray(draw(jr.fold_in(jr.key(0), index), size), float)

        summed = jax.jit(lambda: jax.lax.fori_loop(0, num_repeats, add, jnp.zeros(size)))
        summed().block_until_ready()
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            summed().block_until_ready()
            seconds.append(time.perf_counter() - begin)
    return min(seconds) / (1_200 * num_repeats) * 1e9
