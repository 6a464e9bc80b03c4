"""The curator's front door: calibrate the noise, publish the sums.

``publish`` computes ``T(x) = sum_i t(x_i)`` exactly in fixed point: each contribution is rounded
to a grid of ``2^-40`` of its coordinate's largest size, and the whole numbers are summed. So the
sum depends on no order of addition, and its sensitivity is that of ``t`` plus one grid step and the
rounding of the total to float64, which ``calibrate`` and ``release.cost`` include. The rounding, at
most ``2^-41`` of a record's largest contribution for each record, is not modelled by ``fit``.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from noiseaware import accounting, validate
from noiseaware.mechanisms import DiscreteLaplace, Gaussian, Laplace, Mechanism
from noiseaware.release import (
    MAX_RECORDS,
    Noise,
    Release,
    check_publishable,
    check_statistic,
    check_summable,
    cost_of,
    fixed_point_grid,
    published_sensitivity,
)
from noiseaware.schema import Neighbours, as_neighbours, as_records
from noiseaware.statistics import Statistic

CHUNK_RECORDS = 2**18


def calibrate(
    mechanism: type[Mechanism],
    statistic: Statistic,
    *,
    neighbours: Neighbours | str,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    mu: float | None = None,
    per_coordinate: bool = False,
) -> Mechanism:
    """Noise of this kind that keeps the stated budget, by the statistic's stated sensitivity.

    The budget is ``epsilon`` for Laplace and discrete Laplace; (``epsilon``, ``delta``), ``rho``
    or ``mu`` for Gaussian. One scale serves all coordinates; with ``per_coordinate`` each scale
    is proportional to what one record can change in that coordinate, which suits
    sums in different units.
    """
    neighbours = as_neighbours(neighbours)
    check_statistic(statistic)
    given = {"epsilon": epsilon, "delta": delta, "rho": rho, "mu": mu}
    budget = {name: value for name, value in given.items() if value is not None}
    noise_per_sensitivity = _noise_per_sensitivity(mechanism, budget)
    weights = np.ones(())
    if per_coordinate:
        lower, upper = statistic.contribution_bounds()
        size = np.maximum(np.abs(lower), np.abs(upper))
        weights = upper - lower if neighbours is Neighbours.REPLACE else size
        if not np.all(weights > 0):
            raise ValueError("per_coordinate needs coordinates that a record can change.")
    sensitivity = published_sensitivity(statistic, neighbours, mechanism.norm, weights)
    if sensitivity == 0:
        raise ValueError(f"{type(statistic).__name__} never changes: nothing to hide.")
    # A few units in the last place more, so that rounding never lets the cost exceed the budget.
    calibrated = mechanism(weights * sensitivity * noise_per_sensitivity * (1 + 1e-15))
    check_publishable(statistic, calibrated)
    return calibrated


def _noise_per_sensitivity(mechanism: type[Mechanism], budget: dict[str, float]) -> float:
    names = set(budget)
    if mechanism in (Laplace, DiscreteLaplace):
        if names != {"epsilon"}:
            raise ValueError(f"{mechanism.__name__} needs epsilon alone, got {sorted(names)}.")
        return 1 / float(validate.positive("epsilon", budget["epsilon"]))
    if mechanism is Gaussian:
        if names == {"mu"}:
            return 1 / float(validate.positive("mu", budget["mu"]))
        if names == {"rho"}:
            return 1 / float(np.sqrt(2 * validate.positive("rho", budget["rho"])))
        if names == {"epsilon", "delta"}:
            return 1 / accounting.mu_for_approx_dp(budget["epsilon"], budget["delta"])
        raise ValueError(f"Gaussian needs epsilon and delta, or rho, or mu, got {sorted(names)}.")
    raise ValueError(f"mechanism must be Laplace, DiscreteLaplace or Gaussian, got {mechanism!r}.")


def publish(
    records: Mapping[str, Any],
    statistic: Statistic,
    mechanism: Mechanism,
    *,
    neighbours: Neighbours | str,
) -> Release:
    """Sum the statistic over ``records``, a dict of columns or a DataFrame, and add secure noise.

    Guarantee: the returned release is private at ``release.cost``. Missing values and values
    of the wrong kind are refused before anything is drawn. That an error appears is not private.
    """
    neighbours = as_neighbours(neighbours)
    check_publishable(statistic, mechanism)
    records = as_records(records, statistic.columns)
    cost_of(statistic, mechanism, neighbours)  # an error here must come before any noise
    total = exact_total(records, statistic)
    return Release(
        mechanism.privatize(total),
        statistic,
        mechanism,
        neighbours=neighbours,
        num_records=_public_count(records, neighbours),
        noise=Noise.SECURE,
    )


def simulate_release(
    key: PRNGKeyArray | int,
    records: Mapping[str, Any],
    statistic: Statistic,
    mechanism: Mechanism,
    *,
    neighbours: Neighbours | str,
) -> Release:
    """As ``publish``, with noise from a seeded generator: for studies, not private. ``key`` is a
    seed or a JAX key.
    """
    neighbours = as_neighbours(neighbours)
    check_summable(statistic, mechanism)
    records = as_records(records, statistic.columns)
    with jax.enable_x64(True):
        key = jax.random.key(key) if isinstance(key, int) else key
        total = jax.numpy.asarray(exact_total(records, statistic))
        values = np.asarray(mechanism.simulate(key, total), np.float64)
    return Release(
        values,
        statistic,
        mechanism,
        neighbours=neighbours,
        num_records=_public_count(records, neighbours),
        noise=Noise.SIMULATED,
    )


def exact_total(records: dict[str, np.ndarray], statistic: Statistic) -> np.ndarray:
    """Of records as the statistic codes them, rounded to its grid."""
    num_records = len(next(iter(records.values())))
    if num_records > MAX_RECORDS:
        raise ValueError(f"num_records must be at most {MAX_RECORDS}, got {num_records}.")
    grid = np.ones(len(statistic.labels)) if statistic.is_integer else fixed_point_grid(statistic)
    lower, upper = statistic.contribution_bounds()
    total = [0] * len(grid)
    for start in range(0, num_records, CHUNK_RECORDS):
        chunk = {name: column[start : start + CHUNK_RECORDS] for name, column in records.items()}
        contributions = np.clip(_contributions(chunk, statistic), lower, upper)
        if not np.all(np.isfinite(contributions)):
            raise ValueError(f"contributions to {type(statistic).__name__} must be finite.")
        whole = np.rint(contributions / grid).astype(np.int64).sum(axis=0)
        total = [before + int(added) for before, added in zip(total, whole, strict=True)]
    return np.array([float(count) for count in total]) * grid


def _contributions(records: dict[str, np.ndarray], statistic: Statistic) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(statistic)(records), np.float64)


def _public_count(records: dict[str, np.ndarray], neighbours: Neighbours) -> int | None:
    is_public = neighbours is Neighbours.REPLACE
    return len(next(iter(records.values()))) if is_public else None
