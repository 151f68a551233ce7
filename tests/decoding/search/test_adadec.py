"""decoding/search/adadec.py against plain Python, and its plain forms.

The toy model's laws have entropies of 0.4 to 1.9 nats.
"""

import jax
import numpy as np
import pytest

import models
from decoding import Method, Spec
from decoding.automata import stop_strings
from decoding.conformance import kit
from decoding.search import adadec
from models.errors import MethodError
from models.synthetic import toy

LM = kit.model(0, ending=-1.0)
NEW = 20


def law(tokens: list[int]) -> np.ndarray:
    logits = np.float64(toy.logits(LM.params, tokens))
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def by_hand(prompt, threshold, beams, lookahead, new=NEW) -> list[int]:
    text: list[int] = []
    while len(text) < new and kit.EOS not in text:
        logp = law([*prompt, *text])
        choices = [int(i) for i in np.argsort(-logp, kind="stable")[:beams]]
        if -(np.exp(logp) * logp).sum() >= threshold:
            choices.sort(
                key=lambda c: -score([*prompt, *text], c, new, lookahead, text)
            )
        text.append(choices[0])
    return text


def score(before, token, new, lookahead, text) -> float:
    """The mean log-probability of `token` and its greedy continuation."""
    path, given = [*before, token], [law(before)[token]]
    for _ in range(lookahead):
        if path[-1] == kit.EOS or len(text) + len(given) >= new:
            break
        logp = law(path)
        path.append(int(logp.argmax()))
        given.append(logp.max())
    return float(np.mean(given))


def found(threshold, beams=3, lookahead=5):
    spec = Spec("search/adadec", threshold=threshold, beams=beams, lookahead=lookahead)
    return kit.generate(Method(search=spec), lm=LM, max_new_tokens=NEW)


@pytest.mark.parametrize(
    ("threshold", "beams", "lookahead"), [(1.0, 3, 2), (0.0, 4, 1)]
)
def test_against_plain_python(threshold, beams, lookahead):
    out = found(threshold, beams, lookahead)
    wanted = [by_hand(p, threshold, beams, lookahead) for p in kit.PROMPTS]
    assert out.tokens == wanted
    given = [
        sum(law([*p, *t[:i]])[t[i]] for i in range(len(t)))
        for p, t in zip(kit.PROMPTS, wanted)
    ]
    np.testing.assert_allclose(out.scores, given, rtol=1e-5)
    # Planted: the look-ahead is one token short.
    short = [by_hand(p, threshold, beams, lookahead - 1) for p in kit.PROMPTS]
    assert out.tokens != short


@pytest.mark.long
def test_plain_forms():
    """No pause, no choice and no look-ahead are greedy decoding."""
    plain = kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens
    assert found(float("inf")).tokens == plain
    assert found(0.0, beams=1).tokens == plain
    assert found(0.0, lookahead=0).tokens == plain
    assert found(0.0).tokens != plain  # planted: and it pauses somewhere


def test_bodies_end_by_hand():
    """A line without indentation, or four blank lines; `tiny`'s own tokens."""
    lm = models.load("tiny")
    automaton = adadec.bodies(lm.tokenizer, lm.config.vocab_size)

    @jax.jit
    def read(tokens):
        move = lambda state, token: (
            stop_strings.advance(automaton, state, token),
            None,
        )
        return jax.lax.scan(move, jax.numpy.int32(0), tokens)[0]

    def ends(text: str) -> bool:
        state = read(np.asarray(lm.tokenizer.encode(text)))
        return bool(stop_strings.matched(automaton, state))

    assert ends("    return 1\n\ndef f") and ends("x\n\n\n\n\n") and ends("x\n@")
    assert not ends("    x = 1\n\n\n\n") and not ends("    if x:\n\n        y\n\n")
    assert not ends("x = 1")


def test_refuses():
    with pytest.raises(MethodError, match="threshold=nan"):
        found(float("nan"))
    with pytest.raises(MethodError, match="beams=0"):
        found(1.0, beams=0)
    with pytest.raises(MethodError, match="threshold"):
        kit.generate(Method(search=Spec("search/adadec")), lm=LM)
