"""Maximum likelihood and posterior modes, against likelihoods that are computed exactly."""

import functools
import itertools
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import optimize, special, stats

import noiseaware as na
from noiseaware import maximizing
from noiseaware.models.support import unconstrain
from noiseaware.samplers.layout import Layout
from noiseaware.samplers.record_augmentation import sweep_records
from tests.laws.chains import LAYOUT
from tests.laws.members import CASES, known_for, known_levels
from tests.statistical import MAX_Z, z_score

pytestmark = pytest.mark.optimized

NUM_RECORDS = 50
MODEL = na.BetaBernoulli("x", 2, 3)
QUIET = {"progress": False, "seed": 0}
PRECISION = 0.02  # the default: errors of 2 % of a standard error
MAX_BIAS = PRECISION / 2  # of a standard error by differences, whose offset^2 is precision / 4


def count_release(value, mechanism, **options):
    options = {"neighbours": "replace", "num_records": NUM_RECORDS} | options
    return na.Release({"x": value}, na.Count("x"), mechanism, **options)


def log_noise(mechanism, differences):
    spread = float(mechanism.spread())
    if isinstance(mechanism, na.Gaussian):
        return stats.norm.logpdf(differences, scale=spread)
    return -np.abs(differences) / spread  # up to a constant, discrete or not


def count_log_density(probability, value, mechanism, target="likelihood", n=NUM_RECORDS):
    """Of the release, by enumerating the sum."""
    ones = np.arange(n + 1)
    terms = stats.binom.logpmf(ones, n, probability) + log_noise(mechanism, value - ones)
    prior = stats.beta.logpdf(probability, 2, 3) if target == "posterior" else 0.0
    return special.logsumexp(terms) + prior


