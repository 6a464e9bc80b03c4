"""The analyst's front door: what ``fit`` returns, says and refuses."""

import json
import time
import warnings

import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware import chains, journeys
from noiseaware.samplers.proposals import from_model
from tests.statistical import MAX_Z

MODEL = na.BetaBernoulli("x", 2, 3)
QUIET = {"progress": False, "seed": 0}


def count_release(value=7.0, scale=1.0, **options):
    options = {"neighbours": "replace", "num_records": 10} | options
    return na.Release({"x": value}, na.Count("x"), na.Laplace(scale), **options)


@pytest.fixture(scope="module")
def draws():
    return na.fit(count_release(), MODEL, keep_records=5, **QUIET)


def exact_mean(value, scale, num_records=10, a=2, b=3):
    ones = np.arange(num_records + 1)
    weight = stats.betabinom.pmf(ones, num_records, a, b) * stats.laplace.pdf(value, ones, scale)
    return np.sum(weight * (a + ones) / (a + b + num_records)) / np.sum(weight)


@pytest.mark.parametrize("method", ["auto", "interweaving", "record_augmentation"])
@pytest.mark.parametrize(("value", "scale"), [(7.0, 1.0), (-2.0, 1.0), (4.2, 0.1)])
def test_posterior_is_the_enumerated_one(method, value, scale):
    draws = na.fit(count_release(value, scale), MODEL, method=method, **QUIET)
    row = na.summarize(draws).loc["probability"]
    standard_error = row["sd"] / np.sqrt(row["ess_bulk"])
    assert abs(row["mean"] - exact_mean(value, scale)) < MAX_Z * standard_error


def test_control_the_naive_posterior_is_not_it():
    """The check above sees the difference that the noise makes."""
    draws = na.fit(count_release(-2.0), MODEL, **QUIET)
    row = na.summarize(draws).loc["probability"]
    naive = (2 + 0) / (5 + 10)  # the release clipped to the valid range
    assert abs(row["mean"] - naive) > MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])


def test_groups_shapes_and_labels(draws):
    groups = {"posterior", "prior", "sample_stats", "observed_data", "posterior_predictive"}
    assert groups | {"imputed_records"} == set(draws.groups())
    assert draws.posterior["probability"].shape == (4, 1000)
    assert draws.observed_data["release"].values == [7.0]
    assert draws.posterior_predictive["release"].dims == ("chain", "draw", "sum")
    assert list(draws.posterior_predictive["sum"].values) == ["x"]
    assert draws.imputed_records["x"].shape == (4, 5, 10)
    assert set(np.unique(draws.imputed_records["x"])) <= {0.0, 1.0}


def test_attributes_say_how_the_draws_were_made(draws):
    attrs = draws.attrs
    assert attrs["exactness"] == "exact"
    assert attrs["method"] == "interweaving"
    assert attrs["noise"] == "external"
    assert json.loads(attrs["cost"]) == {"name": "PureDP", "epsilon": 1.0, "neighbours": "replace"}
    assert attrs["created_by"] == f"noiseaware {na.__version__}"
    ratio = json.loads(attrs["sd_ratio"])["probability"]
    expected = draws.posterior["probability"].std() / draws.prior["probability"].std()
    assert ratio == pytest.approx(float(expected), abs=2e-3)


def test_draws_survive_a_file(draws, tmp_path):
    import arviz

    draws.to_netcdf(tmp_path / "draws.nc")
    again = arviz.from_netcdf(tmp_path / "draws.nc")
    assert again.attrs["exactness"] == "exact"
    assert np.array_equal(again.posterior["probability"], draws.posterior["probability"])


def test_acceptance_statistics_respect_the_floor(draws):
    assert float(draws.sample_stats["min_log_ratio"].min()) >= -1.0 - 1e-9
    assert 0 < float(draws.sample_stats["acceptance_rate"].mean()) <= 1


def test_replicated_releases_have_the_prior_predictive_law_where_nothing_is_learned():
    draws = na.fit(count_release(5.0, 1e4), MODEL, **QUIET)
    noise = draws.posterior_predictive["release"].values.ravel() / 1e4
    assert stats.kstest(noise[::5], stats.laplace.cdf).pvalue > 1e-4
    assert json.loads(draws.attrs["sd_ratio"])["probability"] == pytest.approx(1, abs=0.05)


def test_imputed_records_follow_the_posterior_of_the_records():
    draws = na.fit(count_release(7.0, 0.5), MODEL, keep_records=500, draws=500, **QUIET)
    totals = draws.imputed_records["x"].sum("record").values.ravel()
    ones = np.arange(11)
    weight = stats.betabinom.pmf(ones, 10, 2, 3) * stats.laplace.pdf(7.0, ones, 0.5)
    expected = np.sum(ones * weight) / np.sum(weight)
    # Neighbouring data sets of a chain are correlated: half of them count.
    assert abs(totals.mean() - expected) < MAX_Z * totals.std() / np.sqrt(len(totals) / 2)


