"""Log-probabilities of texts against one forward pass, and what `echo` adds."""

import jax
import numpy as np
import pytest

import decoding
from decoding import Method
from decoding.conformance import kit
from decoding.serving import requests, scoring
from models.errors import PromptError

METHOD = Method(kit.spec("drafters/prompt_lookup"))
ASKED = {"top_logprobs": 3, "prompt_logprobs": True}


@pytest.fixture(scope="module")
def scored():
    """A call of several chunks of prompts of several lengths, with a temperature."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "LOGITS", 1)  # 16 tokens a chunk
        yield kit.generate(METHOD, 0.8, **ASKED)


def law(text: list[int]) -> np.ndarray:
    """The raw target's log-probabilities after `text`, by one pass over it."""
    return np.asarray(jax.nn.log_softmax(kit.toy.logits(kit.TARGET.params, text)))


def agrees(out, shift: int = 0) -> bool:
    """Whether every score is that of the law at its place, `shift` tokens on."""
    for prompt, tokens, best, before in zip(
        kit.PROMPTS, out.tokens, out.top_logprobs, out.prompt_logprobs
    ):
        text = [*prompt, *tokens]
        for i in range(1, len(text) - shift):
            logp = law(text[: i + shift])
            if i < len(prompt):
                if abs(before[i] - logp[text[i + shift]]) > 1e-5:
                    return False
                continue
            ids, values = zip(*best[i - len(prompt)])
            wanted = np.sort(logp)[::-1][:3]
            if not np.allclose(values, wanted, atol=1e-5):
                return False
            if not np.allclose(logp[list(ids)], wanted, atol=1e-5):
                return False
    return True


def test_scores_are_those_of_a_full_forward_pass(scored):
    """Planted: the scores of the next place."""
    assert agrees(scored)
    assert not agrees(scored, shift=1)
    assert [len(x) for x in scored.prompt_logprobs] == [len(p) for p in kit.PROMPTS]
    assert all(before[0] is None for before in scored.prompt_logprobs)
    for values, best in zip(scored.logprobs, scored.top_logprobs, strict=True):
        assert all(v <= pairs[0][1] + 1e-5 for v, pairs in zip(values, best))


def test_scoring_leaves_the_texts_alone(scored):
    plain = kit.generate(METHOD, 0.8)
    assert plain.tokens == scored.tokens and plain.logprobs == scored.logprobs
    assert plain.top_logprobs is None and plain.prompt_logprobs is None


def test_echo_repeats_the_prompt(scored):
    """In every list; planted: a stop string of the prompt, which cuts nothing."""
    out = kit.generate(METHOD, 0.8, echo=True, stop="a")
    bare = kit.generate(METHOD, 0.8, stop="a")
    spell = kit.TARGET.tokenizer.decode
    for i, prompt in enumerate(kit.PROMPTS):
        none = [None] * len(prompt)
        assert out.tokens[i] == [*prompt, *bare.tokens[i]]
        assert out.texts[i] == spell(prompt) + bare.texts[i]
        assert out.logprobs[i] == none + bare.logprobs[i]
        assert out.origin[i] == none + bare.origin[i]
    assert any("a" in spell(prompt) for prompt in kit.PROMPTS)
    spelt = [spell(prompt) for prompt in kit.PROMPTS]
    same = kit.generate(METHOD, 0.8, echo=True, stop="a", prompts=spelt)
    assert same.texts == out.texts and same.tokens == out.tokens
    best = kit.generate(METHOD, 0.8, echo=True, top_logprobs=3)
    assert best.logprobs[3][:20] == [None] * 20  # not asked for
    assert best.top_logprobs[3][20:] == scored.top_logprobs[3]
    both = kit.generate(METHOD, 0.8, echo=True, **ASKED)
    for i, prompt in enumerate(kit.PROMPTS):
        assert both.logprobs[i] == scored.prompt_logprobs[i] + scored.logprobs[i]
        assert both.top_logprobs[i][: len(prompt)] == [None] * len(prompt)
        assert len(both.top_logprobs[i]) == len(both.tokens[i])


class Words:
    """A tokenizer whose words begin with a space, which it drops in front."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(f" {chr(97 + t)}" for t in tokens).removeprefix(" ")


def test_the_space_after_the_prompt_stays():
    """Planted: the new tokens decoded by themselves."""
    lm = kit.types.SimpleNamespace(tokenizer=Words(), model=kit.TARGET.model)
    ends = requests.Ends(("d",), (6,))
    assert requests.text_of(lm, [2, 6], ends, [0, 1]) == " c"
    assert requests.text_of(lm, [2, 3, 4], ends, [0, 3]) == " c "
    assert requests.text_of(lm, [2, 6], ends) == "c"


@pytest.mark.long
def test_samples_have_scores_of_their_own():
    out = kit.generate(Method(), 0.8, n=2, top_logprobs=1, prompt_logprobs=True)
    assert [len(group) for group in out.top_logprobs] == [2] * 4
    assert len(out.prompt_logprobs) == 4  # one a prompt


@pytest.mark.parametrize("k", [-1, 9, 2.5, None])
def test_refuses_more_than_the_vocabulary(k):
    with pytest.raises(PromptError, match=rf"top_logprobs={k}: use 0 to 8"):
        decoding.generate(kit.TARGET, kit.PROMPTS, top_logprobs=k)
