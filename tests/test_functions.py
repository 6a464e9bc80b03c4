"""Models, statistics and mechanisms out of plain functions."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy import stats as jstats

import noiseaware as na
from tests.laws.test_samplers import bernoulli_posterior_mean
from tests.statistical import MAX_Z

QUIET = {"seed": 4, "progress": False}


def z_of(draws, name, expected):
    row = na.summarize(draws).loc[name]
    return abs(row["mean"] - expected) / (row["sd"] / np.sqrt(row["ess_bulk"]))


# The documented example of the R package dapper: a noisy mean of 100 normal records.


def prior(key):
    return {"mean": 2 * jr.normal(key)}


def record(key, params):
    return {"x": params["mean"] + jr.normal(key)}


def posterior(key, params, records):
    precision = 1 / 4 + len(records["x"])
    return {"mean": jnp.sum(records["x"]) / precision + jr.normal(key) / jnp.sqrt(precision)}


def log_density(released, total):
    return jstats.norm.logpdf(released, total / 100, 1 / 3).sum()


NOISY_MEAN = na.Release(
    [-1.6],
    na.FunctionStatistic(lambda record: record["x"], ["mean"]),
    na.FunctionMechanism(log_density),
    neighbours="replace",
    num_records=100,
)


@pytest.mark.parametrize(
    "model",
    [
        na.FunctionModel(prior, record, posterior),
        pytest.param(
            na.FunctionModel(
                prior,
                record,
                log_prior=lambda params: jstats.norm.logpdf(params["mean"], 0, 2),
                log_record=lambda params, record: jstats.norm.logpdf(record["x"], params["mean"]),
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["posterior", "densities"],
)
def test_dappers_example_has_its_closed_form(model):
    draws = na.fit(NOISY_MEAN, model, draws=2_000, **QUIET)
    precision = 1 / 4 + 1 / (1 / 100 + 1 / 9)
    expected = -1.6 / (1 / 100 + 1 / 9) / precision
    assert z_of(draws, "mean", expected) < MAX_Z
    row = na.summarize(draws).loc["mean"]
    assert abs(row["sd"] * np.sqrt(precision) - 1) < MAX_Z / np.sqrt(2 * row["ess_bulk"])
    assert draws.attrs["method"] == "record_augmentation"
    assert draws.attrs["cost"] == "null"
    assert "posterior_predictive" not in draws.groups()


def bernoulli_model(**more):
    return na.FunctionModel(
        lambda key: {"p": jr.beta(key, 2.0, 3.0)},
        lambda key, params: {"x": jr.bernoulli(key, params["p"])},
        columns={"x": na.Binary()},
        log_prior=lambda params: jstats.beta.logpdf(params["p"], 2.0, 3.0),
        log_record=lambda params, record: jnp.log(
            jnp.where(record["x"] == 1, params["p"], 1 - params["p"])
        ),
        **more,
    )


@pytest.mark.parametrize(
    "supports",
    [None, pytest.param({"p": na.UnitInterval()}, marks=pytest.mark.slow)],
    ids=["edge", "interval"],
)
def test_a_built_in_release_and_a_model_of_functions(supports):
    """Without a support the slice meets the edges of [0, 1] as densities of 0."""
    release = na.Release(
        [7.0], na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=10
    )
    draws = na.fit(release, bernoulli_model(supports=supports), **QUIET)
    assert z_of(draws, "p", bernoulli_posterior_mean(na.Laplace(1.0), 7.0, 10)) < MAX_Z
    assert "posterior_predictive" in draws.groups()


def test_a_statistic_may_look_at_the_release():
    """g(s, sum_i |x_i - s|) for yes/no records: known from how many are 1, so enumerated."""
    released = np.array([0.7])

    def distance(record, released):
        return jnp.abs(record["x"] - released)

    def log_density(released, total):
        return -2.0 * jnp.sum(total)

    release = na.Release(
        released,
        na.FunctionStatistic(distance, ["p"], lower=0.0, upper=1.0, reads_release=True),
        na.FunctionMechanism(log_density, simulate=lambda key, total: total),
        neighbours="replace",
        num_records=10,
    )
    draws = na.fit(release, na.BetaBernoulli("x", 2, 3), **QUIET)

    class Enumerated:
        def log_density(self, released, ones):
            return -2.0 * float(ones[0] * 0.3 + (10 - ones[0]) * 0.7)

    assert z_of(draws, "probability", bernoulli_posterior_mean(Enumerated(), 0.7, 10)) < MAX_Z
    assert z_of(draws, "probability", 2 / 5) > MAX_Z, "the release teaches something"
    assert "posterior_predictive" not in draws.groups()


@pytest.mark.slow
def test_records_may_depend_on_known_columns():
    """Each record's chance is p^k with k known: enumerated over both groups."""
    model = na.FunctionModel(
        lambda key: {"p": jr.uniform(key)},
        lambda key, params, known: {"x": jr.bernoulli(key, params["p"] ** known["k"])},
        log_prior=lambda params: jnp.where((params["p"] > 0) & (params["p"] < 1), 0.0, -jnp.inf),
        log_record=lambda params, record: jnp.where(
            record["x"] == 1,
            record["k"] * jnp.log(params["p"]),
            jnp.log1p(-(params["p"] ** record["k"])),
        ),
        columns={"x": na.Binary()},
        known={"k": na.Whole()},
    )
    release = na.Release([3.0], na.Count("x"), na.Laplace(0.8), neighbours="replace", num_records=5)
    draws = na.fit(release, model, known={"k": [1, 1, 3, 3, 3]}, **QUIET)
    p = np.linspace(0, 1, 4_001)[1:-1]
    singles = np.stack([(1 - p) ** 2, 2 * p * (1 - p), p**2])
    q = p**3
    triples = np.stack([(1 - q) ** 3, 3 * q * (1 - q) ** 2, 3 * q**2 * (1 - q), q**3])
    weight = sum(
        singles[i] * triples[j] * np.exp(-abs(3.0 - i - j) / 0.8)
        for i in range(3)
        for j in range(4)
    )
    assert z_of(draws, "p", np.sum(weight * p) / np.sum(weight)) < MAX_Z


