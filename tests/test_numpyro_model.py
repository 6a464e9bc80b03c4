"""A NumPyro model of one record is the built-in model that says the same."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import noiseaware as na
from noiseaware.convergence import bulk_ess
from tests.laws.members import CASES, FAMILIES
from tests.statistical import MAX_Z

QUIET = {"seed": 1, "progress": False}


def bernoulli():
    p = numpyro.sample("probability", dist.Beta(2.0, 3.0))
    numpyro.sample("x", dist.Bernoulli(p))


def categorical():
    p = numpyro.sample("probabilities", dist.Dirichlet(jnp.array([1.0, 2.0, 4.0])))
    numpyro.sample("x", dist.Categorical(p))


def normal_mean():
    mean = numpyro.sample("mean", dist.Normal(1.0, 2.0))
    numpyro.sample("x", dist.Normal(mean, 1.5))


def exponential():
    rate = numpyro.sample("rate", dist.Gamma(4.0, 3.0))
    numpyro.sample("x", dist.Exponential(rate))


def poisson():
    rate = numpyro.sample("rate", dist.Gamma(3.0, 1.0))
    numpyro.sample("x", dist.Poisson(rate))


def binomial():
    probability = numpyro.sample("probability", dist.Beta(2.0, 3.0))
    numpyro.sample("x", dist.Binomial(5, probability))


def geometric():
    probability = numpyro.sample("probability", dist.Beta(4.0, 3.0))
    numpyro.sample("x", dist.Geometric(probability))


def gamma():
    rate = numpyro.sample("rate", dist.Gamma(4.0, 3.0))
    numpyro.sample("x", dist.Gamma(0.7, rate))


def pareto():
    exponent = numpyro.sample("exponent", dist.Gamma(8.0, 3.0))
    numpyro.sample("x", dist.Pareto(2.0, exponent))


def regression():
    """A chain of sites, with a covariance between the predictors."""
    prior = dist.Normal(jnp.array([0.5, 0.0, -0.5]), jnp.array([1.0, 0.7, 0.8]))
    b = numpyro.sample("coefficients", prior.to_event(1))
    x1 = numpyro.sample("a", dist.Normal(0.3, 1.0))
    x2 = numpyro.sample("b", dist.Normal(-0.4 + 0.4 * (x1 - 0.3), np.sqrt(0.64)))
    numpyro.sample("y", dist.Normal(b[0] + b[1] * x1 + b[2] * x2, 1.2))


def logistic():
    prior = dist.Normal(jnp.array([0.5, 0.0, -0.5]), jnp.array([1.0, 0.7, 0.8]))
    b = numpyro.sample("coefficients", prior.to_event(1))
    means = numpyro.sample("predictor_means", dist.Normal(jnp.array([0.3, -0.4]), 0.5).to_event(1))
    x1 = numpyro.sample("a", dist.Normal(means[0], 1.0))
    x2 = numpyro.sample("b", dist.Normal(means[1] + 0.4 * (x1 - means[0]), np.sqrt(0.64)))
    numpyro.sample("y", dist.Bernoulli(logits=b[0] + b[1] * x1 + b[2] * x2))


def stddev_prior(guess, weight):
    """``StddevPrior``: the variance is inverse gamma."""
    variance = dist.InverseGamma(weight / 2, weight * guess**2 / 2)
    return dist.TransformedDistribution(variance, dist.transforms.PowerTransform(0.5))


def normal():
    mean = numpyro.sample("mean", dist.Normal(1.0, 1.0))
    stddev = numpyro.sample("stddev", stddev_prior(1.5, 5.0))
    numpyro.sample("x", dist.Normal(mean, stddev))


def naive_bayes():
    p = numpyro.sample("c_probabilities", dist.Dirichlet(jnp.array([2.0, 3.0])))
    of_class = dist.Dirichlet(jnp.full((2, 2), 1.5)).to_event(1)
    p_f = numpyro.sample("f_probabilities", of_class)
    of_class = dist.Dirichlet(jnp.full((2, 3), 1.5)).to_event(1)
    p_g = numpyro.sample("g_probabilities", of_class)
    c = numpyro.sample("c", dist.Categorical(p))
    numpyro.sample("f", dist.Categorical(p_f[c]))
    numpyro.sample("g", dist.Categorical(p_g[c]))


def regression_all_unknown():
    """The covariance is the inverse of a Wishart, here a parameter by itself."""
    prior = dist.Normal(jnp.array([0.5, 0.0, -0.5]), jnp.array([1.0, 0.7, 0.8]))
    b = numpyro.sample("coefficients", prior.to_event(1))
    stddev = numpyro.sample("noise_stddev", stddev_prior(1.2, 6.0))
    means = numpyro.sample("predictor_means", dist.Normal(jnp.array([0.3, -0.4]), 0.5).to_event(1))
    scatter = 6.0 * jnp.diag(jnp.array([1.0, 0.8]) ** 2)
    precision = numpyro.sample("precision", dist.Wishart(9.0, rate_matrix=scatter))
    covariance = jnp.linalg.inv(precision)
    x1 = numpyro.sample("a", dist.Normal(means[0], jnp.sqrt(covariance[0, 0])))
    slope = covariance[0, 1] / covariance[0, 0]
    left = covariance[1, 1] - slope * covariance[0, 1]
    x2 = numpyro.sample("b", dist.Normal(means[1] + slope * (x1 - means[0]), jnp.sqrt(left)))
    numpyro.sample("y", dist.Normal(b[0] + b[1] * x1 + b[2] * x2, stddev))


def logistic_table():
    concentration = jnp.array([1.0, 2.0, 1.0, 0.8, 1.5, 1.0])
    p = numpyro.sample("probabilities", dist.Dirichlet(concentration)).reshape(2, 3)
    prior = dist.Normal(jnp.array([0.5, 0.0, -0.5, 0.3]), jnp.array([1.0, 0.7, 0.8, 1.2]))
    k = numpyro.sample("coefficients", prior.to_event(1))
    a = numpyro.sample("a", dist.Categorical(p.sum(axis=1)))
    b = numpyro.sample("b", dist.Categorical(p[a] / p[a].sum()))
    score = k[0] + k[1] * (a == 1) + k[2] * (b == 1) + k[3] * (b == 2)
    numpyro.sample("y", dist.Bernoulli(logits=score))


FIRST = ("bernoulli", "exponential", "regression")  # in the fast tests
TWINS = {  # function, columns, name in CASES or FAMILIES
    "normal-both": (normal, ["x"], "normal"),
    "naive-bayes": (naive_bayes, ["c", "f", "g"], "naive-bayes"),
    "regression-unknown": (regression_all_unknown, ["a", "b", "y"], "regression"),
    "logistic-table": (logistic_table, ["a", "b", "y"], "logistic-table"),
    "bernoulli": (bernoulli, ["x"], "beta-bernoulli"),
    "categorical": (categorical, ["x"], "dirichlet-categorical"),
    "normal": (normal_mean, ["x"], "normal-mean"),
    "exponential": (exponential, ["x"], "exponential"),
    "poisson": (poisson, ["x"], "poisson"),
    "binomial": (binomial, ["x"], "binomial"),
    "geometric": (geometric, ["x"], "geometric"),
    "gamma": (gamma, ["x"], "gamma"),
    "pareto": (pareto, ["x"], "pareto"),
    "regression": (regression, ["a", "b", "y"], "regression-known"),
    "logistic": (logistic, ["a", "b", "y"], "logistic"),
}


def twins(name):
    function, columns, case = TWINS[name]
    levels = {"categorical": {"x": ("u", "v", "w")}, "logistic-table": {"a": ("u", "v")}}.get(name)
    return na.NumpyroModel(function, columns, levels), *(FAMILIES | CASES)[case]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST))
        for name in TWINS
        if name != "regression-unknown"
    ],
)
def test_densities_are_those_of_the_twin(name):
    model, twin, _ = twins(name)

    @jax.jit
    @jax.vmap
    def look(key):
        params = twin.sample_prior(key)
        record = jax.tree.map(lambda x: x[0], twin.sample_records(jr.key(9), params, 1))
        return [
            jnp.stack([each.log_prior(params), each.log_record(params, record)])
            for each in (model, twin)
        ]

    with jax.enable_x64(True):
        found, expected = look(jr.split(jr.key(0), 20))
        assert np.all(np.isfinite(expected))
        assert np.allclose(found, expected, rtol=1e-10, atol=1e-10)


def features(draws, names):
    values = [draws.posterior[name].values for name in names]
    flat = [value.reshape(*value.shape[:2], -1) for value in values]
    squashed = np.tanh(np.concatenate(flat, axis=2))
    return np.concatenate([squashed, squashed**2], axis=2)


def largest_z(one, other):
    error = [x.var(axis=(0, 1)) / bulk_ess(x) for x in (one, other)]
    difference = one.mean(axis=(0, 1)) - other.mean(axis=(0, 1))
    return np.max(np.abs(difference) / np.sqrt(error[0] + error[1]))


@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
@pytest.mark.parametrize(
    "name",
    TWINS,
)
@pytest.mark.slow
def test_posterior_is_that_of_the_twin(name):
    model, twin, statistic = twins(name)
    mechanism = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=4.0)
    with jax.enable_x64(True):
        records = twin.sample_records(jr.key(3), twin.sample_prior(jr.key(2)), 30)
        total = np.asarray(jnp.sum(jax.vmap(statistic)(records), axis=0))
    release = na.Release(total, statistic, mechanism, neighbours="replace", num_records=30)
    found, expected = (na.fit(release, each, **QUIET) for each in (model, twin))
    assert found.attrs["method"] == "interweaving"
    names = sorted(set(model.supports) & set(twin.supports))
    assert len(names) >= len(model.supports) - (name == "regression-unknown")
    expected = features(expected, names)
    assert largest_z(features(found, names), expected) < MAX_Z
    noisier = mechanism.with_spread(30 * mechanism.spread())
    wrong = na.Release(total, statistic, noisier, neighbours="replace", num_records=30)
    assert largest_z(features(na.fit(wrong, model, **QUIET), names), expected) > MAX_Z


def directions():
    mean = numpyro.sample("mean", dist.Uniform(0.0, 1.0))
    numpyro.sample("x", dist.VonMises(mean, 2.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_without_a_noise_map_a_fit_takes_the_plain_sweep_and_says_so():
    model = na.NumpyroModel(directions, ["x"])
    release = na.Release(
        [9.0], na.Clamped("x", -3, 3), na.Laplace(1.0), neighbours="replace", num_records=12
    )
    with pytest.warns(UserWarning, match=r"record site 'x' \(VonMises\) has no noise map"):
        draws = na.fit(release, model, **QUIET)
    assert draws.attrs["method"] == "record_augmentation"
    assert "has no noise map" in draws.attrs["method_reason"]
    # Weighed draws of the model, which know no kernel.
    with jax.enable_x64(True):
        keys = jr.split(jr.key(4), 100_000)

        def draw(key):
            key_params, key_records = jr.split(key)
            params = model.sample_prior(key_params)
            total = jnp.sum(model.sample_records(key_records, params, 12)["x"])
            return params["mean"], release.mechanism.log_density(release.values, total[None])

        means, log_weights = jax.jit(jax.vmap(draw))(keys)
        weights = np.asarray(jax.nn.softmax(log_weights))
    expected = weights @ np.asarray(means)
    variance = weights**2 @ (np.asarray(means) - expected) ** 2
    row = na.summarize(draws).loc["mean"]
    error = np.sqrt(row["sd"] ** 2 / row["ess_bulk"] + variance)
    assert abs(row["mean"] - expected) < MAX_Z * error
    with pytest.raises(ValueError, match="'interweaving' needs a model with a noise map"):
        na.fit(release, model, method="interweaving", **QUIET)
    with pytest.raises(ValueError, match="model must have a noise map for maximize"):
        na.maximize(release, model, **QUIET)


def shifted():
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    shift = dist.transforms.AffineTransform(low, 2.0)
    numpyro.sample("x", dist.TransformedDistribution(dist.Exponential(1.0), shift))


@pytest.mark.parametrize(
    ("function", "params", "inside", "outside"),
    [(exponential, {"rate": 2.0}, 0.1, -0.1), (shifted, {"low": 1.0}, 1.1, 0.9)],
)
def test_records_outside_the_support_have_no_density(function, params, inside, outside):
    """NumPyro's own density goes on there, where a random walk would look."""
    model = na.NumpyroModel(function, ["x"])
    with jax.enable_x64(True):
        assert np.isfinite(model.log_record(params, {"x": inside}))
        assert model.log_record(params, {"x": outside}) == -np.inf