def test_the_same_seed_gives_the_same_draws_and_another_does_not():
    first, second, other = (
        na.fit(count_release(), MODEL, seed=seed, draws=100, progress=False).posterior
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first["probability"], second["probability"])
    assert not np.array_equal(first["probability"], other["probability"])


@pytest.mark.slow
def test_draws_do_not_depend_on_how_many_cores_there_are(monkeypatch):
    found = []
    for cores in (1, 2, 4):
        monkeypatch.setattr(journeys, "num_cores", lambda cores=cores: cores)
        draws = na.fit(count_release(), MODEL, draws=100, **QUIET)
        found.append(draws.posterior["probability"].values)
    assert np.allclose(found[0], found[1], rtol=1e-12)
    assert np.allclose(found[0], found[2], rtol=1e-12)


def test_chains_start_apart_from_the_prior():
    import jax

    with jax.enable_x64(True):
        release = count_release()
        problem = chains.Problem(
            MODEL, release.statistic, release.mechanism, release.values, from_model
        )
        keys = jax.random.key(0)[None]
        states = chains.start(keys, chains.stack([problem]), None, 10, 50, "interweaving").states
    start = np.asarray(states.params["probability"])[0]
    assert stats.kstest(start, stats.beta(2, 3).cdf).pvalue > 1e-4


def test_two_fits_of_one_shape_compile_once():
    """Other epsilon, data and prior: nothing compiles, so the rest is quick."""
    na.fit(count_release(num_records=11), MODEL, draws=100, **QUIET)
    begin = time.perf_counter()
    draws = na.fit(
        count_release(3.3, 0.4, num_records=11), na.BetaBernoulli("x", 5.0, 1.0), draws=100, **QUIET
    )
    elapsed = time.perf_counter() - begin
    assert elapsed - draws.attrs["sampling_seconds"] < 1.0  # compiling takes several seconds


def test_count_that_is_not_public_must_be_given():
    release = count_release(neighbours="add_remove", num_records=None)
    with pytest.raises(ValueError, match="num_records must be given: the release does not"):
        na.fit(release, MODEL, **QUIET)
    draws = na.fit(release, MODEL, num_records=10, draws=100, **QUIET)
    assert draws.attrs["num_records"] == 10


@pytest.mark.slow
def test_many_records_in_blocks_and_segments_give_the_enumerated_posterior():
    """Two segments, five of stand-ins, blocks: all that a small n leaves out."""
    num_records, scale = 5_000, 30.0
    draws = na.fit(count_release(1_500.0, scale, num_records=num_records), MODEL, **QUIET)
    assert draws.attrs["block_size"] > 1
    row = na.summarize(draws).loc["probability"]
    expected = exact_mean(1_500.0, scale, num_records=num_records)
    assert abs(row["mean"] - expected) < MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])
    # The sd tells the posterior from the naive one, whose mean is nearly the same.
    ones = np.arange(num_records + 1)
    weight = stats.betabinom.pmf(ones, num_records, 2, 3) * stats.laplace.pdf(1_500, ones, scale)
    means = (2 + ones) / (5 + num_records)
    within = means * (1 - means) / (6 + num_records)
    variance = np.average(within + (means - expected) ** 2, weights=weight)
    error = variance * np.sqrt(5 / row["ess_bulk"])  # kurtosis of a Laplace: up to 6
    assert abs(row["sd"] ** 2 - variance) < MAX_Z * error
    assert within[1_500] < variance - MAX_Z * error, "the control: noise ignored"
    replicated = draws.posterior_predictive["release"].values.ravel() / num_records
    spread = np.sqrt(np.var(replicated) / row["ess_bulk"])
    assert abs(np.mean(replicated) - expected) < MAX_Z * spread


