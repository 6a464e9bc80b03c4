"""Started in its target, a private sampler stays there; wrong ones leave.

The target is a banana with a few records, of which none is clipped. 100,000 chains start in the
exact posterior and make some steps; then means, squares and products are compared with those of
fresh exact draws. At MAX_Z a correct sampler fails one comparison in 150,000.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.raisa2021.problems import Banana

import noiseaware as na
from noiseaware.private_mcmc import hamiltonian, private_sampler
from noiseaware.private_mcmc.host_noise import Simulated
from noiseaware.private_mcmc.queries import Queries, Target, num_bits

pytestmark = pytest.mark.optimized

MAX_Z = 4.5
NUM_CHAINS = 100_000
NUM_STEPS = 60
NUM_RECORDS = 6
MODEL = Banana(0.7, [2.0, 0.5], prior_variance=3.0)
TEMPERATURE = 0.8
SCALE = np.array([0.5, 0.3])
WALK = dict(clip=100.0, noise_multiplier=0.012, scale=SCALE)
SAMPLERS = {
    "penalty": na.Penalty(step_size=0.8, **WALK),
    "one-component": na.OneComponentPenalty(step_size=1.0, **WALK),
    "guided": na.GuidedPenalty(step_size=1.0, **WALK),
    "hamiltonian": na.HamiltonianPenalty(
        step_size=0.5, num_steps=2, gradient_clip=300.0, gradient_noise_multiplier=0.003, **WALK
    ),
    "hamiltonian-anew": na.HamiltonianPenalty(
        step_size=0.5, num_steps=2, gradient_clip=300.0, gradient_noise_multiplier=0.003,
        reuse_gradient=False, **WALK,
    ),
}  # fmt: skip


@functools.cache
def problem():
    with jax.enable_x64(True):
        params = {"theta": jnp.array([0.4, -0.2])}
        records = MODEL.sample_records(jax.random.key(5), params, NUM_RECORDS)
        target = Target(MODEL, params, jnp.diag(SCALE), jnp.asarray(TEMPERATURE))
    records = jax.tree.map(np.asarray, records)
    return Queries(target, records, bits=num_bits(NUM_RECORDS, 1.0), sensitivity=2.0, is_study=True)


def exact(seed, num_draws=NUM_CHAINS):
    rng = np.random.default_rng([seed, 1])  # not the stream that noise comes from
    return MODEL.posterior(rng, problem().records, num_draws, TEMPERATURE) / SCALE


def compiled():
    """Anew, since a program that is there does not see what a control has changed."""

    @eqx.filter_jit
    def advance(sampler, states, noise, queries):
        def step(state, noise):
            return sampler.step(noise, state, queries)

        return jax.vmap(lambda state, noise: jax.lax.scan(step, state, noise))(states, noise)

    return advance


ADVANCE = compiled()


@eqx.filter_jit
def started(sampler, noise, positions, queries):
    return jax.vmap(lambda noise, at: sampler.init(noise, at, queries))(noise, positions)


def run(sampler, seed=0, noise_factor=1.0, advance=ADVANCE):
    queries, source = problem(), Simulated(seed)
    unit = noise_factor * queries.sensitivity * 2.0**queries.bits
    with jax.enable_x64(True):
        noise = sampler.draw_start_noise(source, (NUM_CHAINS,), 2, unit)
        states = started(sampler, noise, exact(seed), queries)
        noise = sampler.draw_noise(source, (NUM_CHAINS, NUM_STEPS), 2, unit)
        states, info = advance(sampler, states, noise, queries)
    return jax.tree.map(np.asarray, (states, info))


def features(positions):
    """Bounded at a few standard deviations, so that their means are nearly normal."""
    positions = np.clip(np.nan_to_num(positions), -1e3, 1e3)  # controls may go anywhere
    a, b = np.tanh((positions - exact(99).mean(0)) / 3).T
    # The quadratic form of the normal that the banana is bent from: what a temperature changes.
    straight, reference = (_straight(at * SCALE) for at in (positions, exact(99)))
    whitening = np.linalg.inv(np.linalg.cholesky(np.cov(reference.T)))
    energy = np.minimum(np.sum(((straight - reference.mean(0)) @ whitening.T) ** 2, axis=1), 12.0)
    return np.stack([a, b, a**2, b**2, a * b, a**2 * b, energy], axis=1)


def _straight(theta):
    return np.stack([theta[:, 0], theta[:, 1] + MODEL.curvature * theta[:, 0] ** 2], axis=1)


def worst_z(positions):
    found, expected = features(positions), features(exact(1234, 10 * NUM_CHAINS))
    variance = found.var(0) / len(found) + expected.var(0) / len(expected)
    return float(np.max(np.abs(found.mean(0) - expected.mean(0)) / np.sqrt(variance)))


FIRST = ("penalty", "hamiltonian")  # in the fast tests
each_sampler = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST)) for name in SAMPLERS],
)
each_control = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "penalty"))
        for name in ("penalty", "one-component", "guided", "hamiltonian")
    ],
)


@each_sampler
def test_stays_in_its_target(name):
    states, info = run(SAMPLERS[name])
    assert np.mean(info.ratios_clipped) < 1e-5  # a path that diverges may be; no test accepts it
    assert 0.1 < np.mean(info.is_accepted) < 0.9
    assert worst_z(states.position) < MAX_Z


def test_noise_is_large_enough_to_matter():
    """The penalty is of the order of 1, so a test without it means something."""
    for sampler in SAMPLERS.values():
        stddev = 2 * sampler.clip * sampler.noise_multiplier
        assert stddev**2 / 2 > 0.5


@each_control
def test_control_without_the_penalty_leaves(name, monkeypatch):
    test = private_sampler.is_accepted

    def without(uniform, answer, *arguments):
        return test(uniform, answer._replace(stddev=0 * answer.stddev), *arguments)

    _replace_test(monkeypatch, without)
    assert worst_z(run(SAMPLERS[name], advance=compiled())[0].position) > MAX_Z


@each_control
def test_control_with_noise_of_ten_percent_more_variance_leaves(name):
    assert worst_z(run(SAMPLERS[name], noise_factor=np.sqrt(1.1))[0].position) > MAX_Z


@each_control
def test_control_that_accepts_everything_leaves(name, monkeypatch):
    _replace_test(monkeypatch, lambda *_: jnp.ones((), bool))
    assert worst_z(run(SAMPLERS[name], advance=compiled())[0].position) > MAX_Z


def _replace_test(monkeypatch, test):
    for module in (private_sampler, hamiltonian):
        monkeypatch.setattr(module, "is_accepted", test)


def test_directions_stay_uniform_and_independent():
    states, _ = run(SAMPLERS["guided"])
    signs = states.directions
    centred = np.tanh((states.position - exact(99).mean(0)) / 3)
    centred = centred - centred.mean(0)
    for values in (
        signs[:, 0],
        signs[:, 1],
        signs[:, 0] * signs[:, 1],
        signs[:, 0] * centred[:, 0],
    ):
        assert abs(np.mean(values)) < MAX_Z * np.std(values) / np.sqrt(NUM_CHAINS)


def gradient_errors(states):
    """Noisy less exact gradient, in units of its noise: standard normal under the target."""
    sampler, queries = SAMPLERS["hamiltonian"], problem()
    with jax.enable_x64(True):
        zero = np.zeros(states.gradient.shape, np.int64)
        without = started(sampler, zero, states.position, queries).gradient
    stddev = 2 * sampler.gradient_noise_multiplier * sampler.gradient_clip * TEMPERATURE
    return np.clip((states.gradient - np.asarray(without)) / stddev, -10, 10)


def worst_gradient_z(states):
    errors = gradient_errors(states)
    centred = np.tanh((states.position - exact(99).mean(0)) / 3)
    columns = np.concatenate([errors, (errors**2 - 1) / np.sqrt(2), errors * centred], axis=1)
    return np.max(np.abs(columns.mean(0)) / columns.std(0)) * np.sqrt(NUM_CHAINS)


def test_gradients_stay_in_their_law():
    states, _ = run(SAMPLERS["hamiltonian"])
    assert worst_gradient_z(states) < MAX_Z


@pytest.mark.slow
def test_control_that_keeps_the_gradient_of_a_rejected_end_leaves():
    sampler = SAMPLERS["hamiltonian"]

    class Wrong(type(sampler)):
        def step(self, noise, state, queries):
            kept, info = super().step(noise, state, queries)
            (_, _, gradient), _ = self.path(noise, state, queries)
            return kept._replace(gradient=gradient), info

    wrong = Wrong(
        step_size=0.5, num_steps=2, gradient_clip=300.0, gradient_noise_multiplier=0.003, **WALK
    )
    states, _ = run(wrong)
    assert max(worst_z(states.position), worst_gradient_z(states)) > MAX_Z


def test_a_path_and_its_reverse_meet():
    """The same gradients in reverse order lead from (z', -p') back to (z, -p) and g."""
    sampler, queries, source = SAMPLERS["hamiltonian"], problem(), Simulated(3)
    unit = queries.sensitivity * 2.0**queries.bits
    with jax.enable_x64(True):
        first = sampler.draw_start_noise(source, (), 2, unit)
        noise = sampler.draw_noise(source, (), 2, unit)
        state = sampler.init(first, jnp.asarray(exact(0)[0]), queries)
        (position, momentum, gradient), _ = sampler.path(noise, state, queries)
        back = noise._replace(
            momentum=-momentum, gradients=np.concatenate([noise.gradients[-2::-1], first[None]])
        )
        end = type(state)(position, gradient)
        (position, momentum, gradient), _ = sampler.path(back, end, queries)
    np.testing.assert_allclose(position, state.position, rtol=1e-12)
    np.testing.assert_allclose(momentum, -noise.momentum, rtol=1e-12)
    np.testing.assert_allclose(gradient, state.gradient, rtol=1e-12)
