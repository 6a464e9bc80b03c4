"""Imports point one way, and the package is light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import noiseaware

SOURCE = Path(noiseaware.__file__).parent

# Each room may import from the rooms before it; "samplers" and "mechanisms" never meet.
ALLOWED = {
    "validate": set(),
    "schema": {"validate"},
    "accounting": {"validate", "schema"},
    "tracing": set(),
    "statistics": {"validate", "schema", "tracing"},
    "mechanisms": {"validate", "schema", "accounting", "statistics", "tracing"},
    "release": {"validate", "schema", "accounting", "statistics", "mechanisms"},
    "publishing": {"validate", "schema", "accounting", "statistics", "mechanisms", "release"},
    "release_file": {"accounting", "statistics", "mechanisms", "release"},
    "randomness": set(),
    "elliptical_slice": {"randomness"},
    "models": {"validate", "schema", "randomness", "elliptical_slice", "tracing"},
    "running": set(),
    "samplers": {"elliptical_slice", "validate", "schema", "randomness", "models", "running"},
    "convergence": set(),
    "chains": {
        "elliptical_slice", "randomness", "schema", "statistics", "mechanisms", "models",
        "samplers",
    },
    "warming": {"elliptical_slice", "chains", "samplers", "convergence"},
    "pilot": {"elliptical_slice", "chains", "samplers"},
    "journeys": {
        "elliptical_slice", "chains", "convergence", "warming", "pilot", "models", "samplers",
        "running",
    },
    "checking": {"chains", "mechanisms", "models", "samplers", "schema", "statistics", "tracing"},
    "draws": {"convergence"},
    "fitting": {
        "validate", "schema", "statistics", "release", "models", "samplers", "running", "draws",
        "convergence", "chains", "checking", "journeys", "pilot", "warming",
    },
    "private_mcmc": {"validate", "schema", "accounting", "models", "running"},
    "private_pilots": {
        "validate", "schema", "accounting", "statistics", "mechanisms", "release", "publishing",
        "models", "running", "fitting", "private_mcmc",
    },
    "private_sampling": {
        "validate", "schema", "accounting", "models", "release", "running", "draws",
        "private_mcmc", "private_pilots",
    },
    "baselines": {"validate", "schema", "release", "models", "draws"},
    "studies": {"validate", "running"},
    "diagnostics": {
        "validate", "schema", "release", "models", "statistics", "mechanisms", "draws", "fitting",
        "studies", "samplers", "convergence",
    },
    "maximizing": {
        "validate", "schema", "release", "models", "samplers", "running", "draws", "chains",
        "warming", "fitting",
    },
}  # fmt: skip


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts[0] == "noiseaware":
                yield from parts[1:2] or (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("noiseaware."):
                    yield alias.name.split(".")[1]


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "__init__.py":
            continue
        here = room(path)
        assert here in ALLOWED, f"{path.name} is in no room that the table knows"
        assert set(imports(path)) <= ALLOWED[here] | {here}, path


def test_only_draws_imports_arviz():
    users = [path.name for path in SOURCE.rglob("*.py") if "import arviz" in path.read_text()]
    assert users == ["draws.py"]


MEASURE = """
import json, sys, time
start = time.perf_counter()
import equinox, jaxtyping
base = time.perf_counter() - start
start = time.perf_counter()
import noiseaware
ours = time.perf_counter() - start
heavy = ("arviz", "opendp", "numpyro", "matplotlib", "dp_accounting", "pandas", "rich")
print(json.dumps([base, ours, [name for name in heavy if name in sys.modules]]))
"""


def test_import_is_light():
    output = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    ).stdout
    _, ours, heavy = json.loads(output)
    assert ours <= 0.3
    assert heavy == []


def test_every_public_name_loads_and_an_unknown_one_does_not():
    for name in noiseaware.__all__:
        assert getattr(noiseaware, name) is not None
    assert not hasattr(noiseaware, "no_such_name")


def test_importing_leaves_the_callers_precision_alone():
    code = (
        "import jax, noiseaware as na; na.BetaBernoulli('x'); "
        "r = na.Release({'x': 3.0}, na.Count('x'), na.Laplace(1.0), neighbours='replace', "
        "num_records=5); "
        "na.fit(r, na.BetaBernoulli('x'), seed=0, draws=100, progress=False); "
        "assert jax.numpy.ones(1).dtype == 'float32'"
    )
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", code], check=True)