def test_a_vague_prior_keeps_the_move_that_it_needs():
    """Seen from the prior the move is small; seen from the posterior it is all that mixes."""
    release = na.Release(
        {"x": 3e4}, na.Clamped("x", -1e4, 1e4), na.Laplace(1e3),
        neighbours="replace", num_records=100,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error", na.ConvergenceWarning)
        draws = na.fit(release, na.Normal("x", na.NormalPrior(0, 1e3), 1.0), **QUIET)
    assert draws.attrs["has_params_move"] == 1
    assert draws.attrs["sweeps_per_draw"] <= 4
    # T is n times the mean, within the noise of the release and 10 of the records.
    assert abs(draws.posterior["mean"].values.mean() - 300) < 5
    assert 10 < draws.posterior["mean"].values.std() < 20  # Laplace of scale 10: sd 14


def test_few_draws_end_in_a_warning_that_names_the_parameter():
    with pytest.warns(na.ConvergenceWarning, match=r"Worst: probability.*more draws"):
        na.fit(count_release(), MODEL, chains=2, draws=25, **QUIET)


def test_draws_too_few_to_judge_are_warned_of():
    with pytest.warns(na.ConvergenceWarning, match="R-hat nan"):
        na.fit(count_release(), MODEL, draws=2, **QUIET)


def test_a_default_fit_of_the_papers_regression_converges():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2)) + [0.9, -1.17]
    y = -1.795 + x @ [-2.889, -0.662] + rng.normal(size=100) * np.sqrt(2)
    statistic = na.RegressionMoments("y", ("a", "b"), dict.fromkeys("aby", (-10, 10)))
    model = na.LinearRegression(
        "y",
        ("a", "b"),
        coefficients=na.NormalPrior(0, 2),
        noise_stddev=np.sqrt(2),
        predictor_means=[0.9, -1.17],
        predictor_covariance=np.eye(2),
    )
    data = {"a": x[:, 0], "b": x[:, 1], "y": y}
    for epsilon in (0.1, 1.0, 10.0):
        noise = na.Laplace(statistic.jagr22_sensitivity_l1() / epsilon)
        release = na.simulate_release(1, data, statistic, noise, neighbours="replace")
        with warnings.catch_warnings():
            warnings.simplefilter("error", na.ConvergenceWarning)
            draws = na.fit(release, model, **QUIET)
        assert list(draws.posterior["coefficient"].values) == ["intercept", "a", "b"]


@pytest.mark.slow
def test_other_proposals_give_the_same_posterior():
    statistic = na.Clamped("x", -5, 5)
    model = na.Normal("x", na.NormalPrior(0, 2), 1.0)
    release = na.Release(
        {"x": 12.0}, statistic, na.Laplace(2.0), neighbours="replace", num_records=10
    )
    default, *others = [
        na.summarize(na.fit(release, model, proposal=proposal, **QUIET)).loc["mean"]
        for proposal in (None, na.RandomWalk({"x": 0.7}), na.CrankNicolson(0.5))
    ]
    for row in others:
        error = np.hypot(*(at["sd"] / np.sqrt(at["ess_bulk"]) for at in (default, row)))
        assert abs(default["mean"] - row["mean"]) < MAX_Z * error


def test_levels_of_probability_0_do_not_keep_warm_up_from_ending():
    """Two of them have no log ratio."""
    model = na.DirichletCategorical("x", 4, [0.001, 0.001, 0.001, 0.001])
    release = na.Release(
        [40.0, 0.3, 0.6, 0.1], na.Histogram("x", 4), na.Laplace(1.0),
        neighbours="replace", num_records=41,
    )  # fmt: skip
    draws = na.fit(release, model, draws=100, **QUIET)
    assert draws.attrs["sweeps_per_draw"] < 50


@pytest.mark.parametrize("concentration", [0.1, 0.25])
def test_a_vague_prior_whose_draws_round_to_the_edge_is_fitted(concentration):
    model = na.BetaBernoulli("x", concentration, concentration)
    draws = na.fit(count_release(), model, **QUIET)
    row = na.summarize(draws).loc["probability"]
    expected = exact_mean(7.0, 1.0, a=concentration, b=concentration)
    assert abs(row["mean"] - expected) < MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])


