"""A release survives the file, and a file that is not understood is refused in one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

import noiseaware as na
from noiseaware.statistics import Statistic
from tests.laws.members import STATISTICS

GOLDEN = Path(__file__).parent / "golden" / "release_v1.json"


def some_release(statistic, mechanism, **options):
    values = np.round(9 * np.mean(statistic.contribution_bounds(), axis=0)) - 1
    return na.Release(
        values, statistic, mechanism, **{"neighbours": "replace", "num_records": 9} | options
    )


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
@pytest.mark.parametrize("kind", [na.Laplace, na.Gaussian, na.DiscreteLaplace])
@pytest.mark.parametrize("is_shared", [True, False])
def test_reads_what_it_wrote(tmp_path, statistic, kind, is_shared):
    if kind is na.DiscreteLaplace and not statistic.is_integer:
        pytest.skip("discrete noise needs counts")
    spread = 1 / 3 if is_shared else np.linspace(0.1, 3, len(statistic.labels))
    release = some_release(statistic, kind(spread))
    na.write(release, tmp_path / "release.json")
    assert na.read(tmp_path / "release.json") == release


@pytest.mark.parametrize("noise", ["secure", "simulated", "external"])
def test_keeps_the_kind_of_noise_and_a_secret_count(tmp_path, noise):
    options = {"neighbours": "add_remove", "num_records": None, "noise": noise}
    release = some_release(na.Count("x"), na.Laplace(2.0), **options)
    na.write(release, tmp_path / "release.json")
    again = na.read(tmp_path / "release.json")
    assert (again.noise, again.num_records, again.neighbours) == (noise, None, "add_remove")


def test_reads_a_file_written_by_hand_from_the_description():
    expected = na.Release(
        {"smokes=never": 61.25, "smokes=former": 18.5, "smokes=daily": -1.75},
        na.Histogram("smokes", ("never", "former", "daily")),
        na.Laplace([2.0, 2.0, 4.0]),
        neighbours="replace",
        num_records=80,
        noise="external",
    )
    assert na.read(GOLDEN) == expected
    # The record that changes most leaves one cell of scale 2 for the other: 1/2 + 1/2.
    assert na.read(GOLDEN).cost == na.PureDP(1.0, "replace")


EDITS = {
    "unknown version": ({"version": 2}, "version must be 1, got 2"),
    "version as a boolean": ({"version": True}, "version must be 1, got True"),
    "another format": ({"format": "csv"}, "format must be 'noiseaware release', got 'csv'"),
    "unknown field": ({"colour": "red"}, "unknown \\['colour'\\]"),
    "missing field": ({"noise": None}, "missing \\['noise'\\]"),
    "unknown noise": ({"noise": "white"}, "noise must be one of .*, got 'white'"),
    "wrong label": (
        {"values": {"smokes=never": 1, "smokes=former": 2, "x": 3}},
        "unknown \\['x'\\]",
    ),
    "values as a list": ({"values": [1, 2, 3]}, "values must map labels to numbers"),
    "value as text": (
        {"values": {"smokes=never": "1", "smokes=former": 2, "smokes=daily": 3}},
        "value of 'smokes=never' must be a number, got '1'",
    ),
    "value as a boolean": (
        {"values": {"smokes=never": True, "smokes=former": 2, "smokes=daily": 3}},
        "value of 'smokes=never' must be a number, got True",
    ),
    "unknown statistic": ({"statistic": {"name": "os.system"}}, "statistic must be one of"),
    "statistic as text": ({"statistic": "histogram"}, "statistic must be a JSON object"),
    "statistic with more": (
        {"statistic": {"name": "count", "column": "x", "weight": 2}},
        "unknown \\['weight'\\]",
    ),
    "levels as text": (
        {"statistic": {"name": "histogram", "column": "smokes", "levels": "abc"}},
        "levels of statistic 'histogram' must be a list, got 'abc'",
    ),
    "bounds reversed": (
        {
            "statistic": {
                "name": "clamped",
                "column": "x",
                "lower": 3,
                "upper": 1,
                "features": ["x"],
            }
        },
        "bounds of x must satisfy lower < upper, got \\[3, 1\\]",
    ),
    "unknown mechanism": (
        {"mechanism": {"name": "cauchy", "scale": 1}},
        "mechanism must be one of",
    ),
    "negative scale": (
        {"mechanism": {"name": "laplace", "scale": -2}},
        "scale must be positive, got -2",
    ),
    "scale edited": (
        {"mechanism": {"name": "laplace", "scale": 1.0}},
        "cost must be what statistic and mechanism imply",
    ),
    "too many scales": (
        {"mechanism": {"name": "laplace", "scale": [1, 2]}},
        "Laplace must have one scale or 3",
    ),
    "cost edited": (
        {"cost": {"name": "pure_dp", "epsilon": 0.5}},
        "cost must be what statistic and mechanism imply",
    ),
    "cost of another kind": ({"cost": {"name": "gdp", "mu": 1.0}}, "cost must be"),
    "no records": ({"num_records": 0}, "num_records must be a positive integer, got 0"),
    "half a record": ({"num_records": 80.5}, "num_records must be a positive integer, got 80.5"),
    "secret count under replace": ({"num_records": 0.0}, "num_records must be a positive integer"),
    "unknown relation": ({"neighbours": "swap"}, "neighbours must be one of .*, got 'swap'"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_refuses_a_file_edited_by_hand(tmp_path, edit, message):
    content = json.loads(GOLDEN.read_text())
    for name, value in edit.items():
        if value is None:
            del content[name]
        else:
            content[name] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        na.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [0, 1, 50, 200, 400])
def test_refuses_a_truncated_file(tmp_path, length):
    path = tmp_path / "truncated.json"
    path.write_text(GOLDEN.read_text()[:length])
    with pytest.raises(ValueError, match="is not valid JSON"):
        na.read(path)


def test_refuses_numbers_that_are_not_finite_and_fields_given_twice(tmp_path):
    path = tmp_path / "release.json"
    for number in ("NaN", "Infinity", "1e999"):
        path.write_text(GOLDEN.read_text().replace("61.25", number))
        with pytest.raises(ValueError, match="must be finite"):
            na.read(path)
    path.write_text(GOLDEN.read_text().replace('"version": 1,', '"version": 1, "version": 1,'))
    with pytest.raises(ValueError, match="field 'version' must appear once"):
        na.read(path)


def test_refuses_what_is_no_object(tmp_path):
    path = tmp_path / "release.json"
    for text in ("[]", "3", '"release"', "null"):
        path.write_text(text)
        with pytest.raises(ValueError, match="release must be a JSON object"):
            na.read(path)


class Custom(Statistic):
    @property
    def columns(self):
        return {}

    @property
    def labels(self):
        return ("a",)

    @property
    def is_integer(self):
        return False

    def __call__(self, record):
        return np.ones(1)

    def contribution_bounds(self):
        return np.zeros(1), np.ones(1)

    def sensitivity(self, neighbours, norm, scale=1.0):
        return 1.0


def test_a_custom_statistic_lives_in_memory_only_and_nothing_is_written(tmp_path):
    release = some_release(Custom(), na.Laplace(1.0))
    path = tmp_path / "release.json"
    with pytest.raises(ValueError, match="Custom has no name in the release format"):
        na.write(release, path)
    assert not path.exists()
