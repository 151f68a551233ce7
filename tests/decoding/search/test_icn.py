"""decoding/search/icn.py: its texts by hand, and what a loop over `generate` keeps."""

import jax
import numpy as np
import pytest

from decoding import Method, Spec, catalogue
from decoding.conformance import kit
from decoding.hypotheses import procedure
from decoding.loops import stats
from decoding.search import icn
from models.errors import MethodError, PromptError

LM, NEW = kit.model(0, 0.0), 8
LETTERS = LM.tokenizer
SEARCH = kit.spec("search/icn")  # three rounds, "b{explored}", "c" in between


def searched(search=SEARCH, heat=0.0, **fields):
    fields = {"lm": LM, "max_new_tokens": NEW, **fields}
    return kit.generate(Method(search=search), heat, **fields)


def by_hand(prompt: list[int], rounds: int, lists=True) -> list[list[int]]:
    """The texts in the order in which they are written."""
    texts, known = [], []
    for _ in range(rounds):
        words = "b" + "c".join(known) if known and lists else ""
        asked = [*prompt, *LETTERS.encode(words)]
        texts.append(kit.greedy_by_hand(LM.params, asked, NEW))
        spelt = LETTERS.decode([t for t in texts[-1] if t != kit.EOS])
        if spelt and spelt not in known:
            known.append(spelt)
    return texts


def new_first(texts: list[list[int]]) -> list[list[int]]:
    """Texts that another has had, and empty ones, come last."""
    bare = [[t for t in text if t != kit.EOS] for text in texts]
    new = [bool(b) and b not in bare[:i] for i, b in enumerate(bare)]
    return [texts[i] for i in sorted(range(len(texts)), key=lambda i: not new[i])]


def test_texts_by_hand():
    """Greedy; planted: the same loop without the list of what was written."""
    out = searched(n=3)
    expected = [new_first(by_hand(prompt, 3)) for prompt in kit.PROMPTS]
    assert out.tokens == expected
    assert out.tokens != [new_first(by_hand(p, 3, lists=False)) for p in kit.PROMPTS]
    assert out.scores == [[0.0, -1.0, -2.0]] * len(kit.PROMPTS)
    # A round is plain decoding, of one text a prompt.
    calls = sum(len(text) for row in expected for text in row)
    assert out.stats.new_tokens.sum() == out.stats.target_calls.sum() == calls
    assert out.stats.host_syncs == 2 and out.guarantee == "LOSSY"


def test_one_round_is_plain_decoding():
    """Also of draws: the first call has the call's seeds, and the next has others."""
    one = Spec("search/icn", **{**SEARCH.arguments, "rounds": 1})
    for heat, seed in ((0.0, 0), (0.8, [3, 1, 2, 5])):
        plain = kit.generate(Method(), heat, seed=seed, lm=LM, max_new_tokens=NEW)
        found = searched(one, heat, seed=seed)
        assert found.tokens == plain.tokens and found.logprobs == plain.logprobs
        assert found.stats.host_syncs == 0
    assert searched(n=2).tokens != [[text, text] for text in searched(one).tokens]
    # Without a list every round has the first prompt: its noise is another.
    seen = []

    def run(generate, prompts):
        seen.extend(generate(prompts).tokens for _ in range(3))
        return procedure.collected([generate(prompts)], [[(0, 0.0)]] * len(prompts))

    searched(built(procedure.Procedure(1, run)), 0.8, seed=[3, 1, 2, 5])
    assert seen[0] == plain.tokens
    assert seen[0] != seen[1] != seen[2] != seen[0]


def test_votes():
    """Answers are the last letters; the text with most votes is first."""
    out = searched(Spec("search/icn", **SEARCH.arguments, pattern="[a-g]"), n=3)
    texts = [by_hand(prompt, 3) for prompt in kit.PROMPTS]
    for found, written, scores in zip(out.tokens, texts, out.scores):
        assert sorted(found) == sorted(written)
        bare = [[t for t in text if t != kit.EOS] for text in found]
        last = [text[-1] if text else None for text in bare]
        assert scores == [last.count(one) if one is not None else 0 for one in last]


def test_prompts_grow_as_they_are():
    """Texts, tokens and messages; BOS is not repeated (planted: it would be)."""

    class Begins:
        def encode(self, text):
            return [0, *LETTERS.encode(text)]

    assert procedure.extended(Begins(), "ab", "cd") == "abcd"
    assert procedure.extended(Begins(), [0, 5], "cd") == [0, 5, 2, 3]
    assert Begins().encode("cd") != [2, 3]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    longer = procedure.extended(Begins(), messages, "cd")
    assert [m["content"] for m in longer] == ["a", "bcd"]
    assert messages[1]["content"] == "b"
    texts = [LETTERS.decode(prompt) for prompt in kit.PROMPTS]
    assert searched(n=3, prompts=texts).tokens == searched(n=3).tokens


def test_the_same_text_is_known_by_its_words():
    assert icn.normal(" Two\n apples ") == icn.normal("two apples")
    assert icn.normal("two apples") != icn.normal("twoapples")


def test_statistics_are_those_of_one_long_call():
    """Sums of counts, ratios of sums (planted: the mean of ratios)."""
    calls = [
        stats.summarise(
            stats.zeros(2, 2).replace(
                target_calls=np.array([4, k]),
                new_tokens=np.array([6, 2 * k]),
                accepted=np.array([[1, 0], [k, 1]]),
                offered=np.array([[4, 1], [k, k]]),
            ),
            *(1.5, 0.5),
        )
        for k in (1, 9)
    ]
    both = stats.merged(calls)
    assert both.new_tokens.tolist() == [12, 20]
    assert both.tokens_per_call == 32 / 18
    assert both.accepted_by_depth == [12 / 18, 2 / 12]
    mean = np.mean([c.accepted_by_depth for c in calls], 0)
    assert not np.allclose(both.accepted_by_depth, mean)
    assert (both.seconds, both.compile_seconds, both.host_syncs) == (3.0, 1.0, 1)
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: (a == b).all(), both.counters, (stats.merged([both]).counters)
        )
    )


def test_refuses():
    bare = type(LM)(**{**vars(LM), "tokenizer": None})
    for error, words, fields in (
        (PromptError, "3 texts", {"n": 4}),
        (MethodError, "prompts of its own", {"echo": True}),
        (MethodError, "reads no reward", {"reward": Spec("rewards/likelihood")}),
        (MethodError, "leave it", {"loop": lambda step, state: state}),
        (MethodError, "rounds=0", {"search": Spec("search/icn", rounds=0)}),
        (MethodError, "has no place", {"search": Spec("search/icn", words="b")}),
        (MethodError, "'tokenizer'", {"lm": bare}),
    ):
        with pytest.raises(error, match=words):
            searched(**fields)
    with pytest.raises(MethodError, match="a loop over"):
        next(kit.decoding.stream(LM, kit.PROMPTS, Method(search=SEARCH)))
    few = procedure.Procedure(1, lambda generate, prompts: generate(prompts[:1]))
    with pytest.raises(MethodError, match="one for each"):
        searched(built(few))


def built(part):
    return catalogue.Built("by_hand", "search", part, icn.CARD)
