"""Many small programs that run once: XLA's costly passes are left out."""

import jax
import pytest


@pytest.fixture(autouse=True)
def quick_compilation():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