BAD = {
    "a column with the name of a parameter": (
        lambda: na.fit(
            na.Release(
                [1, 2], na.Histogram("draw", 2), na.Laplace(1.0),
                neighbours="replace", num_records=3,
            ),
            na.DirichletCategorical("draw", 2),
            **QUIET,
        ),
        "a column must not be called 'draw'",
    ),
    "no release": (lambda: na.fit(3, MODEL, **QUIET), "release must be a Release, got 3"),
    "no model": (lambda: na.fit(count_release(), 3, **QUIET), "model must be a Model, got 3"),
    "another column": (
        lambda: na.fit(count_release(), na.BetaBernoulli("z"), **QUIET),
        "model must have the column 'x' that Count reads, got BetaBernoulli with \\['z'\\]",
    ),
    "another kind of column": (
        lambda: na.fit(count_release(), na.Poisson("x", na.GammaPrior(1, 1)), **QUIET),
        "column 'x' must mean the same to both: Count reads 0 or 1, Poisson has a whole number",
    ),
    "other levels": (
        lambda: na.fit(
            na.Release(
                [1, 2], na.Histogram("x", ("u", "v")), na.Laplace(1.0),
                neighbours="replace", num_records=3,
            ),
            na.DirichletCategorical("x", ("u", "w")),
            **QUIET,
        ),
        "Histogram reads one of 'u', 'v', DirichletCategorical has one of 'u', 'w'",
    ),
    "n disagrees": (
        lambda: na.fit(count_release(), MODEL, num_records=11, **QUIET),
        "num_records must be the release's 10, got 11",
    ),
    "n zero": (
        lambda: na.fit(count_release(), MODEL, num_records=0, **QUIET),
        "num_records must be a positive integer, got 0",
    ),
    "seed": (
        lambda: na.fit(count_release(), MODEL, seed=-1),
        "seed must be an integer from 0 to 2\\^63 - 1, got -1",
    ),
    "seed too large": (
        lambda: na.fit(count_release(), MODEL, seed=2**63),
        "seed must be an integer from 0 to 2\\^63 - 1, got 9223372036854775808",
    ),
    "proposal": (
        lambda: na.fit(count_release(), MODEL, proposal=1.0, **QUIET),
        "proposal must be a Proposal such as RandomWalk, got 1.0",
    ),
    "checkpoint in no folder": (
        lambda: na.fit(count_release(), MODEL, checkpoint="no/such/file", **QUIET),
        "checkpoint must lie in a folder that exists, got no/such/file",
    ),
    "no draws": (
        lambda: na.summarize(count_release()),
        "draws must be what fit returns, got a Release",
    ),
    "impossible for the n that is given": (
        lambda: na.fit(
            count_release(900.0, 2.0, neighbours="add_remove", num_records=None),
            MODEL,
            num_records=90,
            **QUIET,
        ),
        "values must be possible for 90 records, got x = 900, where their sum lies between 0 and "
        "90 and the noise has the scale 2",
    ),
    "no intercept": (
        lambda: na.LinearRegression(
            "y", ("a",), coefficients=na.NormalPrior([0.0], [1.0]), noise_stddev=1.0,
            predictor_means=0.0, predictor_covariance=[[1.0]],
        ),
        "location of coefficients must be one number or 2, got shape \\(1,\\)",
    ),
    "shapes of a prior": (
        lambda: na.NormalPrior([1, 2], [1, 2, 3]),
        "location and scale must be numbers or of one shape, got \\(2,\\) and \\(3,\\)",
    ),
    "a number as text": (lambda: na.GammaPrior("1", 1), "shape must be numeric, got '1'"),
    "method": (
        lambda: na.fit(count_release(), MODEL, method="gibbs", **QUIET),
        "method must be one of .*, got 'gibbs'",
    ),
    "draws": (
        lambda: na.fit(count_release(), MODEL, draws=0, **QUIET),
        "draws must be a positive integer, got 0",
    ),
    "too many records kept": (
        lambda: na.fit(count_release(), MODEL, draws=10, keep_records=11, **QUIET),
        "keep_records must be an integer from 0 to draws = 10, got 11",
    ),
    "a walk on counts": (
        lambda: na.fit(count_release(), MODEL, proposal=na.RandomWalk({"x": 1.0}), **QUIET),
        "RandomWalk needs real columns, got 'x'",
    ),
    "Crank-Nicolson on counts": (
        lambda: na.fit(count_release(), MODEL, proposal=na.CrankNicolson(0.5), **QUIET),
        "CrankNicolson needs a model with normal noise, got BetaBernoulli",
    ),
    "a class of proposals": (
        lambda: na.fit(count_release(), MODEL, proposal=na.CrankNicolson, **QUIET),
        "proposal must be a Proposal such as RandomWalk, got <class",
    ),
    "a checkpoint of a function": (
        lambda: na.fit(count_release(), MODEL, proposal=from_model, checkpoint="no", **QUIET),
        "checkpoint needs a proposal that is an equinox Module",
    ),
    "one level": (
        lambda: na.DirichletCategorical("x", 1), "levels must be two or more, got 1",
    ),
    "walk without columns": (
        lambda: na.RandomWalk(0.3),
        "stddevs must map column to step, got 0.3",
    ),
    "step": (lambda: na.CrankNicolson(1.5), "step must be at most 1, got 1.5"),
    "prior": (lambda: na.BetaBernoulli("x", a=0), "a must be positive, got 0"),
    "concentration": (
        lambda: na.DirichletCategorical("x", 3, [1.0, 2.0]),
        "concentration must be one number or of shape \\(3,\\), got shape \\(2,\\)",
    ),
    "mean prior": (lambda: na.Normal("x", 3.0, 1.0), "mean must be a NormalPrior"),
    "rate prior": (lambda: na.Poisson("x", 3.0), "rate must be a GammaPrior, got 3.0"),
    "covariance": (
        lambda: na.LinearRegression(
            "y", ("a",), coefficients=na.NormalPrior(0, 1), noise_stddev=1.0,
            predictor_means=0.0, predictor_covariance=[[-1.0]],
        ),
        "predictor_covariance must be positive definite",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_seed_must_be_given():
    with pytest.raises(TypeError, match="seed"):
        na.fit(count_release(), MODEL)
