"""The naive Bayes model of [JAGR22, Section 4]: N = 100, 5 classes, 5 features of 3 levels."""

import jax
import numpy as np

import noiseaware as na
from benchmarks import naive_bayes_loop as loop
from benchmarks.against_loops import NUM_RECORDS, compare

FEATURES = dict.fromkeys([f"x{k}" for k in range(loop.NUM_FEATURES)], loop.NUM_LEVELS)
MODEL = na.NaiveBayes("y", loop.NUM_CLASSES, FEATURES, loop.CONCENTRATION, loop.CONCENTRATION)
STATISTIC = na.ClassTables("y", loop.NUM_CLASSES, FEATURES)


def problem_at(epsilon: float, seed: int):
    with jax.enable_x64(True):
        key_params, key_records = jax.random.split(jax.random.key(seed))
        params = MODEL.sample_prior(key_params)
        columns = MODEL.sample_records(key_records, params, NUM_RECORDS)
        columns = {name: np.asarray(column) for name, column in columns.items()}
    laplace = na.Laplace(2 * loop.NUM_FEATURES / epsilon)
    release = na.simulate_release(seed, columns, STATISTIC, laplace, neighbours="replace")
    return release, MODEL, np.column_stack([columns[name] for name in MODEL.columns])


def run(quick: bool) -> dict[str, float]:
    loops = {"by_record": loop.sweep_by_record, "vectorised": loop.sweep_vectorised}
    return compare("naive_bayes", problem_at, loops, quick)
