"""Every sampler keeps the joint law of (params, records, release), and every sampler reaches the
exact posterior from afar; wrong samplers do neither.
"""

import itertools

import jax
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

import noiseaware as na
from noiseaware.publishing import calibrate
from tests.laws.chains import (
    CASES_OF,
    LAYOUT,
    SAMPLERS,
    from_afar,
    from_the_joint_law,
    prior_shape,
)
from tests.laws.members import CASES, rescaled
from tests.statistical import MAX_Z, z_score

# So much budget that records feel the release: with less, a noise scale 10 % off changes nothing.
NUM_RECORDS, EPSILON = 8, 4.0
MECHANISMS = (na.Laplace, na.DiscreteLaplace, na.Gaussian)
# In the fast tests; the others are slow, by their number.
FIRST_CASES = ("beta-bernoulli", "normal-mean")
FIRST_SAMPLERS = ("record_augmentation", "interweaving")
OTHER_CASES = ("normal-mean", "normal", "dirichlet-categorical", "regression-known", "hierarchical")
# The cases whose tests have enough chains to see a noise scale 10 % off, and controls to show it.
CONTROLLED = ("normal-mean", "dirichlet-categorical")
# Stand-ins anchored at the current params, a slip of second order, show with so many (z > 8).
NUM_CHAINS = dict.fromkeys(CONTROLLED, 40_000) | {"normal": 160_000}


SLOW = (pytest.mark.slow, pytest.mark.optimized)  # what they cost is running


def is_slow(sampler, case):
    return case != "normal-mean" and (case not in FIRST_CASES or sampler not in FIRST_SAMPLERS)


# One worker runs all tests of a pair, so that it compiles once.
PAIRS = [
    pytest.param(
        sampler,
        case,
        marks=[
            pytest.mark.xdist_group(f"{sampler} {case}"),
            *[pytest.mark.slow] * is_slow(sampler, case),
            *[pytest.mark.optimized] * (sampler == "laid_out"),
        ],
    )
    for sampler in SAMPLERS
    for case in CASES_OF[sampler]
    # Other proposals read no more of a model than these show; interweaving in blocks, "laid_out",
    # runs on every model, and fits show that it agrees with interweaving record by record.
    if sampler in ("record_augmentation", "laid_out") or case in OTHER_CASES + FIRST_CASES
]
each_sampler_and_case = pytest.mark.parametrize(("sampler", "case"), PAIRS)


def each_of(*samplers):
    return pytest.mark.parametrize(
        "sampler",
        [
            pytest.param(
                sampler,
                marks=[
                    pytest.mark.xdist_group(sampler),
                    *SLOW * (sampler not in FIRST_SAMPLERS),
                ],
            )
            for sampler in samplers
        ],
    )


each_sampler = each_of(*SAMPLERS)
each_general_sampler = each_of("record_augmentation", "interweaving", "laid_out")


def mechanism_for(statistic, kind=na.Laplace):
    budget = {"mu": EPSILON} if kind is na.Gaussian else {"epsilon": EPSILON}
    return calibrate(kind, statistic, neighbours="replace", **budget)


def joint_law(sampler, case, kind=na.Laplace, told_factor=1.0, fault=0):
    """Largest z of what a step changes, over functions that join params, records and release."""
    model, statistic = CASES[case]
    mechanism = mechanism_for(statistic, kind)
    is_large = case in CONTROLLED or sampler == "laid_out"
    num_chains = NUM_CHAINS.get(case, 6_000) if is_large else 6_000
    start, end, ratios = from_the_joint_law(
        jr.key(0),
        sampler,
        model,
        statistic,
        mechanism,
        rescaled(mechanism, told_factor),
        prior_shape(model),
        np.asarray(fault),
        NUM_RECORDS,
        num_chains,
        4,
    )
    z = largest_paired_z(start, end, mechanism.spread())
    return z, float(np.min(ratios))


def largest_paired_z(start, end, spread):
    """Under invariance ``E[h(end) - h(start)] = 0``: no expectation needs to be known."""
    centre, width = ({}, {})
    for name in start._fields:
        values = np.asarray(getattr(start, name))
        centre[name], width[name] = values.mean(axis=0), values.std(axis=0) + 1e-12

    def functions(at):
        free, total, released = (
            (np.asarray(getattr(at, name)) - centre[name]) / width[name] for name in at._fields
        )
        noise = np.abs(np.asarray(at.released) - np.asarray(at.total)) / spread
        noise = np.minimum(noise, 8.0)  # bounded, and still the score of a scale
        pairs = [
            np.tanh(free[:, :, None] * other[:, None, :]).reshape(len(free), -1)
            for other in (total, released)
        ]
        pooled = np.mean(noise, axis=1, keepdims=True)
        return np.concatenate([np.tanh(free), noise, pooled, *pairs], axis=1)

    return float(np.max(np.abs(z_score(functions(end) - functions(start)))))