def test_a_checkpoint_is_refused(tmp_path):
    release = na.Release(
        [3.0], na.Clamped("x", 0, 1), na.Laplace(1.0), neighbours="replace", num_records=9
    )
    with pytest.raises(ValueError, match="checkpoint needs parts of numbers"):
        na.fit(
            release,
            na.NumpyroModel(normal_mean, ["x"]),
            checkpoint=tmp_path / "checkpoint",
            **QUIET,
        )


def scaled():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.handlers.scale(scale=3.0):
        numpyro.sample("x", dist.Normal(mean, 1.0))


def discrete_prior():
    k = numpyro.sample("k", dist.Poisson(3.0))
    numpyro.sample("x", dist.Normal(k, 1.0))


def moving_support():
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    numpyro.sample("x", dist.Uniform(0.0, top))


def moving_prior():
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    numpyro.sample("mean", dist.Uniform(0.0, top))
    numpyro.sample("x", dist.Normal(0.0, 1.0))


def both():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    x = numpyro.sample("x", dist.Normal(mean, 1.0))
    numpyro.sample("z", dist.Normal(x, 1.0))


def observed():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(mean, 1.0), obs=3.0)


@pytest.mark.parametrize(
    ("function", "records", "message"),
    [
        (normal_mean, ["y"], r"records must name sites, of \['mean', 'x'\], got 'y'"),
        (discrete_prior, ["x"], "prior site 'k' must be continuous, got"),
        (moving_support, ["x"], "the support of record site 'x' must not depend on other sites"),
        (moving_prior, ["x"], "the support of prior site 'mean' must not depend on other sites"),
        (both, ["x"], "prior site 'z' must not depend on the record: name it in records too"),
        (scaled, ["x"], "site 'x' must not be scaled"),
        (observed, ["x"], "site 'x' must not be observed: its value comes from the fit"),
    ],
)
def test_bad_models(function, records, message):
    with pytest.raises(ValueError, match=message):
        na.NumpyroModel(function, records)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"x": ("u", "v")}, "levels of 'x' must fit its site, one of 0, 1, 2, got"),
        ({"y": ("u", "v", "w")}, "levels of 'y' must fit its site, no record site, got"),
    ],
)
def test_levels_that_do_not_fit(levels, message):
    with pytest.raises(ValueError, match=message):
        na.NumpyroModel(categorical, ["x"], levels)


def test_a_column_that_no_site_has_is_named():
    release = na.Release(
        [3.0], na.Clamped("z", 0, 1), na.Laplace(1.0), neighbours="replace", num_records=9
    )
    with pytest.raises(ValueError, match="model must have the column 'z'"):
        na.fit(release, na.NumpyroModel(normal_mean, ["x"]), **QUIET)
