"""Draws leave as ArviZ's container; this is the only file that imports ArviZ."""

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from noiseaware.convergence import MIN_ESS

MAX_R_HAT = 1.01


class ConvergenceWarning(UserWarning):
    """The draws are too few, or the chains disagree."""


class IncompleteWarning(UserWarning):
    """A run was interrupted: the draws are fewer than asked for."""


def _arviz():
    with warnings.catch_warnings():
        # ArviZ announces its next major version at every import.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def check_names(param_labels: Mapping[str, Mapping[str, Any]], params: Iterable[str]) -> None:
    """Axes of the draws are named after columns, and must not meet another name there."""
    taken = {"chain", "draw", "fit", "sum", "release", *params}
    for axes in param_labels.values():
        for axis in axes:
            if axis in taken:
                raise ValueError(f"a column must not be called {axis!r}: the draws use that name.")


def as_inference_data(
    *,
    posterior: Mapping[str, Any],
    prior: Mapping[str, Any] | None,
    param_labels: Mapping[str, Mapping[str, tuple[str, ...]]],
    attrs: Mapping[str, Any],
    sample_stats: Mapping[str, Any] | None = None,
    observed: Any = None,
    replicated: Any = None,
    release_labels: tuple[str, ...] = (),
    records: Mapping[str, Any] | None = None,
    fits: Mapping[str, Any] | None = None,
):
    """The conventional groups, plus ``imputed_records`` where they were kept, and ``fits``, what
    is known of each, where arrays have the dimension ``fit`` after chain and draw.
    """
    arviz = _arviz()
    coords = {"sum": list(release_labels)}
    for axes in param_labels.values():
        coords |= {axis: list(labels) for axis, labels in axes.items()}
    first = [] if fits is None else ["fit"]
    dims = {name: first + list(param_labels.get(name, ())) for name in posterior}
    dims |= {"release": [*first, "sum"]} | dict.fromkeys(sample_stats or (), first)
    container = arviz.from_dict(
        posterior=dict(posterior),
        prior=prior and {name: np.asarray(value)[None] for name, value in prior.items()},
        sample_stats=sample_stats and dict(sample_stats),
        observed_data=None if observed is None else {"release": observed},
        posterior_predictive=None if replicated is None else {"release": replicated},
        coords=coords,
        dims=dims,
        attrs=dict(attrs),
    )
    more = {"imputed_records": (("chain", "data_set", "record"), records), "fits": (("fit",), fits)}
    for group, (dimensions, values) in more.items():
        if values is not None:
            import xarray

            data = xarray.Dataset({name: (dimensions, value) for name, value in values.items()})
            data = data.assign_coords({axis: range(size) for axis, size in data.sizes.items()})
            container.add_groups({group: data}, warn_on_custom_groups=False)
    return container


def summarize(draws):
    """One row a parameter: posterior mean, sd and 90 % interval, how much of the prior sd is
    left (``sd_ratio``: 1 means that the release taught nothing), R-hat and effective sizes.
    """
    import pandas

    if not hasattr(draws, "posterior"):
        raise ValueError(f"draws must be what fit returns, got a {type(draws).__name__}.")
    arviz = _arviz()
    posterior, prior = draws.posterior, getattr(draws, "prior", None)
    with np.errstate(invalid="ignore", divide="ignore"):  # of chains that never moved: NaN
        r_hat, ess = arviz.rhat(_in_chains(posterior)), arviz.ess(posterior, method="bulk")
        tail = arviz.ess(posterior, method="tail")
    rows = {}
    for name, index, label in scalars(posterior):
        values = posterior[name].values[(..., *index)]
        prior_sd = np.nan if prior is None else prior[name].values[(..., *index)].std(ddof=1)
        low, high = np.quantile(values, [0.05, 0.95])
        sd = values.std(ddof=1)
        rows[label] = {
            "mean": values.mean(),
            "sd": sd,
            "q05": low,
            "q95": high,
            "prior_sd": prior_sd,
            "sd_ratio": sd / prior_sd,
            "r_hat": float(r_hat[name].values[index]),
            "ess_bulk": float(ess[name].values[index]),
            "ess_tail": float(tail[name].values[index]),
        }
    return pandas.DataFrame.from_dict(rows, orient="index")


def _in_chains(posterior):
    """One chain as its halves: R-hat compares chains."""
    if posterior.sizes["chain"] > 1:
        return posterior
    import xarray

    half = posterior.sizes["draw"] // 2
    halves = [
        posterior.isel(draw=slice(start, start + half)).assign_coords(
            chain=[number], draw=range(half)
        )
        for number, start in enumerate((0, half))
    ]
    return xarray.concat(halves, "chain")


def scalars(dataset):
    """(variable, index, label) of every scalar parameter; a symmetric one only once."""
    for name, variable in dataset.data_vars.items():
        axes = [axis for axis in variable.dims if axis not in ("chain", "draw")]
        is_symmetric = axes == ["predictor", "other_predictor"]
        for index in np.ndindex(*(variable.sizes[axis] for axis in axes)):
            if is_symmetric and index[0] > index[1]:
                continue
            labels = [str(dataset[axis].values[i]) for axis, i in zip(axes, index, strict=True)]
            yield name, index, f"{name}[{', '.join(labels)}]" if labels else name


MORE_DRAWS = "Fit again with more draws, or with more sweeps_per_draw."


def warn_if_not_converged(summary, advice: str = MORE_DRAWS) -> None:
    """One warning that names the worst parameter and what to do."""
    has_high_r_hat = ~(summary["r_hat"] <= MAX_R_HAT)
    has_low_ess = ~(summary[["ess_bulk", "ess_tail"]].min(axis=1) >= MIN_ESS)
    bad = summary[has_high_r_hat | has_low_ess]
    if bad.empty:
        return
    worst = bad.loc[bad["ess_bulk"].fillna(0.0).idxmin()]
    warnings.warn(
        f"{len(bad)} of {len(summary)} parameters have R-hat above {MAX_R_HAT} or effective "
        f"sample size below {MIN_ESS}. Worst: {worst.name}, R-hat {worst['r_hat']:.4f}, bulk "
        f"{worst['ess_bulk']:.0f}, tail {worst['ess_tail']:.0f}. {advice}",
        ConvergenceWarning,
        stacklevel=3,
    )


def warn_if_fits_not_converged(draws) -> None:
    """One warning that counts the fits, names the worst, and says what to do."""
    r_hat, ess = draws.fits["r_hat"].values, draws.fits["ess_bulk"].values
    (bad,) = np.nonzero(~((r_hat <= MAX_R_HAT) & (ess >= MIN_ESS)))
    if len(bad) == 0:
        return
    worst = bad[np.argmin(np.nan_to_num(ess[bad]))]
    warnings.warn(
        f"{len(bad)} of {len(ess)} fits have a parameter with R-hat above {MAX_R_HAT} or effective "
        f"sample size below {MIN_ESS}. Worst: fit {worst}, R-hat {r_hat[worst]:.4f}, bulk "
        f"{ess[worst]:.0f}. Fit again with more draws, or with more sweeps_per_draw.",
        ConvergenceWarning,
        stacklevel=3,
    )


def learned_json(summary) -> str:
    """``sd_ratio`` of every parameter, for the container's attributes."""
    return json.dumps({name: round(float(ratio), 4) for name, ratio in summary["sd_ratio"].items()})
