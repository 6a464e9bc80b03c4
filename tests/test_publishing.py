"""The curator's side: exact sums, calibrated noise, data refused before anything is drawn."""

import jax
import numpy as np
import pandas
import pytest

import noiseaware as na
from noiseaware.publishing import CHUNK_RECORDS, exact_total
from noiseaware.release import GRID_BITS, fixed_point_grid, published_sensitivity
from noiseaware.schema import Neighbours

BOUNDS = {"a": (0.0, 10.0), "y": (-1.0, 1.0)}
MOMENTS = na.RegressionMoments("y", ("a",), BOUNDS)


def records(count=500, seed=0):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(5, 4, count), "y": rng.normal(0, 1, count)}


def test_publish_adds_the_stated_noise_to_the_sums():
    noise = na.Laplace(1e-9)
    release = na.publish(records(), MOMENTS, noise, neighbours="replace")
    unit = [
        2 * (np.clip(records()[n], *BOUNDS[n]) - BOUNDS[n][0]) / np.ptp(BOUNDS[n]) - 1 for n in "ay"
    ]
    exact = [unit[0], unit[1], unit[0] ** 2, unit[0] * unit[1], unit[1] ** 2]
    assert np.allclose(release.values, np.sum(exact, axis=1), atol=1e-7)
    assert release.noise == "secure"
    assert release.num_records == 500


def test_two_releases_of_the_same_records_differ():
    first, second = (
        na.publish(records(), MOMENTS, na.Laplace(1.0), neighbours="replace") for _ in range(2)
    )
    assert not np.any(first.values == second.values)


def test_sums_do_not_depend_on_the_order_of_the_records():
    count = CHUNK_RECORDS + 1_000
    data = records(count)
    order = np.random.default_rng(1).permutation(count)
    shuffled = {name: column[order] for name, column in data.items()}
    assert np.array_equal(exact_total(data, MOMENTS), exact_total(shuffled, MOMENTS))
    # Plain float64 sums do depend on it, so the equality above is not vacuous.
    with jax.enable_x64(True):
        plain, reordered = (np.asarray(jax.vmap(MOMENTS)(x)).sum(axis=0) for x in (data, shuffled))
    assert not np.array_equal(plain, reordered)


def test_rounding_is_charged_for():
    """Published sums of neighbours differ by at most the published sensitivity, and by more than
    the statistic's own when rounding conspires.
    """
    statistic = na.Clamped("x", 0.0, 1.0)
    grid = float(fixed_point_grid(statistic)[0])
    assert grid == 2.0**-GRID_BITS
    conspiring = na.Clamped("x", 0.4 * grid, 1.0 - 0.4 * grid)
    own = conspiring.sensitivity(Neighbours.REPLACE, 1)
    stated = published_sensitivity(conspiring, Neighbours.REPLACE, 1, np.ones(()))
    x = np.random.default_rng(2).uniform(size=500)
    low, high = (exact_total({"x": np.append(x, end)}, conspiring) for end in (0.0, 1.0))
    assert own < float(high[0] - low[0]) <= stated


@pytest.mark.parametrize("neighbours", ["replace", "add_remove"])
@pytest.mark.parametrize("per_coordinate", [False, True])
@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        (na.Laplace, {"epsilon": 0.7}),
        (na.Gaussian, {"mu": 0.7}),
        (na.Gaussian, {"rho": 0.3}),
        (na.Gaussian, {"epsilon": 0.7, "delta": 1e-6}),
    ],
)
def test_calibrated_noise_costs_what_was_asked_for(neighbours, per_coordinate, kind, budget):
    for statistic in (MOMENTS, na.Histogram("x", 5), na.Clamped("x", 0, 9, ("x", "x^2"))):
        noise = na.calibrate(
            kind, statistic, neighbours=neighbours, per_coordinate=per_coordinate, **budget
        )
        cost = na.Release(
            np.zeros(len(statistic.labels)), statistic, noise, neighbours=neighbours, num_records=5
        ).cost
        if "delta" in budget:
            assert na.to_approx_dp(cost, budget["delta"]).epsilon == pytest.approx(0.7, rel=1e-9)
        elif "rho" in budget:
            assert na.to_zcdp(cost).rho == pytest.approx(0.3, rel=1e-9)
        else:
            (name, value), *_ = budget.items()
            assert getattr(cost, name) == pytest.approx(value, rel=1e-9)
        assert cost.neighbours == neighbours


