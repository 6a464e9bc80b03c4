"""Composition and conversion against published figures, closed forms and brute force."""

import math

import numpy as np
import pytest
from scipy import stats

import noiseaware as na
from noiseaware.accounting import log_delta_of_gdp, mu_for_approx_dp

R = "replace"


def test_like_adds_to_like():
    assert na.compose(*[na.PureDP(0.5, R)] * 4) == na.PureDP(2.0, R)
    assert na.compose(*[na.ZCDP(0.5, R)] * 4) == na.ZCDP(2.0, R)
    assert na.compose(*[na.GDP(0.5, R)] * 4).mu == pytest.approx(1.0)
    assert na.compose(*[na.ApproxDP(0.5, 0.1, R)] * 4) == na.ApproxDP(2.0, 0.4, R)


def test_pure_and_gaussian_meet_as_zcdp():
    both = na.compose(na.PureDP(2.0, R), na.GDP(3.0, R), na.ZCDP(1.0, R))
    assert both == na.ZCDP(2.0 + 4.5 + 1.0, R)


def test_composition_does_not_depend_on_the_order():
    costs = [na.PureDP(1.0, R), na.PureDP(1.0, R), na.GDP(1.0, R)]
    assert na.compose(*costs) == na.compose(*reversed(costs)) == na.ZCDP(1.5, R)


def test_conversion_of_a_tiny_cost_returns():
    assert 0 <= na.to_approx_dp(na.GDP(1e-10, R), 1e-12).epsilon < 1e-8


def test_refuses_a_mix_of_relations_and_of_kinds_without_a_delta():
    with pytest.raises(ValueError, match=r"neighbours must be one relation .* add_remove, replace"):
        na.compose(na.PureDP(1.0, R), na.PureDP(1.0, "add_remove"))
    with pytest.raises(ValueError, match="ApproxDP does not compose with GDP"):
        na.compose(na.ApproxDP(1.0, 1e-6, R), na.GDP(1.0, R))
    with pytest.raises(ValueError, match="at least one cost"):
        na.compose()
    release = na.Release([1.0], na.Count("x"), na.Laplace(1.0), neighbours=R, num_records=9)
    for call in (lambda: na.compose(release, release), lambda: na.to_approx_dp(release, 0.1)):
        with pytest.raises(ValueError, match=r"got a Release\. Take its \.cost"):
            call()


def test_a_thousand_gaussians_cost_what_two_other_accountants_say():
    """sigma = 100, delta = 1e-6: 1.367571 by the closed form and by PLD accounting."""
    cost = na.compose(*[na.GDP(1 / 100, R)] * 1_000)
    assert na.to_approx_dp(cost, 1e-6).epsilon == pytest.approx(1.367571, abs=1e-6)


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.01])
def test_gaussian_conversion_is_exact_and_inverts(mu, delta):
    epsilon = na.to_approx_dp(na.GDP(mu, R), delta).epsilon
    if epsilon > 0:
        assert log_delta_of_gdp(epsilon, mu) <= math.log(delta)
        assert log_delta_of_gdp(epsilon * (1 - 1e-6), mu) > math.log(delta)
        assert mu_for_approx_dp(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_gaussian_delta_against_the_naive_formula_where_it_does_not_overflow():
    for mu, epsilon in [(0.5, 0.3), (2.0, 1.0), (1.0, 4.0)]:
        naive = stats.norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * stats.norm.cdf(
            -epsilon / mu - mu / 2
        )
        assert math.exp(log_delta_of_gdp(epsilon, mu)) == pytest.approx(naive, rel=1e-9)
    assert math.isfinite(log_delta_of_gdp(2_000.0, 40.0))


def test_pure_conversion_is_that_of_randomised_response():
    """At (e, delta) the worst event of randomised response has P - exp(e) Q = delta."""
    cost, delta = na.PureDP(1.5, R), 0.05
    epsilon = na.to_approx_dp(cost, delta).epsilon
    p = math.exp(1.5) / (1 + math.exp(1.5))
    assert p - math.exp(epsilon) * (1 - p) == pytest.approx(delta)
    assert na.to_approx_dp(na.PureDP(0.1, R), 0.5).epsilon == 0


@pytest.mark.parametrize("rho", [1e-4, 0.1, 2.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_zcdp_conversion_lies_between_the_gaussian_and_the_classical_bound(rho, delta):
    epsilon = na.to_approx_dp(na.ZCDP(rho, R), delta).epsilon
    gaussian = na.to_approx_dp(na.GDP(math.sqrt(2 * rho), R), delta).epsilon
    assert gaussian <= epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_conversion_keeps_the_relation_and_refuses_to_lower_delta():
    cost = na.to_approx_dp(na.GDP(1.0, "add_remove"), 1e-6)
    assert cost.neighbours == "add_remove"
    assert na.to_approx_dp(cost, 1e-5) == cost
    with pytest.raises(ValueError, match="delta must be at least the cost's own 1e-06"):
        na.to_approx_dp(cost, 1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: na.PureDP(-1.0, R), "epsilon must not be negative, got -1"),
        (lambda: na.PureDP(math.nan, R), "epsilon must be finite"),
        (lambda: na.ZCDP(math.inf, R), "rho must be finite"),
        (lambda: na.ApproxDP(1.0, 2.0, R), "delta must be at most 1, got 2"),
        (lambda: na.GDP(1.0, "swap"), "neighbours must be one of"),
        (lambda: na.to_approx_dp(na.GDP(1.0, R), 0.0), "delta must lie strictly between 0 and 1"),
        (lambda: na.to_zcdp(na.ApproxDP(1.0, 0.1, R)), "ApproxDP does not convert to ZCDP"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
