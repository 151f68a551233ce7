"""ASAp's transform, against bounds and laws by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec, base, transform_chain
from decoding.automata.mass_trie import MassTrie
from decoding.conformance import kit
from decoding.constraints import asap
from models.errors import ConstraintError

PATTERN = "a(b|c)d|b"
REGEX = Spec("constraints/regex", pattern=PATTERN)
TEXTS = ("abd", "acd", "b")
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=kit.VOCAB), jnp.float32)
LOGP = np.asarray(jax.nn.log_softmax(LOGITS))


def tokens(text: str) -> list[int]:
    return [ord(c) - 97 for c in text]


def allowed(prefix: str) -> list[int]:
    going = {t[len(prefix)] for t in TEXTS if t.startswith(prefix) and t != prefix}
    return tokens("".join(sorted(going))) + [kit.EOS] * (prefix in TEXTS)


def visited(*texts: str) -> MassTrie:
    """A trie of texts under the law that is `LOGITS` everywhere."""
    trie = MassTrie()
    for text in texts:
        read = [*tokens(text), kit.EOS]
        masses = [
            np.log(np.exp(LOGP[allowed(text[:i])]).sum()) for i in range(len(read))
        ]
        trie.add(0, read, LOGP[read], masses)
    return trie


def part(memory=None, constraint=REGEX, **arguments) -> base.LogitsTransform:
    return Spec(
        "constraints/asap", constraint=constraint, memory=memory, **arguments
    ).build(kit.PARTS)


def state_after(transform: base.LogitsTransform, prefix: str) -> base.State:
    state = transform.init(jnp.zeros(4, jnp.int32), jnp.int32(1))
    for token in tokens(prefix):
        state = transform.advance(state, jnp.int32(token), LOGITS, {})
    return state


def law(transform: base.LogitsTransform, prefix: str) -> np.ndarray:
    return np.asarray(
        jax.nn.softmax(transform.apply(state_after(transform, prefix), LOGITS, {}))
    )


def by_hand(trie: MassTrie, prefix: str) -> np.ndarray:
    weights = np.zeros(kit.VOCAB)
    for token in allowed(prefix):
        bound = trie.log_bound(0, [*tokens(prefix), token])
        weights[token] = np.exp(LOGP[token] + bound)
    return weights / weights.sum()


@pytest.mark.parametrize("prefix", ["", "a", "ab", "ac", "abd", "b"])
def test_tokens_are_weighed_by_their_bounds(prefix):
    """Behind visited and new prefixes. Planted: the bounds of another text."""
    trie = visited("abd")
    np.testing.assert_allclose(law(part(trie), prefix), by_hand(trie, prefix), 1e-5)
    if prefix == "":
        other = by_hand(visited("b"), prefix)
        assert not np.allclose(law(part(trie), prefix), other, 1e-5)


@pytest.mark.parametrize("prefix", ["", "a", "ac"])
def test_without_texts_it_is_the_mask(prefix):
    """Bit for bit; so are prompts without a text. Planted: after one text."""
    mask = REGEX.build(kit.PARTS)
    masked = mask.apply(state_after(mask, prefix), LOGITS, {})
    for same in (part(), part(visited("abd"), index=1)):
        found = same.apply(state_after(same, prefix), LOGITS, {})
        assert np.array_equal(found, masked)
    changed = part(visited("abd", "acd"))
    found = changed.apply(state_after(changed, prefix), LOGITS, {})
    assert not np.array_equal(found, masked)


def test_the_mass_is_that_of_the_constraint():
    """Where no bound is below 1, log Z. Planted: the mass behind another token."""
    transform = part()
    masses = [
        float(transform_chain.mass(transform, state_after(transform, p), LOGITS, {}))
        for p in ("", "a")
    ]
    wanted = [np.log(np.exp(LOGP[allowed(p)]).sum()) for p in ("", "a")]
    np.testing.assert_allclose(masses, wanted, 1e-5)
    assert not np.allclose(masses, wanted[::-1], 1e-5)


def test_a_grammar_may_stand_for_the_part():
    trie = visited("abd")
    same = part(trie, {"regex": PATTERN})
    np.testing.assert_allclose(law(same, "a"), by_hand(trie, "a"), 1e-5)
    # Planted: another grammar.
    other = law(part(trie, {"regex": "ab|bc"}), "a")
    assert not np.allclose(other, by_hand(trie, "a"), 1e-5)


def test_other_texts_and_grammars_share_a_program():
    """Planted: another kind of constraint, which is another program."""
    specs = [
        Spec("constraints/asap", constraint=REGEX, memory=visited("b"), index=1),
        Spec("constraints/asap", constraint=Spec(REGEX.name, pattern="a")),
    ]
    assert specs[0].static == specs[1].static and specs[0] != specs[1]
    other = Spec("constraints/asap", constraint={"regex": "a"})
    assert other.static != specs[0].static


def test_refuses_a_part_that_forbids_nothing():
    with pytest.raises(ConstraintError, match="forbids nothing: give a part of"):
        asap.transform(Spec("transforms/top_k", k=2), None, (), kit.VOCAB)
