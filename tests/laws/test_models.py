"""Each model's prior, record law, noise map and params kernel describe one joint law."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from noiseaware.models import FunctionModel, Model
from noiseaware.models.numpyro_model import NumpyroModel, Transformed
from noiseaware.models.support import Support, unconstrain
from noiseaware.samplers.params_given_records import step_of
from tests.laws.chains import KERNELS, prior_shape
from tests.laws.members import MODELS, SUPPORTS, known_for
from tests.statistical import MAX_Z, MIN_P, z_score

# In the fast tests; the others are slow, by their number.
FIRST = ("beta-bernoulli", "dirichlet-categorical", "exponential")
each_model = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=name, marks=[pytest.mark.slow] * (name not in FIRST))
        for name, model in MODELS.items()
    ],
)
each_support = pytest.mark.parametrize(
    ("support", "free"), list(SUPPORTS.values()), ids=list(SUPPORTS)
)


def free_vector(model, params):
    return unconstrain(model.supports, params)[0]


def prior_draws(model, count, seed=0):
    return jax.jit(jax.vmap(model.sample_prior))(jr.split(jr.key(seed), count))


@each_support
def test_supports_invert_and_state_their_jacobian(support, free):
    value = support.constrain(free)
    assert np.allclose(support.unconstrain(value), free, atol=1e-12)
    jacobian = jax.jacobian(lambda z: coordinates(support, support.constrain(z)))(jnp.array(free))
    expected = np.linalg.slogdet(np.asarray(jacobian))[1]
    assert float(support.log_jacobian(free)) == pytest.approx(expected, rel=1e-10)


def coordinates(support, value):
    """As many as there are free ones: a simplex without its last, a lower triangle."""
    if value.ndim == 2:
        return value[np.tril_indices(len(value))]
    return value[:-1] if isinstance(support, type(SUPPORTS["simplex"][0])) else value


@each_model
def test_prior_density_is_that_of_prior_draws(model):
    """For a shift d of unconstrained space, ``E[h(z + d) p(z + d) / p(z)] = E[h(z)]``."""
    params = prior_draws(model, 40_000)
    z = jax.vmap(lambda params: free_vector(model, params))(params)
    _, constrain = unconstrain(model.supports, jax.tree.map(lambda value: value[0], params))

    def log_density(z):
        params, log_jacobian = constrain(z)
        return model.log_prior(params) + log_jacobian

    log_density = jax.jit(jax.vmap(log_density))
    spread, centre = np.std(z, axis=0), np.mean(z, axis=0)
    for j in range(z.shape[1]):
        shift = np.zeros(z.shape[1])
        shift[j] = 0.2 * spread[j]
        ratio = np.exp(np.asarray(log_density(z + shift) - log_density(z)))
        for h in (np.ones_like, np.tanh):
            before = h((np.asarray(z)[:, j] - centre[j]) / spread[j])
            after = h((np.asarray(z + shift)[:, j] - centre[j]) / spread[j])
            assert abs(z_score(after * ratio - before)) < MAX_Z


@each_model
def test_phi_inverts_and_fresh_noise_stays_fresh(model):
    """Noise -> record -> noise given the record has the law of fresh noise again."""
    params = jax.tree.map(lambda value: value[0], prior_draws(model, 1, seed=3))
    key_first, key_second = jr.split(jr.key(4))
    known = known_for(model, 20_000)
    records = model.sample_records(key_first, params, 20_000, known)
    noise = model.noises(key_second, params, records)
    again = model.records(params, noise)
    for name, column in records.items():
        assert np.allclose(again[name], column, rtol=1e-9, atol=1e-9)
    fresh = model.sample_noise(jr.key(5), 20_000)
    assert set(noise) == set(fresh) | set(known)
    for name in fresh:
        values = noise[name]
        found, expected = np.asarray(values).reshape(20_000, -1), np.asarray(fresh[name])
        for j in range(found.shape[1]):
            other = expected.reshape(20_000, -1)[:, j]
            assert stats.ks_2samp(found[:, j], other).pvalue > MIN_P


@each_model
def test_record_density_is_that_of_sampled_records(model):
    """For params p and q nearby, ``E_p[h f(x | q) / f(x | p)] = E_q[h]``, with common noise."""
    params = prior_draws(model, 1_000, seed=6)
    z = np.asarray(jax.vmap(lambda params: free_vector(model, params))(params))
    _, constrain = unconstrain(model.supports, jax.tree.map(lambda value: value[0], params))
    noise = model.sample_noise(jr.key(7), 40_000) | known_for(model, 40_000)
    log_record = jax.vmap(model.log_record, in_axes=(None, 0))

    @jax.jit
    def differences(z_p, z_q):
        p, q = constrain(z_p)[0], constrain(z_q)[0]
        from_p, from_q = model.records(p, noise), model.records(q, noise)
        ratio = jnp.exp(log_record(q, from_p) - log_record(p, from_p))
        return jnp.stack(
            [jnp.tanh(from_p[name]) * ratio - jnp.tanh(from_q[name]) for name in from_p]
            + [ratio - 1.0]
        )

    for j in range(z.shape[1]):
        shift = np.zeros(z.shape[1])
        shift[j] = 0.2 * np.std(z[:, j])
        for start in z[:3]:
            assert np.max(np.abs(z_score(differences(start, start + shift), axis=1))) < MAX_Z


@each_model
def test_params_kernel_reaches_the_posterior_given_records(model):
    check_params_kernel(model, None, 15 if model.has_posterior_step else 150)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "dirichlet-categorical"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_params_kernel_reaches_the_posterior_given_records(kernel, name):
    check_params_kernel(MODELS[name], kernel, 150)


def check_params_kernel(model, kernel, num_steps):
    """Against importance sampling from the prior, which knows no conjugacy. The control is a
    kernel that returns the prior: the same check must catch it.
    """
    truth = jax.tree.map(lambda value: value[0], prior_draws(model, 1, seed=7))
    records = model.sample_records(jr.key(8), truth, 3, known_for(model, 3))
    params = prior_draws(model, 200_000, seed=10)
    values = np.asarray(jax.vmap(functools.partial(bounded, model))(params))
    expected, variance = importance_weighted(model, records, params, values)

    def worst(found):
        error = np.sqrt(np.var(found, axis=0) / len(found) + variance)
        return np.max(np.abs(np.mean(found, axis=0) - expected) / error)

    assert worst(after_some_steps(model, records, num_steps, kernel=kernel)) < MAX_Z
    assert worst(values[:5_000]) > MAX_Z


def bounded(model, params):
    """Functions that tell location and spread, and whose means exist under any prior."""
    squashed = jnp.tanh(free_vector(model, params))
    return jnp.concatenate([squashed, squashed**2])


def after_some_steps(model, records, num_steps, num_chains=5_000, kernel=None):
    """Where chains end that start from the prior, whatever the records."""
    params_step = step_of(model, prior_shape(model), kernel=kernel)

    def chain(key):
        key_start, key_steps = jr.split(key)

        def step(params, key):
            return params_step(key, params, records)

        start = model.sample_prior(key_start)
        params, _ = jax.lax.scan(step, start, jr.split(key_steps, num_steps))
        return bounded(model, params)

    return np.asarray(jax.jit(jax.vmap(chain))(jr.split(jr.key(9), num_chains)))


def importance_weighted(model, records, params, values):
    def log_likelihood(params):
        return jnp.sum(jax.vmap(model.log_record, in_axes=(None, 0))(params, records))

    weights = np.asarray(jax.nn.softmax(jax.jit(jax.vmap(log_likelihood))(params)))
    mean = weights @ values
    return mean, (weights**2) @ (values - mean) ** 2


@each_model
def test_labels_fit_the_shapes_and_columns_the_records(model):
    params = jax.tree.map(lambda value: value[0], prior_draws(model, 1))
    assert set(params) == set(model.supports)
    for name, value in params.items():
        lengths = tuple(len(labels) for labels in model.labels.get(name, {}).values())
        assert lengths == value.shape
    records = model.sample_records(jr.key(0), params, 5, known_for(model, 5))
    assert set(records) == set(model.columns)
    assert all(column.shape == (5,) for column in records.values())


def test_poisson_noise_keeps_both_tails():
    """Counts so far out that F(x) is 0 or 1 in float64 still come back."""
    model = MODELS["poisson"]
    params = {"rate": jnp.array(50.0)}
    for count in (0.0, 1.0, 15.0, 130.0, 250.0):
        record = {"x": jnp.array(count)}
        for uniform in (-3.0, 0.0, 3.0):
            noise = model.noise(params, record, {"x": jnp.array(uniform)})
            assert float(model.record(params, noise)["x"]) == count


@pytest.mark.parametrize("rate", [0.01, 0.7, 4.0, 60.0, 3_000.0])
def test_poisson_records_have_the_poisson_law(rate):
    model = MODELS["poisson"]
    found = np.asarray(model.sample_records(jr.key(1), {"rate": jnp.array(rate)}, 40_000)["x"])
    edges = np.unique(stats.poisson.ppf(np.linspace(0.01, 0.99, 15), rate))
    cells = np.searchsorted(edges, found)
    cdf = np.concatenate([[0], stats.poisson.cdf(edges, rate), [1]])
    expected = np.diff(cdf) * len(found)
    counts = np.bincount(cells, minlength=len(expected))
    is_enough = expected > 5
    statistic = np.sum((counts - expected)[is_enough] ** 2 / expected[is_enough])
    assert stats.chi2.sf(statistic, is_enough.sum()) > MIN_P


def final_subclasses(kind):
    below = [child for child in kind.__subclasses__() if child.__module__.startswith("noiseaware.")]
    return set().union(*map(final_subclasses, below)) if below else {kind}


def test_all_models_and_supports_are_here():
    """But for those made of functions, which have twins here."""
    made = {NumpyroModel, FunctionModel}
    assert {type(model) for model in MODELS.values()} == final_subclasses(Model) - made
    supports = set(Support.__subclasses__()) - {Transformed}
    assert {type(support) for support, _ in SUPPORTS.values()} == supports
