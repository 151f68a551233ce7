"""decoding/search/a_star.py against plain Python, with the noise of the same keys."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, noise
from decoding.conformance import kit
from decoding.loops import engines
from models.errors import MethodError
from models.synthetic import toy

LM = kit.model(0, ending=-1.5)
NEW, HEAT, SAMPLES, LONGEST = 24, 0.9, 3, 5
WORTH = {"b": 0.3, "c": -0.2, "d": 0.1, "f": -0.1}


def worth(tokens) -> float:
    """A worth of beginnings that rises and falls."""
    text = LM.tokenizer.decode([t for t in tokens if t != kit.EOS])
    return sum(WORTH.get(letter, 0.0) for letter in text)


def by_worth(samples):
    return [worth(s.tokens) for s in samples]


def searched(reward=by_worth, heat=HEAT, prompts=kit.PROMPTS, **fields):
    numbers = {"samples": SAMPLES, "longest": LONGEST, "separator": "a", **fields}
    method = Method(search=Spec("search/a_star", **numbers))
    call = {"lm": LM, "max_new_tokens": NEW, "prompts": prompts, "reward": reward}
    return kit.generate(method, heat, n=numbers.get("keep", 1), **call)


class ByHand:
    """The search in plain Python; `order` are the texts that were taken."""

    def __init__(self, place: int, take: int, expansions: int, sign: int = 1):
        self.prompt, self.order, self.round = kit.PROMPTS[place], [], 0
        self.key = engines.request_keys(0, len(kit.PROMPTS), 1)[place : place + 1]
        waits, spent = [types.SimpleNamespace(text=(), h=0.0, g=0.0)], 0
        finished: list = []
        while True:
            waits.sort(key=lambda x: -(x.g + sign * x.h))  # stable: the older first
            best = waits[:take]
            if spent >= expansions or any(self.over(x.text) for x in best):
                break
            best = best[: expansions - spent]
            spent, waits = spent + len(best), waits[len(best) :]
            self.order.append([x.text for x in best])
            for origin, text in self.steps(best):
                h = worth(text)
                g = origin.g + max(0.0, h - origin.h)
                waits.append(types.SimpleNamespace(text=text, h=h, g=g))
            finished = [x for x in waits if self.over(x.text)]
        finished = [x for x in waits if self.over(x.text)] or best
        self.best = max(finished, key=lambda x: x.g + sign * x.h)

    def over(self, text) -> bool:
        return len(text) == NEW or text[-1:] == (kit.EOS,)

    def steps(self, best) -> list:
        """Write the steps behind the texts, a token of each a round."""
        origins = [x for x in best for _ in range(SAMPLES)]
        texts = [x.text for x in origins]
        live = [True] * len(texts)
        while any(live):
            self.round += 1
            for i, text in enumerate(texts):
                if live[i]:
                    texts[i] = text = (*text, self.drawn(text, i))
                    size = len(text) - len(origins[i].text)
                    ends = text[-1] == 0 or size == LONGEST or self.over(text)
                    live[i] = not ends
        self.round += 2  # the last tokens run, and the worths arrive
        return list(zip(origins, texts))

    def drawn(self, text, i: int) -> int:
        keys = noise.for_role(self.key, noise.SELECT, jnp.asarray([self.round]))
        drawn = noise.gumbel(jax.random.fold_in(keys[0], i), kit.VOCAB)
        logits = toy.logits(LM.params, [*self.prompt, *text]) / HEAT
        return int(np.argmax(jax.nn.log_softmax(logits) + drawn))


@pytest.mark.parametrize(
    ("take", "expansions"), [(1, 6), pytest.param(2, 5, marks=pytest.mark.long)]
)
def test_against_plain_python(take, expansions):
    """Texts, scores and the order in which texts are taken."""
    out = searched(take=take, expansions=expansions)
    runs = [ByHand(i, take, expansions) for i in range(len(kit.PROMPTS))]
    assert [tuple(text) for text in out.tokens] == [run.best.text for run in runs]
    scores = [run.best.g + run.best.h for run in runs]
    np.testing.assert_allclose(out.scores, scores, rtol=1e-4, atol=1e-6)
    # Planted: h negated.
    others = [ByHand(i, take, expansions, -1) for i in range(len(kit.PROMPTS))]
    assert [run.order for run in others] != [run.order for run in runs]


def test_consistent_values():
    """h falls by what a step costs, and nothing rises: the first finish is the best.

    Of all texts that were written, as a search of every step finds them.
    """
    seen: dict = {}

    def cost(samples):
        for sample in samples:
            values = [abs(np.sin(3.0 * t + 1)) for t in sample.tokens]
            seen[(sample.request, *sample.tokens)] = (-float(sum(values)), sample.ended)
        return [seen[(s.request, *s.tokens)][0] for s in samples]

    out = searched(cost, expansions=12)
    for i, (text, score) in enumerate(zip(out.tokens, out.scores)):
        ended = [v for key, (v, over) in seen.items() if key[0] == i and over]
        assert score == pytest.approx(seen[(i, *text)][0], abs=1e-5)
        assert not ended or score == pytest.approx(max(ended), abs=1e-5)


@pytest.mark.long
def test_greedy_at_temperature_zero_and_every_reward():
    """At T = 0 all steps are the greedy one. A head's values need no host."""
    plain = kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens
    out = searched(heat=0.0, expansions=24)
    for text, greedy in zip(out.tokens, plain):
        assert text == greedy[: len(text)]
    head = Method(
        search=Spec("search/a_star", samples=2, expansions=3, separator="a", longest=4),
        rewards=(Spec("rewards/value_head"),),
    )
    valued = kit.generate(head, HEAT, lm=LM, max_new_tokens=NEW)
    assert valued.stats.host_syncs == 0 and np.isfinite(valued.scores).all()


def test_refuses():
    with pytest.raises(MethodError, match="take=0"):
        searched(take=0)
    with pytest.raises(MethodError, match="lies in no token"):
        searched(separator="?")
