"""Reproduce the papers' experiments: ``python -m experiments [--only name] [--quick]``.

A full run writes the ``results/`` of an experiment anew; a quick one prints what it found and
writes nothing.
"""

import argparse
import importlib
import time

EXPERIMENTS = ("bernstein2018", "raisa2021")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true", help="fewer data sets, in minutes")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else EXPERIMENTS:
        begin = time.perf_counter()
        importlib.import_module(f"experiments.{name}.run").run(quick=arguments.quick)
        print(f"{name}: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