def test_curators_cannot_publish_by_functions():
    data = {"x": [0.0, 1.0]}
    statistic = na.FunctionStatistic(lambda record: record["x"], ["x"], lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="it names no columns"):
        na.publish(data, statistic, na.Laplace(1.0), neighbours="replace")
    with pytest.raises(ValueError, match="its cost is not known"):
        na.publish(data, na.Count("x"), na.FunctionMechanism(log_density), neighbours="replace")


def test_a_study_may_simulate_by_functions():
    """Not private, so it needs no cost; the noise is that of the function."""
    shifted = na.FunctionMechanism(log_density, simulate=lambda key, total: total + 5.0)
    data = {"x": [0.0, 1.0, 1.0]}
    release = na.simulate_release(0, data, na.Count("x"), shifted, neighbours="replace")
    assert release.values.tolist() == [7.0]
    assert release.cost is None


def test_bounds_of_a_function_give_its_cost():
    statistic = na.FunctionStatistic(lambda record: record["x"], ["x"], lower=-1.0, upper=2.0)
    options = {"neighbours": "replace", "num_records": 10}
    release = na.Release([1.0], statistic, na.Laplace(1.5), **options)
    assert release.cost.epsilon == pytest.approx(2.0, rel=1e-6)
    assert NOISY_MEAN.cost is None
    assert "cost: not known" in repr(NOISY_MEAN)


def test_a_release_of_functions_has_no_file(tmp_path):
    with pytest.raises(ValueError, match="FunctionStatistic has no name in the release format"):
        na.write(NOISY_MEAN, tmp_path / "release.json")
    assert not list(tmp_path.iterdir())


def test_a_model_needs_a_step_or_densities():
    with pytest.raises(ValueError, match="needs log_prior and log_record"):
        na.fit(NOISY_MEAN, na.FunctionModel(prior, record), **QUIET)
    with pytest.raises(ValueError, match="needs log_prior and log_record"):
        na.fit(
            NOISY_MEAN, na.FunctionModel(prior, record, posterior), params_step=na.NUTS(), **QUIET
        )
    with jax.enable_x64(True):
        assert na.FunctionModel(prior, record).columns == {"x": na.Real()}


def test_functions_have_no_checkpoint(tmp_path):
    model = na.Normal("x", na.NormalPrior(0.0, 1.0), 1.0)
    with pytest.raises(ValueError, match=r"checkpoint needs parts of numbers.*FunctionStatistic"):
        na.fit(NOISY_MEAN, model, checkpoint=tmp_path / "fit", **QUIET)


@pytest.mark.slow
def test_a_function_that_reads_a_global_is_compiled_again():
    """The same function, other numbers: what was compiled for the first must not serve both."""
    found = []
    for scale["of noise"] in (0.5, 50.0):
        release = na.Release(
            [10.0],
            na.Count("x"),
            na.FunctionMechanism(by_global),
            neighbours="replace",
            num_records=10,
        )
        draws = na.fit(release, na.BetaBernoulli("x", 2, 3), **QUIET)
        found.append(float(draws.posterior["probability"].mean()))
    assert found[0] - found[1] > 0.2


scale = {"of noise": 1.0}


def by_global(released, total):
    return -jnp.sum(jnp.abs(released - total)) / scale["of noise"]


def test_exactness_says_what_it_depends_on():
    draws = na.fit(NOISY_MEAN, na.FunctionModel(prior, record, posterior), draws=500, **QUIET)
    assert draws.attrs["exactness"] == (
        "exact if statistic and mechanism are those of the release and the model's functions "
        "belong together"
    )


def test_a_statistic_of_the_release_has_no_known_cost():
    statistic = na.FunctionStatistic(
        lambda record, released: record["x"], ["x"], lower=0.0, upper=1.0, reads_release=True
    )
    options = {"neighbours": "replace", "num_records": 10}
    assert na.Release([1.0], statistic, na.Gaussian(1.0), **options).cost is None
