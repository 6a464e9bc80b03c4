"""Run the benches and merge their figures into ``results.json``, a flat map name -> number.

    python -m benchmarks [--only name] [--quick]

Everything runs on one core, ours and the baselines alike: figures are ratios of one run.
"""

import argparse
import importlib
import json
import os
import time
from pathlib import Path

HERE = Path(__file__).parent
BENCHES = (
    "regression", "naive_bayes", "numba", "fit", "cold", "batch", "study", "proposals", "custom",
    "scaling", "statistic_gibbs", "private_mcmc", "gpu", "gpu_large",
)  # fmt: skip
RESULTS = HERE / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=BENCHES)
    parser.add_argument("--quick", action="store_true", help="fewer releases, shorter chains")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [arguments.only] if arguments.only else BENCHES:
        begin = time.perf_counter()
        bench = importlib.import_module(f"benchmarks.bench_{name}")
        found = bench.run(quick=arguments.quick)
        print(f"{name}{' (quick)' if arguments.quick else ''}: {time.perf_counter() - begin:.0f} s")
        for key, value in found.items():
            print(f"  {key:<50}{value:>14.4g}")
        results |= found
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