@each_sampler_and_case
def test_keeps_the_joint_law_and_the_privacy_floor(sampler, case):
    z, min_log_ratio = joint_law(sampler, case)
    assert z < MAX_Z
    is_in_blocks = sampler in ("laid_out", "random_walk", "crank_nicolson")
    floor = -EPSILON * (LAYOUT.block_size if is_in_blocks else 1)
    assert min_log_ratio >= floor * (1 + 1e-9)
    assert min_log_ratio < 0.2 * floor, "no swap came near the floor: nothing was tested"


@pytest.mark.slow
@pytest.mark.optimized
@each_sampler
@pytest.mark.parametrize("kind", MECHANISMS)
def test_keeps_the_joint_law_under_every_mechanism(sampler, kind):
    case = "dirichlet-categorical" if kind is na.DiscreteLaplace else "normal"
    if case not in CASES_OF[sampler]:
        pytest.skip("its proposals need real columns, discrete noise needs counts")
    z, _ = joint_law(sampler, case, kind)
    assert z < MAX_Z


@pytest.mark.parametrize(
    ("sampler", "case"), [pair for pair in PAIRS if pair.values[1] in CONTROLLED]
)
@pytest.mark.parametrize(
    "wrong",
    [{"told_factor": 1e6}, {"told_factor": 1.1}, {"told_factor": 0.9}, {"fault": 1}],
    ids=["accepts everything", "scale 10 % large", "scale 10 % small", "returns the prior"],
)
def test_control_a_wrong_kernel_leaves_the_joint_law(sampler, case, wrong):
    z, _ = joint_law(sampler, case, **wrong)
    assert z > MAX_Z


# Exact posteriors, reached from afar. Beta-Bernoulli by enumeration of the sum.


def bernoulli_posterior_mean(mechanism, released, num_records):
    ones = np.arange(num_records + 1)
    log_noise = [float(mechanism.log_density(np.array([released]), np.array([k]))) for k in ones]
    weight = stats.betabinom.pmf(ones, num_records, 2, 3) * np.exp(log_noise)
    return np.sum(weight * (2 + ones) / (5 + num_records)) / np.sum(weight)


def bernoulli_draws(sampler, mechanism, released, fault=0):
    model, statistic = CASES["beta-bernoulli"]
    params, _ = from_afar(
        jr.key(1), sampler, model, statistic, mechanism, np.array([float(released)]),
        prior_shape(model), np.asarray(fault), 10, 2_000, 80,
    )  # fmt: skip
    return np.asarray(params["probability"])


@each_general_sampler
@pytest.mark.parametrize(
    ("kind", "released"),
    [
        (na.Laplace, 8),
        *[
            pytest.param(kind, value, marks=SLOW)
            for kind, value in [(na.Laplace, -3), (na.DiscreteLaplace, 14), (na.Gaussian, -3)]
        ],
    ],
)
def test_reaches_the_enumerated_bernoulli_posterior(sampler, kind, released):
    mechanism = mechanism_for(CASES["beta-bernoulli"][1], kind)
    draws = bernoulli_draws(sampler, mechanism, released)
    expected = bernoulli_posterior_mean(mechanism, released, 10)
    assert abs(z_score(draws, expected)) < MAX_Z


@each_general_sampler
@pytest.mark.parametrize("fault", [1, 2], ids=["returns the prior", "never moves a record"])
def test_control_a_kernel_that_ignores_the_release_misses_it(sampler, fault):
    mechanism = mechanism_for(CASES["beta-bernoulli"][1])
    draws = bernoulli_draws(sampler, mechanism, 8, fault)
    assert abs(z_score(draws, bernoulli_posterior_mean(mechanism, 8, 10))) > MAX_Z


# The normal mean with Gaussian noise, in closed form where the bounds never bind.


