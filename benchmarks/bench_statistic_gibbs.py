"""The sampler over sums: microseconds a draw of a chain with 64 chains, one sweep a draw, and the
same at n = 10^9 over n = 100. The models are those of [BS18, Section 4].
"""

import warnings

import numpy as np

import noiseaware as na

NUM_CHAINS = 64
RATE = na.GammaPrior(8.0, 2.0)
QUANTILES = -np.log1p(-np.array([0.025, 0.975])) / 4.0  # of records at the prior's mean rate
CASES = {
    "binomial": (na.BetaBernoulli("x", 10, 10), na.Count("x"), 0.5),
    "exponential": (na.Exponential("x", RATE), na.Redacted("x", *QUANTILES, ("x",)), 0.2),
}


def run(quick: bool) -> dict[str, float]:
    repeats, num_draws = (2, 1_000) if quick else (5, 10_000)
    found = {}
    for name, (model, statistic, mean) in CASES.items():
        seconds: dict[int, list[float]] = {100: [], 10**9: []}
        for _ in range(repeats):
            for num_records in seconds:
                release = release_of(statistic, mean, num_records)
                seconds[num_records].append(seconds_of_draws(release, model, num_draws))
        small, large = (min(values) for values in seconds.values())
        found[f"statistic_gibbs.us_per_draw.{name}"] = small / (NUM_CHAINS * num_draws) * 1e6
        found[f"statistic_gibbs.cost_ratio_n1e9_over_n100.{name}"] = large / small
    ratios = [value for key, value in found.items() if "cost_ratio" in key]
    return found | {"statistic_gibbs.cost_ratio_n1e9_over_n100": max(ratios)}


def release_of(statistic: na.Statistic, mean: float, num_records: int) -> na.Release:
    noise = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=1.0)
    values = [mean * num_records]
    return na.Release(values, statistic, noise, neighbours="replace", num_records=num_records)


def seconds_of_draws(release: na.Release, model: na.Model, num_draws: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)  # only its time counts
        draws = na.fit(
            release, model, seed=0, method="statistic_gibbs", chains=NUM_CHAINS, draws=num_draws,
            sweeps_per_draw=1, progress=False,
        )  # fmt: skip
    return draws.attrs["sampling_seconds"]