def exact_maximum(log_density, start, step=1e-4):
    """The maximum, and the standard errors from numerical second derivatives."""
    found = optimize.minimize(
        lambda x: -log_density(x), start, method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-13, "maxiter": 10_000},
    )  # fmt: skip
    at, size = found.x, len(found.x)
    hessian = np.empty((size, size))
    for i, j in itertools.product(range(size), repeat=2):
        a, b = step * np.eye(size)[[i, j]]
        corners = [log_density(at + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
        hessian[i, j] = sum(corners) / (4 * step**2)
    return at, np.linalg.inv(-hessian)


@functools.cache
def exact_count_maximum(value, mechanism_name, spread, target):
    mechanism = getattr(na, mechanism_name)(spread)

    def log_density(x):
        if not 0 < x[0] < 1:
            return -np.inf
        return count_log_density(x[0], value, mechanism, target)

    maximum, covariance = exact_maximum(log_density, [0.3])
    return maximum[0], np.sqrt(covariance[0, 0])


def assert_agrees(estimate, standard_error, monte_carlo_error, relative_error, exact, exact_error):
    assert abs(estimate - exact) < MAX_Z * monte_carlo_error
    assert monte_carlo_error <= 1.2 * PRECISION * exact_error
    assert relative_error <= PRECISION
    assert abs(standard_error / exact_error - 1) < MAX_Z * relative_error + MAX_BIAS


def numbers(found, name, index=()):
    of = (found.params, found.standard_errors, found.monte_carlo_errors)
    return (*(float(values[name][index]) for values in of), found.relative_error)


# From all information missing to none: the noise over that of 50 records is 30 to 0.003.
MECHANISMS = [("Laplace", 5.0)]
MORE_MECHANISMS = [
    ("Laplace", 0.01), ("Laplace", 1.0), ("Laplace", 100.0),
    ("Gaussian", 1.0), ("Gaussian", 30.0), ("DiscreteLaplace", 0.2), ("DiscreteLaplace", 20.0),
]  # fmt: skip
in_group = pytest.mark.xdist_group


@pytest.mark.parametrize("target", ["likelihood", "posterior"])
@pytest.mark.parametrize(
    ("name", "spread"),
    [
        *[pytest.param(*each, marks=in_group("maximize Laplace")) for each in MECHANISMS],
        *[pytest.param(*each, marks=pytest.mark.slow) for each in MORE_MECHANISMS],
    ],
)
@pytest.mark.parametrize("value", [17.0, 1.0])
def test_maximum_is_that_of_the_enumerated_density(value, name, spread, target):
    release = count_release(value, getattr(na, name)(spread))
    exact = exact_count_maximum(value, name, spread, target)
    found = na.maximize(release, MODEL, target=target, **QUIET)
    assert_agrees(*numbers(found, "probability"), *exact)


@in_group("maximize Laplace")
def test_control_other_noise_and_no_noise_have_other_maxima():
    """The check above sees a noise scale of 1 told as 2, and the noisy count taken for true."""
    found = na.maximize(count_release(1.0, na.Laplace(2.0)), MODEL, **QUIET)
    estimate, _, error, _ = numbers(found, "probability")
    right, _ = exact_count_maximum(1.0, "Laplace", 1.0, "likelihood")
    assert abs(estimate - right) > MAX_Z * error
    assert abs(estimate - 1.0 / NUM_RECORDS) > MAX_Z * error
    # Where the maximum is nearly the same, the standard error is not.
    found = na.maximize(count_release(17.0, na.Laplace(5.0)), MODEL, **QUIET)
    _, standard_error, _, relative_error = numbers(found, "probability")
    naive = np.sqrt(0.34 * 0.66 / NUM_RECORDS)
    assert abs(standard_error / naive - 1) > MAX_Z * relative_error + MAX_BIAS


@in_group("maximize Laplace")
@pytest.mark.parametrize("value", [-3.0, 52.0, 0.0])
def test_no_maximum_inside_the_support_is_an_error_that_names_the_posterior(value):
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"no maximum inside the support.* target='posterior'"):
        na.maximize(count_release(value, na.Laplace(1.0)), MODEL, **QUIET)
    assert time.perf_counter() - begin < 60
    found = na.maximize(count_release(value, na.Laplace(1.0)), MODEL, target="posterior", **QUIET)
    exact = exact_count_maximum(value, "Laplace", 1.0, "posterior")
    assert_agrees(*numbers(found, "probability"), *exact)


@pytest.mark.slow
def test_a_likelihood_that_says_nothing_is_found_or_refused():
    """Both have a standard error twice the length of the support. The second has its maximum at
    0.01, and the log-likelihood is 0.01 less in the middle of the posterior, where the search is.
    """
    found = na.maximize(count_release(17.0, na.Gaussian(100.0)), MODEL, **QUIET)
    exact = exact_count_maximum(17.0, "Gaussian", 100.0, "likelihood")
    assert_agrees(*numbers(found, "probability"), *exact)
    with pytest.raises(ValueError, match="or is too flat to show one"):
        na.maximize(count_release(1.0, na.Gaussian(100.0)), MODEL, **QUIET)


@in_group("maximize Laplace")
def test_a_flat_prior_does_not_help_where_there_is_no_maximum():
    flat = na.BetaBernoulli("x", 1, 1)
    with pytest.raises(ValueError, match=r"the posterior has no maximum inside.* use fit"):
        na.maximize(count_release(-3.0, na.Laplace(1.0)), flat, target="posterior", **QUIET)


@in_group("maximize Laplace")
def test_the_seed_settles_the_result_and_another_release_compiles_nothing():
    first = na.maximize(count_release(9.0, na.Laplace(2.0)), MODEL, **QUIET)
    begin = time.perf_counter()
    again = na.maximize(count_release(9.0, na.Laplace(2.0)), MODEL, **QUIET)
    other = na.maximize(
        count_release(11.0, na.Laplace(3.0)), na.BetaBernoulli("x", 4, 1), progress=False, seed=1
    )
    assert time.perf_counter() - begin < 5  # compiling takes longer
    assert again.params == first.params
    assert other.params != first.params


@in_group("maximize Laplace")
def test_a_sharper_precision_is_reached():
    found = na.maximize(count_release(17.0, na.Laplace(5.0)), MODEL, precision=0.004, **QUIET)
    estimate, standard_error, error, relative_error = numbers(found, "probability")
    exact, exact_error = exact_count_maximum(17.0, "Laplace", 5.0, "likelihood")
    assert max(error / standard_error, relative_error) <= 0.004
    assert abs(estimate - exact) < MAX_Z * error
    assert abs(standard_error / exact_error - 1) < MAX_Z * relative_error + 0.002


@pytest.mark.slow
@in_group("maximize Laplace")
def test_monte_carlo_errors_are_those_over_seeds():
    """With the fewest chains. Errors half or twice as large would show."""
    exact, exact_error = exact_count_maximum(17.0, "Laplace", 5.0, "likelihood")
    release = count_release(17.0, na.Laplace(5.0))
    misses = []
    for seed in range(50):
        found = na.maximize(release, MODEL, chains=16, seed=seed, progress=False)
        estimate, standard_error, error, relative_error = numbers(found, "probability")
        misses.append(
            [(estimate - exact) / error, (standard_error / exact_error - 1) / relative_error]
        )
    spread = np.sqrt(np.mean(np.square(misses), axis=0))
    assert np.all((spread > 0.75) & (spread < 1.4)), spread


def interrupted_fit(*args, **settings):
    draws = na.fit(*args, **settings)
    draws.attrs["is_complete"] = 0
    return draws


@in_group("maximize Laplace")
def test_an_interrupt_of_the_first_fit_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(maximizing, "fit", interrupted_fit)
    with pytest.raises(KeyboardInterrupt):
        na.maximize(count_release(17.0, na.Laplace(1.0)), MODEL, **QUIET)


@in_group("maximize Laplace")
def test_it_prints_as_a_table():
    found = na.maximize(count_release(17.0, na.Laplace(1.0)), MODEL, **QUIET)
    lines = str(found).splitlines()
    assert lines[0].startswith("Maximum of the likelihood, standard errors +- ")
    assert lines[1].split() == ["estimate", "standard_error", "monte_carlo_error"]
    assert lines[2].split()[0] == "probability"
    assert found.table().loc["probability", "estimate"] == found.params["probability"]


@eqx.filter_jit
def weighed_and_plain_scores(mechanism, released, probability, num_records, layout):
    """Both estimates of the score in the probability, a chain each."""
    params = {"probability": probability}
    sweep = functools.partial(
        sweep_records, params=params, model=MODEL, contribution=na.Count("x"), layout=layout,
        log_density=functools.partial(mechanism.log_density, released),
    )  # fmt: skip
    variance = probability * (1 - probability)

    def tally(current, proposed, rejection):
        return rejection @ (current["x"] - proposed["x"]) / variance

    def chain(key):
        key_start, key_burn, key_last = jr.split(key, 3)
        records, _ = jax.lax.scan(
            lambda records, key: (sweep(key, records=records)[0], None),
            MODEL.sample_records(key_start, params, num_records),
            jr.split(key_burn, 40),
        )
        plain = jnp.sum(records["x"] - probability) / variance
        return sweep(key_last, records=records, tally=tally)[2], plain

    return jax.vmap(chain)(jr.split(jr.key(0), 20_000))


@pytest.mark.parametrize("layout", [Layout(), LAYOUT], ids=["plain", "blocks and segments"])
@pytest.mark.parametrize("scale", [0.5, 3.0, 50.0])
def test_rejections_weigh_the_score_of_the_enumerated_likelihood(layout, scale):
    n, probability, value, step = 10, 0.35, 6.2, 1e-5
    mechanism = na.Laplace(scale)
    above, below = (
        count_log_density(probability + s * step, value, mechanism, n=n) for s in (1, -1)
    )
    exact = (above - below) / (2 * step)
    with jax.enable_x64(True):
        args = (mechanism, np.array([value]), np.asarray(probability), n, layout)
        weighed, plain = map(np.asarray, weighed_and_plain_scores(*args))
    assert abs(z_score(weighed, exact)) < MAX_Z
    assert abs(z_score(plain, exact)) < MAX_Z
    assert scale < 50 or np.var(weighed) < np.var(plain) / 100
    assert abs(z_score(weighed, 0.9 * exact)) > MAX_Z, "the control: a tenth off"


@pytest.mark.slow
@in_group("maximize normal")
@pytest.mark.parametrize("target", ["likelihood", "posterior"])
@pytest.mark.parametrize("stddev", [0.5, 30.0])
def test_a_normal_mean_with_normal_noise_has_a_closed_form(stddev, target):
    n, prior_mean, prior_sd, sd = 20, 1.0, 2.0, 1.5
    model = na.Normal("x", na.NormalPrior(prior_mean, prior_sd), sd)
    release = na.Release(
        {"x": 44.0}, na.Clamped("x", -50, 50), na.Gaussian(stddev),
        neighbours="replace", num_records=n,
    )  # fmt: skip
    found = na.maximize(release, model, target=target, **QUIET)
    precision = n**2 / (n * sd**2 + stddev**2)
    shift = precision * 44.0 / n
    if target == "posterior":
        precision, shift = precision + prior_sd**-2, shift + prior_mean / prior_sd**2
    assert_agrees(*numbers(found, "mean"), shift / precision, precision**-0.5)


@pytest.mark.slow
@in_group("maximize categorical")
@pytest.mark.parametrize("target", ["likelihood", "posterior"])
def test_probabilities_of_three_levels_are_those_of_the_enumerated_tables(target):
    n, concentration, values = 12, np.array([1.5, 2.0, 3.0]), np.array([5.1, 2.4, 3.9])
    scale = np.array([1.0, 2.0, 1.5])
    release = na.Release(
        values, na.Histogram("x", ("u", "v", "w")), na.Laplace(scale),
        neighbours="replace", num_records=n,
    )  # fmt: skip
    model = na.DirichletCategorical("x", ("u", "v", "w"), concentration)
    tables = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)])
    log_g = -np.sum(np.abs(values - tables) / scale, axis=1)

    def log_density(x):
        p = np.array([*x, 1 - np.sum(x)])
        if np.any(p <= 0):
            return -np.inf
        prior = stats.dirichlet.logpdf(p, concentration) if target == "posterior" else 0.0
        return special.logsumexp(stats.multinomial.logpmf(tables, n, p) + log_g) + prior

    first_two, covariance = exact_maximum(log_density, [0.4, 0.2])
    to_three = np.array([[1, 0], [0, 1], [-1, -1]])
    errors = np.sqrt(np.diag(to_three @ covariance @ to_three.T))
    found = na.maximize(release, model, target=target, **QUIET)
    for index, exact in enumerate([*first_two, 1 - np.sum(first_two)]):
        assert_agrees(*numbers(found, "probabilities", (index,)), exact, errors[index])
    assert list(found.table().index) == [f"probabilities[{level}]" for level in "uvw"]


