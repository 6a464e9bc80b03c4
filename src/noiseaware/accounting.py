"""What a release cost: costs are data, composition and conversion are functions.

Each cost carries the neighbour relation under which it holds. Composing costs of different
relations is refused, since no number would describe the result.

- ``PureDP(epsilon)`` [DMNS06];
- ``ApproxDP(epsilon, delta)``;
- ``ZCDP(rho)``, zero-concentrated DP [BS16];
- ``GDP(mu)``, Gaussian DP [DRS21]: no easier to tell apart than N(0, 1) from N(mu, 1).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr

from noiseaware import validate
from noiseaware.schema import Neighbours, as_neighbours


@dataclass(frozen=True)
class PureDP:
    """Every output's probability changes by a factor of at most ``exp(epsilon)``."""

    epsilon: float
    neighbours: Neighbours

    def __post_init__(self):
        _set(self, "epsilon", float(validate.not_negative_number("epsilon", self.epsilon)))
        _set(self, "neighbours", as_neighbours(self.neighbours))


@dataclass(frozen=True)
class ApproxDP:
    """``P(S | x) <= exp(epsilon) P(S | x') + delta`` for every event S."""

    epsilon: float
    delta: float
    neighbours: Neighbours

    def __post_init__(self):
        _set(self, "epsilon", float(validate.not_negative_number("epsilon", self.epsilon)))
        _set(self, "delta", float(validate.not_negative_number("delta", self.delta)))
        _set(self, "neighbours", as_neighbours(self.neighbours))
        if self.delta > 1:
            raise ValueError(f"delta must be at most 1, got {self.delta:g}.")


@dataclass(frozen=True)
class ZCDP:
    """Renyi divergence of every order alpha > 1 at most ``alpha rho``."""

    rho: float
    neighbours: Neighbours

    def __post_init__(self):
        _set(self, "rho", float(validate.not_negative_number("rho", self.rho)))
        _set(self, "neighbours", as_neighbours(self.neighbours))


@dataclass(frozen=True)
class GDP:
    """At least as private as one draw of N(0, 1) against N(mu, 1)."""

    mu: float
    neighbours: Neighbours

    def __post_init__(self):
        _set(self, "mu", float(validate.not_negative_number("mu", self.mu)))
        _set(self, "neighbours", as_neighbours(self.neighbours))


Cost = PureDP | ApproxDP | ZCDP | GDP


def compose(*costs: Cost) -> Cost:
    """The cost of all releases together, chosen one after the other in view of earlier ones.

    Like adds to like: epsilons (and deltas) add, rhos add, mus add in squares. Pure and
    Gaussian costs meet as zero-concentrated ones. ``ApproxDP`` composes with ``PureDP`` alone;
    other mixes need a delta, so convert each with ``to_approx_dp`` first.
    """
    if not costs:
        raise ValueError("compose must be given at least one cost, got none.")
    for cost in costs:
        if not isinstance(cost, Cost):
            hint = " Take its .cost." if hasattr(cost, "cost") else ""
            raise ValueError(f"compose takes costs, got a {type(cost).__name__}.{hint}")
    relations = {cost.neighbours for cost in costs}
    if len(relations) > 1:
        raise ValueError(
            f"neighbours must be one relation to compose, got {', '.join(sorted(relations))}."
        )
    kinds = set(map(type, costs))
    if len(kinds) > 1 and ApproxDP not in kinds:
        costs = tuple(map(to_zcdp, costs))
    return functools.reduce(_compose_two, costs)


def _compose_two(first: Cost, second: Cost) -> Cost:
    neighbours = first.neighbours
    match first, second:
        case PureDP(), PureDP():
            return PureDP(first.epsilon + second.epsilon, neighbours)
        case ((ApproxDP() | PureDP()), (ApproxDP() | PureDP())):
            delta = getattr(first, "delta", 0.0) + getattr(second, "delta", 0.0)
            return ApproxDP(first.epsilon + second.epsilon, min(1.0, delta), neighbours)
        case GDP(), GDP():
            return GDP(math.hypot(first.mu, second.mu), neighbours)
        case ZCDP(), ZCDP():
            return ZCDP(first.rho + second.rho, neighbours)
    raise ValueError(
        f"{type(first).__name__} does not compose with {type(second).__name__}. "
        "Convert each to ApproxDP with to_approx_dp first."
    )


def to_zcdp(cost: Cost) -> ZCDP:
    """Pure epsilon is ``epsilon^2 / 2``-zCDP [BS16, Prop. 1.4], mu-GDP is ``mu^2 / 2``-zCDP."""
    match cost:
        case ZCDP():
            return cost
        case PureDP():
            return ZCDP(cost.epsilon**2 / 2, cost.neighbours)
        case GDP():
            return ZCDP(cost.mu**2 / 2, cost.neighbours)
    raise ValueError(f"{type(cost).__name__} does not convert to ZCDP.")