def test_scales_per_coordinate_suit_sums_in_different_units():
    statistic = na.Clamped("x", 0, 100, ("x", "x^2"))
    shared = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=1.0)
    each = na.calibrate(
        na.Laplace, statistic, neighbours="replace", epsilon=1.0, per_coordinate=True
    )
    assert each.scale == pytest.approx([200.0, 20_000.0], rel=1e-6)
    assert float(shared.scale) == pytest.approx(10_100.0, rel=1e-6)


def test_count_is_public_under_replace_only():
    data = {"x": [0, 1, 1]}
    for relation, count in [("replace", 3), ("add_remove", None)]:
        release = na.publish(data, na.Count("x"), na.Laplace(1.0), neighbours=relation)
        assert release.num_records == count


def test_a_data_frame_is_accepted_and_categories_are_coded():
    frame = pandas.DataFrame({"region": ["north", "south", "north"], "other": [1, 2, 3]})
    statistic = na.Histogram("region", ("south", "north", "west"))
    for data in (frame, frame.astype({"region": "category"}), {"region": list(frame["region"])}):
        release = na.publish(data, statistic, na.Laplace(1e-9), neighbours="replace")
        assert release.values == pytest.approx([1, 2, 0], abs=1e-6)


def test_simulated_release_says_so_and_repeats():
    first, second, other = (
        na.simulate_release(seed, records(), MOMENTS, na.Laplace(1.0), neighbours="replace")
        for seed in (1, 1, 2)
    )
    assert first == second != other
    assert first.noise == "simulated"


def test_a_release_is_immutable_and_shows_itself():
    release = na.publish(records(), MOMENTS, na.Laplace(8.0), neighbours="replace")
    with pytest.raises(AttributeError):
        release.num_records = 3
    assert "a*y = " in repr(release)
    assert "PureDP(epsilon=0.66" in repr(release)


GOOD = {"statistic": MOMENTS, "mechanism": na.Laplace(1.0), "neighbours": "replace"}
BAD_DATA = {
    "missing column": ({"a": [1.0]}, "records must have a column 'y', got the columns \\['a'\\]"),
    "NaN": ({"a": [1.0, np.nan], "y": [0.0, 0.0]}, "column 'a' must have no missing values, got 1"),
    "None": ({"a": [1.0, None], "y": [0.0, 0.0]}, "column 'a' must have no missing values, got 1"),
    "infinite": (
        {"a": [1.0, np.inf], "y": [0.0, 0.0]},
        "column 'a' must be finite, got 1 infinite of 2",
    ),
    "objects": ({"a": [1.0, {}], "y": [0.0, 0.0]}, "column 'a' must be numeric, got object values"),
    "text": ({"a": ["1", "b"], "y": [0.0, 0.0]}, "column 'a' must be numeric, got '1'"),
    "lengths": (
        {"a": [1.0], "y": [0.0, 0.0]},
        "columns must have one length, got {'a': 1, 'y': 2}",
    ),
    "empty": ({"a": [], "y": []}, "records must not be empty, got 0 records"),
    "matrix": ({"a": [[1.0, 2.0]], "y": [0.0]}, "column 'a' must be one-dimensional"),
}


@pytest.mark.parametrize(("data", "message"), BAD_DATA.values(), ids=BAD_DATA)
def test_publish_refuses_bad_data(data, message):
    with pytest.raises(ValueError, match=message):
        na.publish(data, **GOOD)


