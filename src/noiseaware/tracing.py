"""Functions that a person wrote, called where JAX will call them."""

from collections.abc import Callable
from typing import Any

import jax

UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


def attempt(what: str, function: Callable, *arguments: Any) -> Any:
    """The result, or one sentence on why ``what``, the function by its name, has none."""
    try:
        return function(*arguments)
    except UNTRACEABLE as error:
        raise ValueError(
            f"{what} must be traceable by JAX: it branches on, or converts, a value that is not "
            "known before the run. Use jnp.where or jax.lax.cond."
        ) from error
    except KeyError as error:
        raise ValueError(f"{what} must read what is there: it has no {error}.") from error


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