@pytest.mark.slow
@in_group("maximize categorical")
def test_a_level_with_a_negative_count_has_no_maximum_inside_the_simplex():
    levels = ("never", "former", "daily")
    release = na.Release(
        [61.3, 18.4, -1.8], na.Histogram("smokes", levels), na.Laplace(2.0),
        neighbours="replace", num_records=80,
    )  # fmt: skip
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"no maximum inside the support.* target='posterior'"):
        na.maximize(release, na.DirichletCategorical("smokes", levels), **QUIET)
    assert time.perf_counter() - begin < 120


@pytest.mark.slow
@pytest.mark.parametrize("target", ["likelihood", "posterior"])
@pytest.mark.parametrize("factor", [0.3, 1.0])
def test_a_normal_mean_and_stddev_are_those_of_the_integrated_likelihood(factor, target):
    """Without clamping, sum x and sum x^2 are an independent normal and chi-squared."""
    n, values, stddevs = 30, np.array([36.0, 105.0]), factor * np.array([6.0, 25.0])
    model = na.Normal("x", na.NormalPrior(1.0, 1.0), na.StddevPrior(1.5, 5.0))
    release = na.Release(
        values, na.Clamped("x", -40, 40, ("x", "x^2")), na.Gaussian(stddevs),
        neighbours="replace", num_records=n,
    )  # fmt: skip
    e, e_weights = np.polynomial.hermite_e.hermegauss(120)
    u, u_weights = np.polynomial.legendre.leggauss(400)
    chi_squared = stats.chi2.ppf((u + 1) / 2, n - 1)

    def log_density(x):
        mean, stddev = x
        if stddev <= 0:
            return -np.inf
        sums = n * mean + np.sqrt(n) * stddev * e[:, None]
        squares = sums**2 / n + stddev**2 * chi_squared
        log_g = stats.norm.logpdf(values[0], sums, stddevs[0]) + stats.norm.logpdf(
            values[1], squares, stddevs[1]
        )
        log_weights = np.log(e_weights / np.sum(e_weights))[:, None] + np.log(u_weights / 2)
        log_prior = stats.norm.logpdf(mean, 1.0, 1.0) + (
            stats.invgamma.logpdf(stddev**2, 2.5, scale=5.0 * 1.5**2 / 2) + np.log(2 * stddev)
        )
        prior = log_prior if target == "posterior" else 0.0
        return special.logsumexp(log_g + log_weights) + prior

    exact, covariance = exact_maximum(log_density, [1.2, 1.4], step=1e-3)
    errors = np.sqrt(np.diag(covariance))
    found = na.maximize(release, model, target=target, **QUIET)
    assert_agrees(*numbers(found, "mean"), exact[0], errors[0])
    assert_agrees(*numbers(found, "stddev"), exact[1], errors[1])


