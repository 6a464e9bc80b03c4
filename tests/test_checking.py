"""Guard rails: what is wrong with somebody's model, statistic, proposal or step is said at once."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy import stats

import noiseaware as na
from noiseaware.samplers.proposals import from_model

QUIET = {"seed": 0, "progress": False}
LIKE_X = {
    "log_prior": lambda params: stats.norm.logpdf(params["m"]),
    "log_record": lambda params, record: stats.norm.logpdf(record["x"], params["m"]),
}


def prior(key):
    return {"m": jr.normal(key)}


def record(key, params):
    return {"x": params["m"] + jr.normal(key)}


def fit(model=None, statistic=None, mechanism=None, **options):
    release = na.Release(
        [1.0],
        statistic or na.Clamped("x", -3.0, 3.0),
        mechanism or na.Laplace(1.0),
        neighbours="replace",
        num_records=12,
    )
    model = model or na.Normal("x", na.NormalPrior(0.0, 1.0), 1.0)
    return na.fit(release, model, **QUIET | options)


def model_of(**functions):
    functions = {"prior": prior, "record": record} | LIKE_X | functions
    return na.FunctionModel(functions.pop("prior"), functions.pop("record"), **functions)


def branches(key, params):
    return {"x": jr.normal(key) if params["m"] > 0 else 0.0}


def uniform(key, params):
    return {"x": jr.uniform(key) * jnp.exp(params["m"])}


def log_uniform(params, record):
    return jnp.where(record["x"] < jnp.exp(params["m"]), -params["m"], -jnp.inf)


def infinite(key):
    return {"m": jnp.inf * jr.normal(key)}


def pairs(key, params):
    return {"x": params["m"] + jr.normal(key, (2,))}


def other_column(key, params):
    return {"y": params["m"] + jr.normal(key)}


def halves(key, params):
    return {"x": jnp.array(0.5)}


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"prior": infinite}, r"infinite\(key\) must return finite numbers, got 'm'"),
        ({"record": branches}, r"must be traceable by JAX"),
        (
            {"record": pairs},
            r"pairs\(key, params\) must make one number of column 'x', for ONE record",
        ),
        (
            {"record": uniform, "log_record": log_uniform},
            r"must not depend on params \[JAGR22, A2\]",
        ),
        (
            {"log_record": lambda params, record: jnp.log(-1.0 * record["x"] ** 2)},
            "log_record must be finite at a record that the law draws, got nan",
        ),
        (
            {"log_prior": lambda params: jnp.array([1.0, 2.0])},
            r"log_prior\(params\) must return one number, got shape \(2,\)",
        ),
        (
            {"log_prior": lambda params: jnp.log(params["m"] * 0)},
            r"log_prior\(params\) must be finite at draws of the prior, got -inf",
        ),
        (
            {"posterior": lambda key, params, records: {"mean": params["m"]}},
            r"posterior\(key, params, records\) must return params as it got them, 'm'",
        ),
        ({"record": halves, "columns": {"x": na.Binary()}}, "must return 0 or 1 for column 'x'"),
    ],
)
def test_wrong_models_are_refused(functions, message):
    with pytest.raises(ValueError, match=message):
        fit(model_of(**functions))


def test_a_record_without_a_column_that_the_statistic_reads():
    with pytest.raises(ValueError, match="model must have the column 'x' that Clamped reads"):
        fit(model_of(record=other_column))


def moving_support():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Uniform(m, m + 1.0))


def untraceable():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(m if m > 0 else 0.0, 1.0))


def discrete_prior():
    m = numpyro.sample("m", dist.Poisson(3.0))
    numpyro.sample("x", dist.Normal(m, 1.0))


def with_factor():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(m**2))
    numpyro.sample("x", dist.Normal(m, 1.0))


def prior_of_record():
    x = numpyro.sample("x", dist.Bernoulli(0.4))
    numpyro.sample("m", dist.Normal(x * 1.0, 1.5))


def other_site():
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Normal(m, 1.0))


@pytest.mark.parametrize(
    ("function", "records", "message"),
    [
        (moving_support, ["x"], "the support of record site 'x' must not depend on other sites"),
        (untraceable, ["x"], "must be traceable by JAX"),
        (untraceable, ["x"], r"^untraceable\(key"),
        (discrete_prior, ["x"], "prior site 'm' must be continuous, got Poisson"),
        (with_factor, ["x"], "'penalty' is a factor"),
        (prior_of_record, ["x"], "'m' must not depend on the record: name it in records too"),
        (other_site, ["z"], "model must have the column 'x' that Clamped reads"),
        (other_site, ["x"], "records must name sites"),
    ],
)
def test_wrong_numpyro_models_are_refused(function, records, message):
    with pytest.raises(ValueError, match=message):
        fit(na.NumpyroModel(function, records))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda record: jnp.log(-jnp.abs(record["x"])), r"must be finite, got sum = nan at record"),
        (lambda record: record["x"], "must stay inside its bounds, got sum"),
        (lambda record: record["z"], r"of a record with columns \['x'\] must read what is there"),
        (lambda record: jnp.array([1.0, 2.0]) * record["x"], "must return 1 numbers"),
        (lambda record: float(record["x"]), "must be traceable by JAX"),
        (lambda record: np.exp(record["x"]), "use jax.numpy and jax.scipy in place of NumPy"),
        (lambda record: record.x, "failed: 'dict' object has no attribute 'x'"),
    ],
)
def test_wrong_statistics_are_refused(function, message):
    statistic = na.FunctionStatistic(function, ["sum"], lower=-0.1, upper=0.1)
    with pytest.raises(ValueError, match=message):
        fit(statistic=statistic)


@pytest.mark.parametrize(
    ("log_density", "message"),
    [
        (lambda s, total: jnp.where(total[0] > 1e6, 0.0, -jnp.inf), r"positive \[JAGR22, A3\]"),
        (lambda s, total: s - total, r"must return one number, got shape \(1,\)"),
    ],
)
def test_wrong_mechanisms_are_refused(log_density, message):
    with pytest.raises(ValueError, match=message):
        fit(mechanism=na.FunctionMechanism(log_density))


def one_way(key, model, params, records):
    """Only upwards: no way back."""
    moved = {"x": records["x"] + jr.exponential(key, records["x"].shape)}
    return moved, jnp.full(records["x"].shape, -jnp.inf)


def without_correction(key, model, params, records):
    return records, jnp.full(records["x"].shape, jnp.nan)


def text(key, model, params, records):
    return {"y": records["x"]}, jnp.zeros(())


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (one_way, r"must be able to reach every record that the model can draw \[JAGR22, A4\]"),
        (without_correction, "must return a correction below infinity, got nan"),
        (text, r"must return the columns \['x'\], got \['y'\]"),
    ],
)
def test_wrong_proposals_are_refused(proposal, message):
    with pytest.raises(ValueError, match=message):
        fit(proposal=proposal)


@pytest.mark.parametrize(
    ("params_step", "message"),
    [
        (lambda key, params, records: {"mean": jnp.nan}, "must return finite numbers"),
        (lambda key, params, records: {"mean": jnp.zeros(2)}, "must return params as it got them"),
        (lambda key, params, records: jnp.zeros(()), "must return a dict of numbers"),
    ],
)
def test_wrong_steps_are_refused(params_step, message):
    with pytest.raises(ValueError, match=message):
        fit(params_step=params_step)


def test_a_support_narrower_than_the_prior_is_refused():
    with pytest.raises(ValueError, match="must draw params from their supports"):
        fit(model_of(supports={"m": na.Positive()}))


def test_a_prior_of_whole_numbers_needs_a_posterior():
    with pytest.raises(ValueError, match="'m' must be a real number, so that a kernel can move it"):
        model_of(prior=lambda key: {"m": jr.randint(key, (), 0, 5)})


def yes_or_no(log_record=None, **more):
    def log_probability(params, record):
        return jnp.where(record["x"] == 1, jnp.log(params["p"]), jnp.log1p(-params["p"]))

    return na.FunctionModel(
        lambda key: {"p": jr.beta(key, 0.01, 0.01)},
        lambda key, params, *known: {"x": jr.bernoulli(key, params["p"])},
        log_prior=lambda params: stats.beta.logpdf(params["p"], 0.01, 0.01),
        log_record=log_record or log_probability,
        columns={"x": na.Binary()},
        supports={"p": na.UnitInterval()},
        **more,
    )


COUNT = {"statistic": na.Count("x"), "mechanism": na.Laplace(2.0)}


def test_probabilities_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ValueError, match="must be the logarithm of probabilities that sum to 1"):
        fit(yes_or_no(lambda params, record: jnp.log(0.9) + 0.0 * record["x"]), **COUNT)


def test_known_columns_must_stay():
    def jitters(key, model, params, records):
        return records | {"k": records["k"] + 1.0}, jnp.zeros(())

    options = COUNT | {"known": {"k": range(12)}, "proposal": jitters}
    with pytest.raises(ValueError, match="must leave the known column 'k' as it is"):
        fit(yes_or_no(known={"k": na.Real()}), **options)


SHORT = {"draws": 20, "chains": 2, "sweeps_per_draw": 1}


@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_right_ones_pass():
    """Also a prior that often rounds to the edge, and discrete noise between whole numbers."""

    def again(key, model, params, records):
        return from_model(key, model, params, records)

    def discrete(released, total):
        is_whole = jnp.all(total == jnp.round(total))
        return jnp.where(is_whole, -jnp.sum(jnp.abs(released - total)), -jnp.inf)

    def in_pairs(key, params, records):
        return {"p": jnp.clip(jnp.mean(records["x"].reshape(6, 2)), 0.1, 0.9)}

    assert fit(model_of(), proposal=again, **SHORT).posterior["m"].shape == (2, 20)
    options = COUNT | {"mechanism": na.FunctionMechanism(discrete), "params_step": in_pairs}
    assert fit(yes_or_no(), **options, **SHORT).posterior["p"].shape == (2, 20)
