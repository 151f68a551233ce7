"""The canvas that a constraint reads."""

import jax
import jax.numpy as jnp

from decoding.denoising import holes


def test_a_canvas_begins_behind_the_prompt_and_ends_at_its_limit():
    """Rows of other lengths; planted: the limit of the other row."""
    tokens = jnp.array([[5, 6, 0, 8, 9, 0], [5, 6, 7, 0, 0, 0]])
    known = jnp.array([[1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0]], bool)
    start, limit = jnp.array([1, 2]), jnp.array([5, 6])
    make = jax.vmap(lambda *row: holes.behind(*row, 5))
    canvas = make(tokens, known, start, limit)
    assert canvas.tolist() == [[6, -1, 8, 9, -2], [7, -1, -1, -1, -2]]
    assert make(tokens, known, start, limit[::-1]).tolist() != canvas.tolist()