def to_approx_dp(cost: Cost, delta: float) -> ApproxDP:
    """An epsilon at this ``delta``: the smallest for a pure or Gaussian cost, a bound for others.

    For a mix of pure and Gaussian releases there are two bounds, this of their ``compose`` and
    ``compose(pure, to_approx_dp(gaussian, delta))``: both hold, so the smaller does.
    """
    delta = validate.probability("delta", delta)
    match cost:
        case PureDP():
            epsilon = _epsilon_of_pure(cost.epsilon, delta)
        case ZCDP():
            epsilon = _epsilon_of_zcdp(cost.rho, delta)
        case GDP():
            epsilon = _epsilon_of_gdp(cost.mu, delta)
        case ApproxDP():
            if cost.delta > delta:
                raise ValueError(
                    f"delta must be at least the cost's own {cost.delta:g}, got {delta:g}."
                )
            return cost
        case _:
            hint = " Take its .cost." if hasattr(cost, "cost") else ""
            raise ValueError(f"to_approx_dp takes a cost, got a {type(cost).__name__}.{hint}")
    return ApproxDP(epsilon, delta, cost.neighbours)


def _epsilon_of_pure(epsilon: float, delta: float) -> float:
    """``delta(e) = (exp(epsilon) - exp(e)) / (1 + exp(epsilon))`` [KOV15], solved for e."""
    shrinkage = delta * (1 + math.exp(-epsilon))
    return max(0.0, epsilon + math.log1p(-shrinkage)) if shrinkage < 1 else 0.0


def _epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Minimum over orders of the Renyi conversion of [CKS20, Prop. 12]; any order is valid."""
    if rho == 0:
        return 0.0

    def epsilon(log_order_less_1: float) -> float:
        less_1 = math.exp(log_order_less_1)
        order = 1 + less_1
        from_delta = -(math.log(delta) + math.log(order)) / less_1
        return order * rho + from_delta + math.log(less_1 / order)

    centre = 0.5 * math.log(-math.log(delta) / rho)
    best = minimize_scalar(epsilon, bounds=(centre - 10, centre + 10), method="bounded")
    return max(0.0, float(best.fun))


def _epsilon_of_gdp(mu: float, delta: float) -> float:
    """``delta(e) = Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2)`` [DRS21, Cor. 2.13]."""
    if mu == 0 or log_delta_of_gdp(0.0, mu) <= math.log(delta):
        return 0.0
    upper = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return _smallest(lambda epsilon: log_delta_of_gdp(epsilon, mu), math.log(delta), 0.0, upper)


def log_delta_of_gdp(epsilon: float, mu: float) -> float:
    """Log of the smallest delta for which mu-GDP is (epsilon, delta)-DP; in log space since
    ``exp(epsilon)`` overflows while its product with the tail does not.
    """
    log_first = float(log_ndtr(-epsilon / mu + mu / 2))
    log_second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    difference = -math.expm1(min(log_second - log_first, 0.0))
    return log_first + math.log(difference) if difference > 0 else -math.inf


def epsilon_by_pld(mu: float, delta: float) -> float:
    """An upper bound on the epsilon of mu-GDP by its privacy loss distribution, discretised."""
    from dp_accounting.pld import privacy_loss_distribution

    # The relation is folded into mu already: see the sensitivity that it divides.
    loss = privacy_loss_distribution.from_gaussian_mechanism(1 / mu)
    return float(loss.get_epsilon_for_delta(validate.probability("delta", delta)))


def mu_for_approx_dp(epsilon: float, delta: float) -> float:
    """The largest mu for which mu-GDP is (epsilon, delta)-DP."""
    epsilon = float(validate.positive("epsilon", epsilon))
    target = math.log(validate.probability("delta", delta))
    upper = 1.0
    while log_delta_of_gdp(epsilon, upper) < target:
        upper *= 2

    def log_delta(inverse: float) -> float:
        return log_delta_of_gdp(epsilon, 1 / inverse)

    return 1 / _smallest(log_delta, target, 1 / upper, 2 / upper)


def _smallest(
    decreasing: Callable[[float], float], target: float, lower: float, upper: float
) -> float:
    """The smallest point, rounded up, where a decreasing function is at most ``target``."""
    while decreasing(upper) > target:
        lower, upper = upper, 2 * upper
    root = brentq(
        lambda point: max(decreasing(point), -1e300) - target,
        lower,
        upper,
        xtol=1e-16 * upper,
        rtol=1e-14,
    )
    step = 1e-14 * upper
    while decreasing(root) > target:
        root, step = root + step, 2 * step
    return float(root)


def _set(instance, name: str, value) -> None:
    object.__setattr__(instance, name, value)
