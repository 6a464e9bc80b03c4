"""The plain sweep with each kernel for params given records, also with a step ten times too large,
and what warm-up learns for them.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware import journeys, warming
from noiseaware.chains import Tuning
from noiseaware.convergence import bulk_ess
from noiseaware.elliptical_slice import Shape
from noiseaware.samplers.layout import Layout
from noiseaware.samplers.params_given_records import information_of
from noiseaware.warming import Limits
from tests.laws.chains import KERNELS
from tests.laws.members import CASES
from tests.laws.test_samplers import (
    bernoulli_draws,
    bernoulli_posterior_mean,
    joint_law,
    mechanism_for,
)
from tests.statistical import MAX_Z, z_score

each_kernel = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.xdist_group(name),
                *[pytest.mark.slow] * (name in ("slice", "hmc")),
            ],
        )
        for name in KERNELS
    ],
)


@each_kernel
@pytest.mark.parametrize(
    "factor", ["", *[pytest.param(factor, marks=pytest.mark.slow) for factor in (" x3", " x10")]]
)
def test_keeps_the_joint_law(kernel, factor):
    z, _ = joint_law(kernel + factor, "normal")
    assert z < MAX_Z


@pytest.mark.slow
@each_kernel
@pytest.mark.parametrize(
    "wrong",
    [{"told_factor": 1e6}, {"told_factor": 1.1}, {"told_factor": 0.9}, {"fault": 1}],
    ids=["accepts everything", "scale 10 % large", "scale 10 % small", "returns the prior"],
)
def test_control_a_wrong_kernel_leaves_the_joint_law(kernel, wrong):
    assert joint_law(kernel, "normal-mean")[0] < MAX_Z
    assert joint_law(kernel, "normal-mean", **wrong)[0] > MAX_Z


@pytest.mark.slow
@each_kernel
def test_reaches_the_enumerated_bernoulli_posterior(kernel):
    mechanism = mechanism_for(CASES["beta-bernoulli"][1])
    expected = bernoulli_posterior_mean(mechanism, 8, 10)
    assert abs(z_score(bernoulli_draws(kernel, mechanism, 8), expected)) < MAX_Z
    assert abs(z_score(bernoulli_draws(kernel, mechanism, 8, fault=1), expected)) > MAX_Z
    assert abs(z_score(bernoulli_draws(kernel, mechanism, 8, fault=2), expected)) > MAX_Z


@pytest.mark.parametrize(
    "method", ["record_augmentation", pytest.param("interweaving", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "params_step",
    [na.Slice(), *[pytest.param(KERNELS[name], marks=pytest.mark.slow) for name in KERNELS]],
)
def test_no_kernel_ends_at_the_edge(params_step, method):
    """A prior whose density is infinite where params round to 0 or 1: no way back from there."""
    model, count = na.BetaBernoulli("x", 0.2, 0.2), np.arange(6)
    release = na.Release([5.0], na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=5)
    options = {"seed": 5, "progress": False, "method": method, "draws": 2_000}
    draws = na.fit(release, model, params_step=params_step, **options)
    weight = stats.betabinom.pmf(count, 5, 0.2, 0.2) * np.exp(-np.abs(5.0 - count))
    found = draws.posterior["probability"].values[..., None] < 0.9
    expected = weight @ stats.beta.cdf(0.9, 0.2 + count, 5.2 - count) / weight.sum()
    error = found.std() / np.sqrt(bulk_ess(found.astype(float))[0])
    assert abs(found.mean() - expected) < MAX_Z * error


def test_information_is_that_of_the_closed_form():
    """Of a mean with prior N(1, 2^2) and 7 records of variance 1.5^2, in units of the shape."""
    model = na.Normal("x", na.NormalPrior(1.0, 2.0), 1.5)
    params, shape = {"mean": jnp.array(0.3)}, Shape(np.array([5.0]), np.array([[0.7]]))
    records = model.sample_records(jr.key(0), params, 7)
    for layout in (Layout(), Layout(segment_size=3)):
        found = information_of(model, params, records, shape, layout)
        assert np.allclose(found, 0.7**2 * (1 / 2.0**2 + 7 / 1.5**2), rtol=1e-10)


def test_scale_is_the_inverse_of_the_mean_information():
    shape = Shape(np.zeros((1, 2)), np.array([[[2.0, 0.0], [1.0, 3.0]]]))
    of_chains = np.array([[[[4.0, 1.0], [1.0, 3.0]], [[6.0, 1.0], [1.0, 5.0]], [[np.nan] * 2] * 2]])
    factor = warming.params_cholesky(shape, of_chains)[0]
    whitened = np.linalg.inv(shape.cholesky[0])
    expected = np.linalg.inv(whitened.T @ np.array([[5.0, 1.0], [1.0, 4.0]]) @ whitened)
    assert np.allclose(factor @ factor.T, expected)
    # Never wider than the private posterior, whatever the curvature.
    factor = warming.params_cholesky(shape, -of_chains[:, :2])[0]
    assert np.allclose(factor @ factor.T, shape.cholesky[0] @ shape.cholesky[0].T)


@pytest.mark.parametrize(("rate", "grows"), [(1.0, True), (0.2, False)])
def test_the_step_goes_where_its_rate_says(rate, grows):
    rng = np.random.default_rng(0)
    free, moves = rng.normal(size=(1, 4, 50, 1)), np.full((1, 4, 50, 3), rate)
    tuning = Tuning(Shape(np.zeros((1, 1)), np.ones((1, 1, 1))), 1, 1)
    limits = Limits(has_fixed_sweeps=False, all_stand_in=1, target_rate=0.8)
    lesson = warming.learn(free, moves, tuning, False, limits, np.full((1, 4, 1, 1), 25.0))
    assert (lesson.tuning.step_size > 1) == grows
    assert np.allclose(lesson.tuning.cholesky, 0.2)
    unasked = warming.learn(free, moves, tuning, False, limits._replace(target_rate=None))
    assert unasked.tuning.step_size == 1.0


def count_release(value=7.0):
    return na.Release([value], na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=10)


def own_kernel(key, params, records):
    ones = jnp.sum(records["x"])
    return {"probability": jr.beta(key, 2 + ones, 3 + len(records["x"]) - ones)}


@pytest.mark.parametrize(
    ("params_step", "exactness"),
    [
        (own_kernel, "exact if the params step leaves params given records invariant"),
        pytest.param(na.Metropolis(), "exact", marks=pytest.mark.slow),
        pytest.param(na.NUTS(), "exact", marks=pytest.mark.slow),
        pytest.param(na.HMC(), "exact", marks=pytest.mark.slow),
    ],
    ids=["function", "metropolis", "nuts", "hmc"],
)
@pytest.mark.parametrize(
    "method", ["record_augmentation", pytest.param("interweaving", marks=pytest.mark.slow)]
)
def test_a_fit_takes_any_of_them(params_step, exactness, method):
    model = na.BetaBernoulli("x", 2, 3)
    options = {"seed": 5, "progress": False, "method": method}
    draws = na.fit(count_release(), model, params_step=params_step, **options)
    row = na.summarize(draws).loc["probability"]
    expected = bernoulli_posterior_mean(na.Laplace(1.0), 7.0, 10)
    assert abs(row["mean"] - expected) < MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])
    assert draws.attrs["exactness"] == exactness


def test_control_a_wrong_function_gives_a_wrong_posterior():
    def wrong(key, params, records):
        return {"probability": jr.beta(key, 2.0, 3.0)}

    options = {"seed": 5, "progress": False, "method": "record_augmentation"}
    draws = na.fit(count_release(), na.BetaBernoulli("x", 2, 3), params_step=wrong, **options)
    row = na.summarize(draws).loc["probability"]
    expected = bernoulli_posterior_mean(na.Laplace(1.0), 7.0, 10)
    assert abs(row["mean"] - expected) > MAX_Z * row["sd"] / np.sqrt(row["ess_bulk"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_a_fit_with_a_learned_step_is_resumed_to_the_same_draws(tmp_path, monkeypatch):
    path, options = tmp_path / "fit", {"seed": 1, "draws": 60, "progress": False}
    options |= {"params_step": na.Metropolis()}
    whole = na.fit(count_release(), na.BetaBernoulli("x"), **options)
    monkeypatch.setattr("noiseaware.running.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("noiseaware.running.MAX_SHARE_OF_TIME", 1.0)
    advance, calls = journeys._Crew.advance, []

    def interrupted(crew, *args):
        calls.append(args)
        if len(calls) == 4:
            raise RuntimeError("stopped")
        return advance(crew, *args)

    with monkeypatch.context() as patch:
        patch.setattr(journeys._Crew, "advance", interrupted)
        with pytest.raises(RuntimeError, match="stopped"):
            na.fit(count_release(), na.BetaBernoulli("x"), checkpoint=path, **options)
    resumed = na.fit(count_release(), na.BetaBernoulli("x"), checkpoint=path, **options)
    assert resumed.attrs["is_resumed"]
    assert resumed.posterior.equals(whole.posterior)


def test_what_is_no_step_is_refused():
    for wrong in ("nuts", na.NUTS, 3):
        with pytest.raises(ValueError, match="params_step must be a function or a kernel"):
            na.fit(count_release(), na.BetaBernoulli("x"), seed=0, params_step=wrong)
    with pytest.raises(ValueError, match="checkpoint needs a params_step"):
        na.fit(
            count_release(), na.BetaBernoulli("x"), seed=0, params_step=own_kernel, checkpoint="x"
        )
