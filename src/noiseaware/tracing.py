"""Functions that a person wrote, called where JAX will call them."""

import functools
from collections.abc import Callable
from typing import Any

import jax

BRANCHES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


def attempt(what: str, function: Callable, *arguments: Any) -> Any:
    """The result, or one sentence on why ``what``, the function by its name, has none."""
    try:
        return function(*arguments)
    except jax.errors.TracerArrayConversionError as error:
        raise ValueError(
            f"{what} must be traceable by JAX: use jax.numpy and jax.scipy in place of NumPy and "
            "SciPy."
        ) from error
    except BRANCHES as error:
        raise ValueError(
            f"{what} must be traceable by JAX: it branches on, or converts, a value that is not "
            "known before the run. Use jnp.where or jax.lax.cond."
        ) from error
    except KeyError as error:
        raise ValueError(f"{what} must read what is there: it has no {error}.") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{what} failed: {error}") from error


class Fresh:
    """A function with an identity of its own. Compiled programs are kept by the identity of the
    functions in them: one that reads a global would be believed unchanged in a new model.
    """

    def __init__(self, function: Callable):
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def __repr__(self) -> str:
        return name_of(self._function)


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
