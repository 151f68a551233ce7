"""PARD's passes in the loop, beside whole forwards of the text and its masks."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.drafters import pard
from decoding.loops import decode, engines
from models import transformer
from models.errors import MethodError
from tests.decoding.drafters import agreement

MASK, DEPTH = 3, 4


@functools.cache
def draft():
    """A random transformer of the target's vocabulary, with a window in one layer."""
    config = dataclasses.replace(agreement.target().config, windows=(6, 0))
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(5))
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=config
    )


def method(name: str = "pard", length: int = DEPTH, **fields) -> Method:
    chain = Spec("topologies/chain", length=length, draw=base.POINT)
    # Drafts of random weights are bad: they are accepted by lot.
    taken = Spec("verifiers/simulated", rate=0.6)
    return Method(Spec(f"drafters/{name}", **fields), taken, chain)


def rounds(run: kit.Run, count: int = 5) -> list[tuple[list[list[int]], np.ndarray]]:
    """Of each round the texts before it, and its nodes behind the root."""
    state = run.start(agreement.PROMPTS, new=agreement.NEW, size=agreement.SIZE)
    engine, found = engines.Engine(run.parts.program), []
    for _ in range(count):
        rows = zip(np.asarray(state.tokens), np.asarray(state.length))
        texts = [tokens[:n].tolist() for tokens, n in rows]
        state, outcome = engine.step(run.params, state)
        found.append((texts, np.asarray(outcome.tree.tokens)[:, 1:]))
    return found


def by_hand(text: list[int], mask: int = MASK) -> list[int]:
    """The likeliest tokens of a whole forward of the text and its masks."""
    tokens = np.zeros((1, agreement.SIZE), np.int32)  # what stands behind is not seen
    tokens[0, : len(text) + DEPTH - 1] = [*text, *[mask] * (DEPTH - 1)]
    at = slice(len(text) - 1, len(text) - 1 + DEPTH)
    return np.asarray(_logits(tokens))[0, at].argmax(-1).tolist()


@jax.jit
def _logits(tokens):
    return transformer.forward(draft().config, draft().params, tokens).logits


@functools.cache
def run():
    own = method(mask=MASK)
    return kit.Run(own, lm=agreement.target(), beside={"draft": draft()})


def test_drafts_are_those_of_whole_forwards_behind_masks():
    """Round after round, over ragged rows; planted: another token for the masks."""
    wrong = []
    for texts, nodes in rounds(run()):
        assert nodes.tolist() == [by_hand(text) for text in texts]
        wrong += [nodes.tolist() != [by_hand(text, MASK + 1) for text in texts]]
    assert all(wrong)
    assert len({len(text) for text in texts}) == len(texts)


def test_fault_the_masks_stay_in_the_cache(monkeypatch):
    """Planted: the next round takes the masks for committed tokens."""

    def kept(cache, length):
        return dataclasses.replace(cache, length=length + DEPTH - 1)

    monkeypatch.setattr(pard, "replace", kept)
    own = method(mask=MASK)
    faulty = kit.Run(own, lm=agreement.target(), beside={"draft": draft()}).alter()
    same = [
        nodes.tolist() == [by_hand(text) for text in texts]
        for texts, nodes in rounds(faulty)
    ]
    assert same[0] and not all(same)


def test_one_token_a_pass_is_a_draft_model():
    """Drafts and calls; planted: with two tokens the second needs the first."""
    at = {"lm": agreement.target(), "beside": {"draft": draft()}}
    one, plain = (
        rounds(kit.Run(method(name, 1, **fields), **at))
        for name, fields in (("pard", {"mask": MASK}), ("model", {}))
    )
    for (texts, nodes), (others, expected) in zip(one, plain):
        assert texts == others and nodes.tolist() == expected.tolist()
    two = rounds(kit.Run(method("model", 2), **at))
    longer = [nodes for _, nodes in rounds(kit.Run(method(length=2, mask=MASK), **at))]
    assert any((a[1] != b).any() for a, b in zip(two, longer))


def test_one_draft_call_a_round():
    """Planted: a draft model calls once for every token."""

    def calls(name: str, **fields) -> int:
        own = kit.Run(
            method(name, **fields), lm=agreement.target(), beside={"draft": draft()}
        )
        program = own.parts.program
        state = own.start(agreement.PROMPTS, new=agreement.NEW, size=agreement.SIZE)

        def nodes(params, state):
            ctx = decode.context(program, params, state)
            return program.drafter.draft(state.key, ctx, state.drafter)[0]

        return int(jax.jit(nodes)(own.params, state).calls)

    assert calls("pard", mask=MASK) == 1
    assert calls("model") == DEPTH


@pytest.mark.parametrize("mask", [-1, agreement.VOCAB])
def test_an_unknown_mask_is_refused(mask):
    with pytest.raises(MethodError, match=f"mask={mask}"):
        kit.Run(method(mask=mask), lm=agreement.target(), beside={"draft": draft()})
