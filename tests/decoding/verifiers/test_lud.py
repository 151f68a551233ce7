"""LUD's rule by hand, and the texts that it gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.verifiers import lud
from models.errors import MethodError

LAWS = [[0.05, 0.85, 0.1], [0.1, 0.05, 0.85], [0.4, 0.3, 0.3], [1 / 3] * 3]
TARGET = [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
TOKENS = [0, 1, 2, 0]


def verify(threshold: float, tokens=TOKENS, laws=LAWS) -> tuple[list[int], int]:
    """A chain of three guesses after the root, and the tokens that are said."""
    verifier = lud.verifier(threshold, greedy=True)

    @jax.jit
    def run(tokens, laws, target):
        nodes = base.TokenTree(
            tokens,
            jnp.arange(4) - 1,
            jnp.full((4,), base.CANDIDATE),
            None if laws is None else jnp.log(laws),
            depth=3,
        )
        own = base.Target(jnp.log(target), {}, lambda depth: None)
        return verifier.verify(jax.random.key(0), verifier.init({}), nodes, own)

    given = None if laws is None else np.float32(laws)
    verdict = run(np.int32(tokens), given, np.float32(TARGET))
    count = int(verdict.count)
    return verdict.path[:count].tolist(), int(verdict.token)


def test_by_hand():
    """0.85, 0.85 and 0.4: how many are accepted, and what the target then says."""
    assert verify(0.8) == ([1, 2], 1)
    assert verify(0.3) == ([1, 2, 3], 2)
    assert verify(0.9) == ([], 0)
    assert verify(2.0) == ([], 0)
    assert verify(2.0, [0, 0, 2, 0]) == ([1, 2], 1)  # what the target says


def test_a_guess_that_repeats_ends_the_unit():
    tokens, laws = [0, 1, 1, 0], [LAWS[0], LAWS[0], *LAWS[2:]]
    assert verify(0.8, tokens, laws) == ([1], 2)
    assert verify(0.8, [0, 1, 2, 0], [LAWS[0], LAWS[1], *LAWS[2:]])[0] == [1, 2]


def test_fault_the_target_s_chance_is_asked():
    """Planted: p for q. It would refuse what the placeholders were sure of."""
    assert verify(0.8, laws=TARGET) != verify(0.8)


def test_drafts_without_laws_are_sure():
    assert verify(0.9, laws=None) == ([1, 2, 3], 2)
    with pytest.raises(MethodError, match="threshold=3"):
        lud.verifier(3)


@functools.cache
def texts(threshold: float):
    """Greedy texts of the toy model in units."""
    rule = Spec("verifiers/lud", threshold=threshold)
    return kit.generate(Method(Spec("drafters/lud"), rule))


def test_units_in_the_loop():
    """A threshold that nothing reaches leaves the text plain's; at 0 every guess that
    repeats nothing is text. The two are one program."""
    assert texts(2.0).tokens == kit.plain(Method(), 0.0)
    loose = texts(0.0)
    assert loose.stats.target_calls.sum() < 0.8 * texts(2.0).stats.target_calls.sum()
    assert loose.tokens != texts(2.0).tokens  # planted: it is lossy
    assert loose.stats.compile_seconds == 0
