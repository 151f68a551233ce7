"""What the tests of teachers share."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick():
    """For the fixtures of this module as for its tests: XLA's costly passes are left
    out of both, since they round otherwise."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
