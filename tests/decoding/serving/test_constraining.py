"""Where each prompt's constraint runs, and where its parts stand among others."""

import pytest

from decoding import Spec
from decoding.automata import compiled, matchers
from decoding.conformance import kit
from decoding.serving import constraining
from models.errors import ConstraintError, PromptError

REGEX = {"regex": "ab*"}
MODEL = kit.model(0, -2.0)
PYTHON = matchers.Predicate(lambda tokens: [0], kit.VOCAB)


def read(constraint, prompts=2, engine="auto", finish=False):
    return constraining.read(MODEL, constraint, prompts, engine, finish)


def test_one_for_all_or_one_a_prompt():
    assert read(None) is None
    both = read(REGEX)
    assert both[0] == both[1] and both[0].grammar == compiled.parse(REGEX)
    free, held = read([None, PYTHON])
    assert free.engine is None and held.engine == "host" and held.matcher is PYTHON
    assert read(lambda tokens: [0])[0].engine == "host"
    with pytest.raises(PromptError, match="3 entries for 2 prompts"):
        read([None] * 3)
    with pytest.raises(ConstraintError, match="engine='gpu': use one of"):
        read(REGEX, engine="gpu")
    for engine, finish in (("device", False), ("auto", True)):
        with pytest.raises(ConstraintError, match="which runs on the host"):
            read(PYTHON, engine=engine, finish=finish)
    with pytest.raises(ConstraintError, match="finish=True with engine='host'"):
        read(REGEX, engine="host", finish=True)


def names(parts) -> list[str]:
    return [part.name for part in parts]


def test_parts_stand_before_truncations():
    """Of the engines that are used alone; planted: the part that serves no row."""
    others = (
        Spec("transforms/ban_tokens", bans=((0,),)),
        Spec("transforms/top_k", k=2),
    )
    grammar, host = constraining.GRAMMAR, constraining.HOST
    ban, top = names(others)
    for constraint, expected in (
        (REGEX, [grammar]),
        (PYTHON, [host]),
        ([REGEX, PYTHON], [grammar, host]),
        ([None, None], [grammar]),
    ):
        parts = constraining.inserted(others, read(constraint), [0, 0])
        assert names(parts) == [ban, *expected, top]
        assert names(parts) != [ban, grammar, host, top] or len(expected) == 2
    same = constraining.inserted((), read(PYTHON), [0, 0])[0]
    assert type(same) is Spec and same.arguments["of"] == (PYTHON,)


def test_verdicts():
    """A grammar reads bytes, a matcher tokens and the prompt."""
    texts = [[[0, 1, 1], [0, 1, kit.EOS], [1]], [[0], [0, kit.EOS], [1, kit.EOS]]]
    held = matchers.Predicate(
        lambda tokens: [0] if len(tokens) == 2 else [kit.EOS],
        kit.VOCAB,
        [kit.EOS],
        reads_prompt=True,
    )
    verdicts = constraining.accepted(MODEL, read([REGEX, held]), [[5], [6, 6]], texts)
    assert verdicts == [[True, True, False], [True, True, True]]
    assert constraining.accepted(MODEL, read([None, held]), [[5], [6]], texts) == [
        [True] * 3,
        [False] * 3,
    ]
