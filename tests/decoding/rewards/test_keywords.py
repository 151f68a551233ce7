"""decoding/rewards/keywords.py: words in texts, whatever their tokens are."""

import jax
import jax.numpy as jnp
import pytest

import models
from decoding import Spec
from decoding.conformance import kit, rewards
from decoding.rewards import keywords
from models.errors import MethodError


def shares(words, texts) -> list[float]:
    return [sum(w in text for w in words) / len(words) for text in texts]


def test_by_hand():
    words = ("bc", "aba", "e", "c")
    found = rewards.values(Spec("rewards/keywords", words=words)).tolist()
    spelt = [sample.text for sample in rewards.samples(rewards.TEXTS)]
    assert found == shares(words, spelt)
    # Planted: words of the prompt count.
    with_prompts = [
        kit.TARGET.tokenizer.decode([*p]) + t for p, t in zip(kit.PROMPTS, spelt)
    ]
    assert found != shares(words, with_prompts)


def test_words_of_each_prompt():
    words = (("a",), ("e", "b"), ("f",), ("ca", "g", "d"))
    found = rewards.values(Spec("rewards/keywords", words=words)).tolist()
    spelt = [sample.text for sample in rewards.samples(rewards.TEXTS)]
    each = [shares(row, [text])[0] for row, text in zip(words, spelt)]
    assert found == pytest.approx(each, abs=1e-7)


def test_a_word_over_several_tokens():
    """With a real tokenizer: words that begin and end inside tokens."""
    lm = models.load("tiny")
    text = "    return self.names[position]\n"
    ids = lm.tokenizer.encode(text)
    words = ("turn self", "names", "ition]", "position[", "return\n")
    reward = keywords.reward(lm.tokenizer, lm.config.vocab_size, words)
    state = jax.tree.map(lambda x: x[0], reward.init(1).row)
    prompt, length = jnp.int32(0), jnp.int32(len(ids))
    whole = type(reward.init(1))(state, reward.init(1).shared)
    value = reward.score(whole, jnp.asarray(ids), prompt, length)
    assert value == pytest.approx(3 / 5)
    assert reward.score(whole, jnp.asarray(ids), prompt, length - 2) < 3 / 5


@pytest.mark.parametrize("words", [(), ("",), ((),), ("a", ("b",))])
def test_refuses(words):
    with pytest.raises(MethodError, match="words="):
        keywords.reward(kit.TARGET.tokenizer, kit.VOCAB, words)


def test_refuses_lists_of_other_prompts():
    words = (("a",), ("b",))
    with pytest.raises(MethodError, match="2 lists for 3 prompts"):
        keywords.reward(kit.TARGET.tokenizer, kit.VOCAB, words).init(3)