def normal_draws(sampler, released, fault=0):
    model = na.Normal("x", na.NormalPrior(1.0, 2.0), 1.5)
    wide = na.Clamped("x", 1.0 - 12 * 2.5, 1.0 + 12 * 2.5)
    params, _ = from_afar(
        jr.key(2), sampler, model, wide, na.Gaussian(4.0), np.array([released]),
        prior_shape(model), np.asarray(fault), 6, 2_000, 300,
    )  # fmt: skip
    return np.asarray(params["mean"])


def normal_posterior(released):
    """``s | mean ~ N(6 mean, 6 x 1.5^2 + 4^2)``."""
    variance = 6 * 1.5**2 + 4.0**2
    precision = 1 / 2.0**2 + 6**2 / variance
    return (1.0 / 2.0**2 + 6 * released / variance) / precision, 1 / np.sqrt(precision)


@each_sampler
@pytest.mark.parametrize("released", [9.0, pytest.param(-20.0, marks=SLOW)])
def test_reaches_the_closed_form_of_a_normal_mean(sampler, released):
    draws = normal_draws(sampler, released)
    mean, stddev = normal_posterior(released)
    assert abs(z_score(draws, mean)) < MAX_Z
    assert abs(z_score((draws - mean) ** 2, stddev**2)) < MAX_Z


@pytest.mark.slow
@each_sampler
@pytest.mark.parametrize("fault", [1, 2], ids=["returns the prior", "never moves a record"])
def test_control_a_kernel_that_ignores_the_release_misses_the_closed_form(sampler, fault):
    draws = normal_draws(sampler, -20.0, fault)
    assert abs(z_score(draws, normal_posterior(-20.0)[0])) > MAX_Z


# Naive Bayes by enumeration of every data set.


def naive_bayes_posterior_means(model, statistic, mechanism, released, num_records):
    """Sum over all data sets of their Dirichlet-multinomial probability times the noise density."""
    levels = [range(len(kind.levels)) for kind in model.columns.values()]
    records = list(itertools.product(*levels))
    data_sets = np.array(list(itertools.product(records, repeat=num_records)))
    columns = dict(zip(model.columns, np.moveaxis(data_sets, 2, 0), strict=True))
    totals = np.asarray(jax.vmap(lambda r: jax.vmap(statistic)(r).sum(axis=0))(columns))
    log_g = np.asarray(jax.vmap(lambda total: mechanism.log_density(released, total))(totals))
    log_weight, means = log_g, {}
    y = columns["c"]
    counts = np.stack([(y == i).sum(axis=1) for i in range(2)], axis=1)
    concentration = model.class_concentration
    log_weight = log_weight + log_dirichlet_multinomial(counts, concentration)
    means["c_probabilities"] = (counts + concentration) / (num_records + concentration.sum())
    for name, size in model.features:
        table = np.stack(
            [
                [((y == i) & (columns[name] == j)).sum(axis=1) for j in range(len(size))]
                for i in range(2)
            ]
        ).transpose(2, 0, 1)
        concentration = model.feature_concentrations[name]
        for i in range(2):
            log_weight = log_weight + log_dirichlet_multinomial(table[:, i], concentration[i])
        filled = table + concentration
        means[f"{name}_probabilities"] = filled / filled.sum(axis=2, keepdims=True)
    weight = special.softmax(log_weight)
    return {name: np.tensordot(weight, value, axes=1) for name, value in means.items()}


def log_dirichlet_multinomial(counts, concentration):
    """Of one ordered data set with these counts."""
    total, filled = concentration.sum(), counts + concentration
    each = special.gammaln(filled) - special.gammaln(concentration)
    return each.sum(axis=1) + special.gammaln(total) - special.gammaln(counts.sum(axis=1) + total)


@pytest.mark.slow
@pytest.mark.optimized
@each_of("record_augmentation", "interweaving")
def test_naive_bayes_reaches_full_enumeration(sampler):
    model, statistic = CASES["naive-bayes"]
    mechanism = na.Laplace(0.8)
    released = np.array([2.5, -0.4, 0.3, 0.1, 1.6, 0.2, -0.9, 1.8, 0.5, 0.2])
    expected = naive_bayes_posterior_means(model, statistic, mechanism, released, 3)
    params, _ = from_afar(
        jr.key(3), sampler, model, statistic, mechanism, released,
        prior_shape(model), np.asarray(0), 3, 3_000, 100,
    )  # fmt: skip
    worst = np.max(
        [np.max(np.abs(z_score(params[name], value))) for name, value in expected.items()]
    )
    assert worst < MAX_Z
    # The prior means are far off, so the check can fail.
    assert abs(expected["c_probabilities"][0] - 2 / 5) > 0.05