@pytest.mark.parametrize(
    ("statistic", "column", "message"),
    [
        (na.Count("x"), [0, 2], "column 'x' must hold 0 or 1, got 2"),
        (na.Histogram("x", ("u", "v")), ["u", "w"], "must hold one of 'u', 'v', got 'w'"),
        (na.Histogram("x", 2), [0, -1], "must hold one of 0, 1, got -1"),
        (na.Histogram("x", 2), [0.5, 1], "must hold one of 0, 1, got 0.5"),
        (na.Histogram("x", ("u", "v")), ["u", np.nan], "must hold one of|no missing values"),
        (
            na.Histogram("x", ("u", "v")),
            pandas.Series(["u", pandas.NA]),
            "no missing values, got 1",
        ),
    ],
)
def test_publish_refuses_values_of_the_wrong_kind(statistic, column, message):
    with pytest.raises(ValueError, match=message):
        na.publish({"x": column}, statistic, na.Laplace(1.0), neighbours="replace")


BAD_ARGUMENTS = {
    "epsilon 0": (
        lambda: na.calibrate(na.Laplace, MOMENTS, neighbours="replace", epsilon=0),
        "epsilon must be positive, got 0\\.$",
    ),
    "epsilon as text": (
        lambda: na.calibrate(na.Laplace, MOMENTS, neighbours="replace", epsilon="1"),
        "epsilon must be numeric, got '1'",
    ),
    "impossible values": (
        lambda: na.Release(
            [900.0], na.Count("v"), na.Laplace(2.0), neighbours="replace", num_records=90
        ),
        "values must be possible for 90 records, got v = 900",
    ),
    "a series with other labels": (
        lambda: na.Release(
            pandas.Series([1.0, 2.0]),
            na.Histogram("s", ("a", "b")),
            na.Laplace(2.0),
            neighbours="replace",
            num_records=80,
        ),
        "values must name exactly \\['s=a', 's=b'\\]",
    ),
    "not a release": (lambda: na.write({}, "x.json"), "release must be a Release, got a dict"),
    "epsilon missing": (
        lambda: na.calibrate(na.Laplace, MOMENTS, neighbours="replace"),
        "Laplace needs epsilon alone, got \\[\\]",
    ),
    "delta for Laplace": (
        lambda: na.calibrate(na.Laplace, MOMENTS, neighbours="replace", epsilon=1, delta=0.1),
        "Laplace needs epsilon alone, got \\['delta', 'epsilon'\\]",
    ),
    "epsilon alone for Gaussian": (
        lambda: na.calibrate(na.Gaussian, MOMENTS, neighbours="replace", epsilon=1),
        "Gaussian needs epsilon and delta, or rho, or mu, got \\['epsilon'\\]",
    ),
    "unknown mechanism": (
        lambda: na.calibrate(int, MOMENTS, neighbours="replace", epsilon=1),
        "mechanism must be Laplace, DiscreteLaplace or Gaussian",
    ),
    "unknown relation": (
        lambda: na.publish(records(), MOMENTS, na.Laplace(1.0), neighbours="swap"),
        "neighbours must be one of 'replace', 'add_remove', got 'swap'",
    ),
    "discrete noise on reals": (
        lambda: na.publish(records(), MOMENTS, na.DiscreteLaplace(1.0), neighbours="replace"),
        "DiscreteLaplace needs whole-number sums, got RegressionMoments",
    ),
    "scales do not fit": (
        lambda: na.publish(records(), MOMENTS, na.Laplace([1.0, 2.0]), neighbours="replace"),
        "Laplace must have one scale or 5, .* got shape \\(2,\\)",
    ),
    "scale 0": (lambda: na.Laplace(0.0), "scale must be positive, got 0"),
    "scale NaN": (lambda: na.Gaussian(np.nan), "stddev must be finite, got nan"),
    "bounds equal": (
        lambda: na.Clamped("x", 1, 1),
        "bounds of x must satisfy lower < upper, got \\[1, 1\\]",
    ),
    "bounds infinite": (lambda: na.Clamped("x", 0, np.inf), "upper bound of x must be finite"),
    "log of a negative": (
        lambda: na.Clamped("x", -1, 1, ("log x",)),
        "lower bound of x must be positive for the feature 'log x', got -1",
    ),
    "unknown feature": (
        lambda: na.Clamped("x", 0, 1, ("x^3",)),
        "feature must be one of .*, got 'x\\^3'",
    ),
    "bounds of another column": (
        lambda: na.RegressionMoments("y", ("a",), {"a": (0, 1), "b": (0, 1)}),
        "bounds must name \\['a', 'y'\\], got \\['a', 'b'\\]",
    ),
    "response among predictors": (
        lambda: na.RegressionMoments("y", ("y",), {"y": (0, 1)}),
        "columns must be distinct",
    ),
    "a string of predictors": (
        lambda: na.RegressionMoments("y", "ab", {"y": (0, 1)}),
        "predictors must be a sequence of names, got the string 'ab'",
    ),
    "levels repeated": (lambda: na.Histogram("x", ("u", "u")), "levels of x must be distinct"),
    "no levels": (lambda: na.Histogram("x", 0), "number of levels of x must be a positive integer"),
    "values of the wrong shape": (
        lambda: na.Release([1.0], MOMENTS, na.Laplace(1.0), neighbours="replace", num_records=3),
        "values must have one number for each of 5 labels, got shape \\(1,\\)",
    ),
    "values not finite": (
        lambda: na.Release(
            [np.nan] * 5, MOMENTS, na.Laplace(1.0), neighbours="replace", num_records=3
        ),
        "values must be finite",
    ),
    "wrong labels": (
        lambda: na.Release(
            {"z": 1.0}, na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=3
        ),
        "missing \\['x'\\], unknown \\['z'\\]",
    ),
    "n not given under replace": (
        lambda: na.Release(
            {"x": 1.0}, na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=None
        ),
        "num_records must be given under 'replace'",
    ),
    "n negative": (
        lambda: na.Release(
            {"x": 1.0}, na.Count("x"), na.Laplace(1.0), neighbours="replace", num_records=-3
        ),
        "num_records must be a positive integer, got -3",
    ),
    "half a count": (
        lambda: na.Release(
            {"x": 1.5}, na.Count("x"), na.DiscreteLaplace(1.0), neighbours="replace", num_records=3
        ),
        "values must be whole numbers under DiscreteLaplace, got 1.5",
    ),
}


