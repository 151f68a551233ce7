"""Values in a buffer of their own: their readers cannot compute them anew."""

import jax
import jax.numpy as jnp

from kernels import one_buffer


def reads(hold):
    """Compile two readers of a product; return the fusions that multiply."""

    def program(x, c):
        law = hold(x * c)
        return law - law.max(-1, keepdims=True), jnp.exp(law).sum(-1)

    shapes = jnp.ones((4, 8)), jnp.float32(0.3)
    compiled = jax.jit(program).lower(*shapes).compile()
    computations = compiled.as_text().split("\n\n")
    return program, [text for text in computations if " multiply(" in text]


def test_a_product_is_computed_once_and_in_no_reader():
    """Planted: without a buffer the readers hold the product, and may contract it."""
    program, fusions = reads(one_buffer.held)
    assert len(fusions) == 1
    assert "subtract(" not in fusions[0] and "exponential(" not in fusions[0]
    x, c = jnp.arange(32.0).reshape(4, 8), jnp.float32(0.3)
    law, mass = program(x, c)
    assert (law == x * c - (x * c).max(-1, keepdims=True)).all()
    assert (mass == jnp.exp(x * c).sum(-1)).all()
    _, planted = reads(lambda x: x)
    assert any("subtract(" in text or "exponential(" in text for text in planted)
