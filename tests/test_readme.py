"""What README shows runs as it stands."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.optimized

APPROXIMATE = "approximate: CLT on the statistic"
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 8
    names: dict = {}
    kinds = []
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
        expected = "exact" if names["draws"].attrs["num_records"] < 10**9 else APPROXIMATE
        if "private_sample" in block:
            expected = "exact but for records that are clipped"
        assert names["draws"].attrs["exactness"] == expected
        kinds.append(names["draws"].attrs["noise"])
    assert kinds[0] == "external"
    assert kinds[-2:] == ["secure", "simulated"]


def test_the_typed_in_release_takes_ten_lines():
    block = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)[0]
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 10