@pytest.mark.slow
def test_chains_that_hardly_mix_are_told_of():
    """Little noise on two sums that tie all records together: one record alone can hardly move."""
    release = na.Release(
        [36.0, 105.0], na.Clamped("x", -40, 40, ("x", "x^2")), na.Gaussian([0.03, 5.0]),
        neighbours="replace", num_records=30,
    )  # fmt: skip
    model = na.Normal("x", na.NormalPrior(1.0, 1.0), na.StddevPrior(1.5, 5.0))
    with pytest.warns(na.ConvergenceWarning, match="chains of records mix too slowly"):
        na.maximize(release, model, precision=0.2, **QUIET)


@eqx.filter_jit
def plain_scores(key, model, release, params, known, num_chains=500, num_sweeps=300):
    """By the identities as they stand: the posterior's score at unconstrained params, a row a
    chain [Fisher], and the diagonal of its information, complete less missing [Louis].
    """
    free, constrain = unconstrain(model.supports, params)

    def log_complete(free, records):
        params = constrain(free)[0]
        log_records = jax.vmap(model.log_record, in_axes=(None, 0))(params, records)
        return jnp.sum(log_records) + model.log_prior(params)

    def chain(key):
        key_start, key_sweeps = jr.split(key)
        start = model.sample_records(key_start, params, release.num_records, known)

        def advance(index, carry):
            records, sum_of_scores, sum_of_squares = carry
            records, _, _ = sweep_records(
                jr.fold_in(key_sweeps, index), params, records, model=model,
                contribution=release.statistic,
                log_density=functools.partial(release.mechanism.log_density, release.values),
            )  # fmt: skip
            score = jnp.where(index >= num_sweeps // 3, jax.grad(log_complete)(free, records), 0.0)
            return records, sum_of_scores + score, sum_of_squares + score**2

        zeros = jnp.zeros_like(free)
        records, *sums = jax.lax.fori_loop(0, num_sweeps, advance, (start, zeros, zeros))
        complete = -jnp.diagonal(jax.hessian(log_complete)(free, records))
        return *(each / (num_sweeps - num_sweeps // 3) for each in sums), complete

    scores, squares, complete = jax.vmap(chain)(jr.split(key, num_chains))
    missing = jnp.mean(squares, axis=0) - jnp.mean(scores, axis=0) ** 2
    return scores, jnp.mean(complete, axis=0) - missing


SCORED = ("beta-bernoulli", "normal", "normal-redacted", "exponential", "regression", "logistic")
LONG = ("regression", "logistic")  # with 100 records they take minutes each


@pytest.mark.slow
@pytest.mark.parametrize("case", SCORED)
def test_the_score_vanishes_at_the_mode(case):
    """By other identities and random numbers. About a standard error away it does not."""
    model, statistic = CASES[case]
    mechanism = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=2.0)
    size, precision = (40, 0.1) if case in LONG else (100, PRECISION)
    known = known_for(model, size)
    with jax.enable_x64(True):
        params = model.sample_prior(jr.key(3))
        records = model.sample_records(jr.key(4), params, size, known)
        total = jnp.sum(jax.vmap(statistic)(records), axis=0)
        values = np.asarray(mechanism.simulate(jr.key(5), total))
    release = na.Release(values, statistic, mechanism, neighbours="replace", num_records=size)
    found = na.maximize(
        release, model, target="posterior", known=known_levels(model, size), precision=precision,
        **QUIET,
    )  # fmt: skip
    with jax.enable_x64(True):
        scores, information = map(
            np.asarray, plain_scores(jr.key(6), model, release, found.params, known)
        )
        free, constrain = unconstrain(model.supports, jax.tree.map(jnp.asarray, found.params))
        beside, _ = constrain(free + 1 / np.sqrt(information))
        scores_beside, _ = map(np.asarray, plain_scores(jr.key(6), model, release, beside, known))
    # The maximum's own error, a part of a standard error, moves the score by that of its sd.
    sampling = np.std(scores, axis=0) / np.sqrt(len(scores))
    error = np.hypot(sampling, precision * np.sqrt(information))
    assert np.all(information > 0)
    assert np.all(np.abs(np.mean(scores, axis=0)) < MAX_Z * error)
    assert np.max(np.abs(np.mean(scores_beside, axis=0)) / error) > MAX_Z, "the control"


BAD = {
    "no release": (lambda: na.maximize(3, MODEL, **QUIET), "release must be a Release, got 3"),
    "no model": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), 3, **QUIET),
        "model must be a Model, got 3",
    ),
    "target": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), MODEL, target="prior", **QUIET),
        "target must be one of 'likelihood', 'posterior', got 'prior'",
    ),
    "n disagrees": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), MODEL, num_records=9, **QUIET),
        "num_records must be the release's 50, got 9",
    ),
    "n not public": (
        lambda: na.maximize(
            count_release(3.0, na.Laplace(1.0), neighbours="add_remove", num_records=None),
            MODEL,
            **QUIET,
        ),
        "num_records must be given",
    ),
    "precision": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), MODEL, precision=0, **QUIET),
        "precision must lie strictly between 0 and 1, got 0",
    ),
    "chains": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), MODEL, chains=15, **QUIET),
        "chains must be at least 16, got 15",
    ),
    "seed": (
        lambda: na.maximize(count_release(3.0, na.Laplace(1.0)), MODEL, seed=-1),
        "seed must be an integer from 0",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
