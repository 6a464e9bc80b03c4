"""The benches' baselines are the kernel that they are compared with, number for number."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from benchmarks import (
    bench_naive_bayes,
    bench_regression,
    naive_bayes_loop,
    regression_loop,
    regression_numba,
)

import noiseaware as na
from noiseaware import randomness
from noiseaware.samplers import record_augmentation
from noiseaware.samplers.record_augmentation import RecordAugmentationState

SCALE = 0.7  # so little noise that many proposals are rejected


class Replay:
    """A generator that hands out given numbers, in the order in which a loop asks for them."""

    def __init__(self, **streams):
        self._streams = {name: np.ravel(values) for name, values in streams.items()}

    def _next(self, name, size):
        count = int(np.prod(size)) if size is not None else 1
        values, self._streams[name] = np.split(self._streams[name], [count])
        assert len(values) == count
        return values.reshape(size) if size is not None else values[0]

    def standard_normal(self, size=None):
        return self._next("normal", size)

    def standard_exponential(self, size=None):
        return self._next("exponential", size)

    def random(self, size=None):
        return self._next("uniform", size)


def compiled_step(model, statistic, state, released, key):
    step = functools.partial(
        record_augmentation.step,
        model=model,
        contribution=statistic,
        log_density=functools.partial(na.Laplace(SCALE).log_density, released),
    )
    return jax.jit(step)(key, state)


@pytest.mark.parametrize("name", ["sweep_by_record", "sweep_vectorised"])
def test_regression_loop_is_the_compiled_sweep(monkeypatch, name):
    sweep = getattr(regression_loop, name)
    release, model, records = bench_regression.problem_at(1.0, 0)
    columns = ("x1", "x2", "y")
    with jax.enable_x64(True):
        state = RecordAugmentationState(
            {"coefficients": jnp.zeros(3)}, dict(zip(columns, jnp.asarray(records.T), strict=True))
        )
        key = jr.key(3)
        end, info = compiled_step(model, release.statistic, state, release.values, key)
        key_records, key_accept = randomness.split(randomness.fold_in(randomness.split(key)[1], 0))
        noise = model.sample_noise(key_records, len(records))
        normals = np.column_stack([noise["predictors"], noise["response"]])
        exponentials = np.asarray(randomness.exponential(key_accept, (len(records),)))
    coefficients = np.asarray(end.params["coefficients"])
    monkeypatch.setattr(regression_loop, "sample_coefficients", lambda rng, records: coefficients)
    found = records.copy()
    sweep(Replay(normal=normals, exponential=exponentials), found, release.values, SCALE)
    expected = np.column_stack([end.records[name] for name in columns])
    assert np.allclose(found, expected, rtol=1e-12)
    assert 0.05 < float(info.acceptance_rate) < 0.95, "both outcomes must occur to be compared"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep_by_record", "sweep_vectorised"])
def test_naive_bayes_loop_is_the_compiled_sweep(monkeypatch, name):
    sweep = getattr(naive_bayes_loop, name)
    release, model, records = bench_naive_bayes.problem_at(1.0, 0)
    with jax.enable_x64(True):
        state = RecordAugmentationState(
            model.sample_prior(jr.key(1)),
            dict(zip(model.columns, jnp.asarray(records.T), strict=True)),
        )
        key = jr.key(3)
        end, info = compiled_step(model, release.statistic, state, release.values, key)
        key_records, key_accept = randomness.split(randomness.fold_in(randomness.split(key)[1], 0))
        noise = model.sample_noise(key_records, len(records))
        uniforms = np.column_stack([noise[name] for name in model.columns])
        exponentials = np.asarray(randomness.exponential(key_accept, (len(records),)))
    if name == "sweep_vectorised":
        uniforms = np.concatenate([uniforms[:, 0], uniforms[:, 1:].ravel()])
    params = (
        np.asarray(end.params["y_probabilities"]),
        np.stack([end.params[f"x{k}_probabilities"] for k in range(5)]),
    )
    monkeypatch.setattr(naive_bayes_loop, "sample_params", lambda rng, records: params)
    found = records.copy()
    sweep(Replay(uniform=uniforms, exponential=exponentials), found, release.values, SCALE)
    expected = np.column_stack([end.records[name] for name in model.columns])
    assert np.array_equal(found, expected)
    assert 0.05 < float(info.acceptance_rate) < 0.95, "both outcomes must occur to be compared"


def test_numba_loop_is_the_loop_by_record():
    """Equal seeds, equal chains."""
    release, _, records = bench_regression.problem_at(1.0, 0)
    expected, found = records.copy(), records.copy()
    rng, same_rng = np.random.default_rng(3), np.random.default_rng(3)
    for _ in range(5):
        before = found.copy()
        coefficients = regression_loop.sweep_by_record(rng, expected, release.values, SCALE)
        drawn = regression_numba.chain(same_rng, found, release.values, SCALE, 1)
        assert np.allclose(drawn, coefficients, rtol=1e-9)
        assert np.allclose(found, expected, rtol=1e-9)
        is_accepted = np.any(found != before, axis=1)
        assert 0.05 < np.mean(is_accepted) < 0.95, "both outcomes must occur to be compared"
