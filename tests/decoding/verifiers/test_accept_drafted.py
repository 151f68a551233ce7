"""Drafts are text; the target speaks where the drafter stopped within the block."""

import jax
import jax.numpy as jnp
import pytest

from decoding import Method, base, tree
from decoding.conformance import kit
from decoding.verifiers import accept_drafted

DRAFTS = jnp.array([[5, 6, 4]], jnp.int32)
LOGITS = jax.nn.one_hot(jnp.array([0, 1, 2, 3]), 8)  # the best token at node i is i
METHOD = Method(kit.spec("drafters/fs_gen", router="never"), transforms=kit.COMMON)


def verdict(count: int, greedy: bool = True):
    chain = tree.chain(jnp.zeros(1, jnp.int32), DRAFTS, jnp.array([count]))
    row = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, chain)
    noise = jax.nn.one_hot(7, 8) * 9
    target = base.Target(LOGITS, {}, lambda depth: noise)
    verify = accept_drafted.verifier(greedy).verify
    return verify(jax.random.key(0), base.State(), row, target)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_target_speaks_after_a_chain_that_stopped(count):
    made = verdict(count)
    assert int(made.count) == count and int(made.token) == count
    assert made.path.tolist() == [1, 2, 3][:count] + [0] * (3 - count)
    assert not bool(made.drafted)
    assert int(verdict(count, greedy=False).token) == 7  # the position's noise


def test_a_full_block_is_drafts_alone():
    made = verdict(3)
    assert (int(made.count), int(made.token), bool(made.drafted)) == (2, 4, True)
    assert made.path.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_what_is_drafted_is_the_text(temperature):
    """A draft model that never hands over writes what it writes alone, and the figures
    count no token as the target's."""
    method = Method(
        METHOD.drafter,
        verifier=kit.spec("verifiers/accept_drafted"),
        transforms=METHOD.transforms,
    )
    out = kit.generate(method, temperature)
    assert out.guarantee == base.LOSSY
    assert out.tokens == kit.plain(method, temperature, lm=kit.DRAFT)
    assert out.tokens != kit.plain(method, temperature)
    assert all(depth > 0 for row in out.origin for depth in row)
    assert out.stats.accepted_by_depth[0] == 1


def test_ends_of_texts_among_drafts():
    """EOS and the limit cut a full block where they fall."""
    method = Method(METHOD.drafter, verifier=kit.spec("verifiers/accept_drafted"))
    ends = kit.model(1, 0.5)
    for new in (kit.NEW, 5):
        out = kit.generate(method, lm=kit.model(0, 0.5), draft=ends, max_new_tokens=new)
        for prompt, text in zip(kit.PROMPTS, out.tokens):
            assert text == kit.greedy_by_hand(ends.params, prompt, new)


def test_fault_the_target_speaks_after_a_full_block():
    """Planted: the extra token is always the target's; the block's size shows."""
    method = Method(METHOD.drafter, verifier=kit.spec("verifiers/accept_drafted"))
    run = kit.Run(method)
    sound = run.parts.program.verifier

    def verify(key, state, nodes, target):
        full = sound.verify(key, state, nodes, target).drafted
        walked = tree.walk(
            nodes, lambda node, depth: jnp.append(nodes.tokens, -1)[node + 1]
        )
        own = jnp.argmax(target.logits[walked.count]).astype(jnp.int32)
        return base.Verdict(walked.path, walked.count, own, full & False)

    run.alter(verifier=sound._replace(verify=verify))
    alone = [kit.greedy_by_hand(kit.DRAFT.params, p, kit.NEW) for p in kit.PROMPTS]
    assert kit.Run(method).texts() == alone
    assert run.texts() != alone
