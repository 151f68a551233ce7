"""Grammars of a call: where they stand, and which texts are whole."""

import pytest

from decoding import Spec
from decoding.automata import compiled
from decoding.conformance import kit
from decoding.serving import constraining
from models.errors import PromptError

NESTED = {"gbnf": 'root ::= "a" root? "b"'}
LETTERS = {"regex": "[cd]*"}


def test_one_for_all_or_one_a_prompt():
    assert constraining.grammars(None, 2) is None
    one = compiled.parse(NESTED)
    assert constraining.grammars(NESTED, 2) == (one, one)
    assert constraining.grammars([None, NESTED], 2) == (None, one)
    with pytest.raises(PromptError, match="1 entries for 2 prompts"):
        constraining.grammars([NESTED], 2)


def test_stands_before_the_first_truncation():
    grammars = constraining.grammars([NESTED, LETTERS], 2)
    penalty, top = kit.spec("transforms/dry"), Spec("transforms/top_k", k=2)
    cases = (((), 0), ((penalty,), 1), ((penalty, [top, top]), 1), ((top,), 0))
    for others, place in cases:
        parts = constraining.inserted(others, grammars, [0, 0])
        names = [(p[0] if isinstance(p, list) else p).name for p in parts]
        assert names.index("constraints/grammar") == place
        assert len(parts) == len(others) + 1
    # The same grammar for all prompts is one part, whatever their number.
    same = constraining.inserted((), constraining.grammars(NESTED, 3), [5, 5, 5])
    assert same == constraining.inserted((), constraining.grammars(NESTED, 1), [5])


def test_accepted():
    """Planted: the verdict of another prompt's grammar."""
    encode = kit.TARGET.tokenizer.encode
    texts = [[encode("aabb"), [*encode("ab"), kit.EOS], encode("aab")], [encode("cd")]]
    grammars = constraining.grammars([NESTED, LETTERS], 2)
    assert constraining.accepted(kit.TARGET, grammars, texts) == [
        [True, True, False],
        [True],
    ]
    swapped = constraining.accepted(kit.TARGET, grammars[::-1], texts)
    assert swapped == [[False, False, False], [False]]
    assert constraining.accepted(kit.TARGET, (None, None), texts)[0] == [True] * 3
