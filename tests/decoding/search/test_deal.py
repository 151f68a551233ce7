"""decoding/search/deal.py against plain Python, by device and host; its plain form."""

import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.search import reference

LM = kit.model(0, ending=-1.0)
NEW = 10
WORDS = ("cab", "ff", "ade", "gg")


def law(tokens: list[int]) -> np.ndarray:
    logits = np.float64(toy.logits(LM.params, tokens))
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def worth(text: list[int]) -> float:
    spelt = kit.TARGET.tokenizer.decode([t for t in text if t != kit.EOS])
    return sum(word in spelt for word in WORDS) / len(WORDS)


def over(text: list[int]) -> bool:
    return text[-1] == kit.EOS or len(text) == NEW


def ahead(prompt, text, lookahead) -> list[int]:
    text = [*text]
    for _ in range(lookahead):
        if over(text):
            break
        text.append(int(law([*prompt, *text]).argmax()))
    return text


def by_hand(prompt, width, top, lookahead, alpha, reward_alone=False) -> list:
    """Beams as lists of (score, text); a finished text keeps its score."""
    beams, pool = [(0.0, [])], []
    while beams and len(pool) < width:
        ranked = []
        for total, text in beams:
            logp = law([*prompt, *text])
            for token in np.argsort(-logp, kind="stable")[:top]:
                more = [*text, int(token)]
                given = total + logp[token]
                value = alpha * worth(ahead(prompt, more, lookahead))
                score = value + (0 if reward_alone else given)
                ranked.append((score, given, more))
        ranked.sort(key=lambda x: -x[0])
        ranked = ranked[: 2 * width]
        pool += [(s, t) for s, _, t in ranked[:width] if over(t)]
        pool = sorted(pool, key=lambda x: -x[0])[:width]
        beams = [(g, t) for _, g, t in ranked if not over(t)][:width]
    return pool


def found(reward, width=2, top=3, lookahead=3, alpha=4.0, **fields):
    numbers = {"width": width, "top": top, "lookahead": lookahead, "alpha": alpha}
    prompts = fields.pop("prompts", kit.PROMPTS)
    method = Method(search=Spec("search/deal", **numbers, **fields))
    call = {"lm": LM, "max_new_tokens": NEW, "n": width, "prompts": prompts}
    return kit.generate(method, reward=reward, **call)


DEVICE = Spec("rewards/keywords", words=WORDS)


@pytest.mark.parametrize(("width", "top", "lookahead"), [(3, 6, 1), (2, 3, 3)])
def test_against_plain_python(width, top, lookahead):
    numbers = (width, top, lookahead, 4.0)
    out = found(DEVICE, *numbers)
    wanted = [by_hand(p, *numbers) for p in kit.PROMPTS]
    texts = [[t for _, t in row] for row in wanted]
    assert out.tokens == texts
    scores = [[s for s, _ in row] for row in wanted]
    np.testing.assert_allclose(out.scores, scores, rtol=1e-5)
    assert out.stats.host_syncs == 0
    if lookahead == 1:  # planted: the look-ahead is one token short
        short = [by_hand(p, width, top, 0, 4.0) for p in kit.PROMPTS]
        assert [[t for _, t in row] for row in short] != texts


@pytest.mark.long
def test_the_host_gives_the_same():
    """It is asked once a round in which a prompt asks, and never twice for a text."""
    calls: list = []

    def counted(samples):
        calls.append([(s.request, *s.tokens) for s in samples])
        return [worth(s.tokens) for s in samples]

    device, host = found(DEVICE), found(counted)
    assert host.tokens == device.tokens
    np.testing.assert_allclose(host.scores, device.scores, rtol=1e-6)
    every = [text for texts in calls for text in texts]
    assert len({*every}) == len(every)
    assert 0 < len(calls) <= host.stats.host_syncs
    # Without a look-ahead, one beam: one token, one question.
    one = found(counted, 1, 4, 0, prompts=kit.PROMPTS[:1])
    assert one.tokens == [text for _, text in by_hand(kit.PROMPTS[0], 1, 4, 0, 4.0)]
    assert one.stats.host_syncs == len(one.tokens[0])


def test_alpha_zero_is_beam_search():
    """By lists on the host, which `search/beam` is held to."""
    rules = reference.Rules(3, 0.0, True)
    plain = [reference.beams(law, p, NEW, (kit.EOS,), rules) for p in kit.PROMPTS]
    out = found(DEVICE, 3, 6, 1, 0.0)
    texts = [[text for _, text in row] for row in plain]
    assert out.tokens == texts
    scores = [[score for score, _ in row] for row in plain]
    np.testing.assert_allclose(out.scores, scores, rtol=1e-5)
    assert found(DEVICE, 3, 6, 1, 4.0).tokens != texts  # planted: a reward


def test_by_the_reward_alone():
    out = found(DEVICE, rank="reward")
    wanted = [by_hand(p, 2, 3, 3, 4.0, True) for p in kit.PROMPTS]
    assert out.tokens == [[t for _, t in row] for row in wanted]


def test_refuses():
    with pytest.raises(MethodError, match="top=0"):
        found(DEVICE, top=0)
    with pytest.raises(MethodError, match="alpha=inf"):
        found(DEVICE, alpha=float("inf"))
    with pytest.raises(MethodError, match="rank='best'"):
        found(DEVICE, rank="best")
    with pytest.raises(MethodError, match="pass reward="):
        kit.generate(Method(search=Spec("search/deal")))