BAD_ARGUMENTS |= {
    "two sums of one name": (
        lambda: na.calibrate(
            na.Laplace,
            na.RegressionMoments("y", ("a", "a^2"), dict.fromkeys(("y", "a", "a^2"), (0, 1))),
            neighbours="replace",
            epsilon=1.0,
        ),
        "labels of RegressionMoments must be distinct, got 'a\\^2' twice",
    ),
    "bounds too far apart": (
        lambda: na.Clamped("x", -1e308, 1e308),
        "bounds of x must not lie so far apart",
    ),
    "bounds too narrow": (
        lambda: na.calibrate(
            na.Laplace, na.Clamped("x", 0, 1e-170, ("x^2",)), neighbours="replace", epsilon=1.0
        ),
        "bounds of Clamped are too narrow",
    ),
    "masked values": (
        lambda: na.publish(
            {"x": np.ma.masked_array([0.0, 1.0], mask=[0, 1])},
            na.Clamped("x", 0, 1), na.Laplace(1.0), neighbours="replace",
        ),
        "column 'x' must have no missing values, got a masked array",
    ),
    "numbers as text": (
        lambda: na.publish(
            {"x": ["0.5"]}, na.Clamped("x", 0, 1), na.Laplace(1.0), neighbours="replace"
        ),
        "column 'x' must be numeric",
    ),
}  # fmt: skip


def test_calibrated_cost_never_exceeds_the_budget():
    rng = np.random.default_rng(0)
    for epsilon, upper in rng.uniform(0.01, 10, (500, 2)):
        statistic = na.Clamped("x", 0.0, upper)
        noise = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
        release = na.Release([0.0], statistic, noise, neighbours="replace", num_records=3)
        assert release.cost.epsilon <= epsilon


@pytest.mark.parametrize(("call", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_series_is_read_by_its_labels():
    series = pandas.Series({"s=c": 1.0, "s=a": 61.0, "s=b": 18.0})
    release = na.Release(
        series, na.Histogram("s", ("a", "b", "c")), na.Laplace(2.0),
        neighbours="replace", num_records=80,
    )  # fmt: skip
    assert np.array_equal(release.values, [61.0, 18.0, 1.0])
    assert repr(release.mechanism) == "Laplace(2.)"
