"""What a second fit of the same shape costs beside its sampling: it must not compile."""

import time

import noiseaware as na
from benchmarks.bench_regression import problem_at


def run(quick: bool) -> dict[str, float]:
    release, model, _ = problem_at(1.0, 0)
    na.fit(release, model, seed=0, progress=False)
    overheads = []
    for seed in range(1, 3 if quick else 6):
        release, model, _ = problem_at(0.3 * seed, seed)
        begin = time.perf_counter()
        draws = na.fit(release, model, seed=seed, progress=False)
        overheads.append(time.perf_counter() - begin - draws.attrs["sampling_seconds"])
    return {"fit.second_fit_overhead_s": sorted(overheads)[len(overheads) // 2]}
