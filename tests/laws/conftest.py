import jax
import pytest


@pytest.fixture(autouse=True)
def _float64():
    """Kernels are called directly here, in the precision that ``fit`` gives them."""
    with jax.enable_x64(True):
        yield
