"""decoding/search/pg_td.py against plain Python, and on planted leaves.

The planted leaf is one of 3^6 = 729 texts; the reward is the share of its beginning
that a text agrees with.
"""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.hypotheses.reward import Reward
from models.errors import MethodError
from models.synthetic import toy

LM = kit.model(0, ending=-1.0)
NEW = 6


def law(params, tokens: list[int]) -> np.ndarray:
    return np.float64(toy.logits(params, tokens))


def worth(tokens) -> float:
    """Some worth of a text, the same for all prompts."""
    return math.sin(sum((i + 2) * t for i, t in enumerate(tokens))) / 2 + 0.5


class ByHand:
    """PG-TD in plain Python; `texts` are those that were valued, in order."""

    def __init__(
        self, prompt, simulations, top=3, explore=4.0, growth=10.0, mean=False
    ):
        self.prompt, self.top, self.mean = prompt, top, mean
        self.explore, self.growth = explore, growth
        self.nodes = {(): self.node(())}
        self.texts: list = []
        for _ in range(simulations):
            self.simulate()

    def node(self, text):
        logits = law(LM.params, [*self.prompt, *text])
        tokens = np.argsort(-logits, kind="stable")[: self.top]
        chances = np.exp(logits[tokens] - logits[tokens].max())
        return types.SimpleNamespace(
            tokens=[int(t) for t in tokens],
            prior=chances / chances.sum(),
            returns=[[] for _ in tokens],
            visits=1,
        )

    def over(self, text) -> bool:
        return len(text) == NEW or text[-1:] == (kit.EOS,)

    def simulate(self):
        text, path = (), []
        while not self.over(text) and text in self.nodes:
            node = self.nodes[text]
            rate = math.log((node.visits + self.growth + 1) / self.growth)
            bonus = math.sqrt(math.log(node.visits)) * (rate + self.explore)
            take = np.mean if self.mean else max
            scores = [
                (take(r) if r else 0) + bonus * p / (1 + len(r))
                for r, p in zip(node.returns, node.prior)
            ]
            move = int(np.argmax(scores))
            path.append((text, move))
            text = (*text, node.tokens[move])
        if not self.over(text):
            self.nodes[text] = self.node(text)
            self.nodes[text].visits += 1
        while not self.over(text):
            text = (*text, int(law(LM.params, [*self.prompt, *text]).argmax()))
        if text not in self.texts:
            self.texts.append(text)
        for at, move in path:
            self.nodes[at].returns[move].append(worth(text))
            self.nodes[at].visits += 1


def found(simulations, reward, **fields):
    prompts = fields.pop("prompts", kit.PROMPTS)
    spec = Spec("search/pg_td", simulations=simulations, **fields)
    call = {"lm": LM, "max_new_tokens": NEW, "n": fields.get("keep", 1)}
    return kit.generate(Method(search=spec), prompts=prompts, reward=reward, **call)


@pytest.mark.parametrize("backup", ["max", "mean"])
def test_the_texts_of_plain_python_in_their_order(backup):
    """40 simulations; no text is valued twice, and no node runs twice."""
    asked: dict = {i: [] for i in range(len(kit.PROMPTS))}

    def reward(samples):
        for sample in samples:
            asked[sample.request].append(tuple(sample.tokens))
        return [worth(s.tokens) for s in samples]

    out = found(40, reward, backup=backup)
    runs = [ByHand(p, 40, mean=backup == "mean") for p in kit.PROMPTS]
    assert [asked[i] for i in asked] == [run.texts for run in runs]
    best = [max(run.texts, key=worth) for run in runs]
    assert [tuple(text) for text in out.tokens] == best
    np.testing.assert_allclose(out.scores, [worth(text) for text in best], rtol=1e-5)
    prefixes = [{t[:i] for t in run.texts for i in range(len(t))} for run in runs]
    assert out.stats.nodes_run.tolist() == [len(every) for every in prefixes]
    # Planted: the other backup.
    other = [ByHand(p, 40, mean=backup == "max") for p in kit.PROMPTS]
    assert [run.texts for run in other] != [run.texts for run in runs]


def test_the_host_is_asked_once_a_text():
    """One prompt: as many waits as texts, and one where the 64 slots are doubled."""
    calls = []
    reward = lambda samples: calls.extend(samples) or [worth(s.tokens) for s in samples]
    out = found(25, reward, prompts=kit.PROMPTS[:1])
    run = ByHand(kit.PROMPTS[0], 25)
    assert len(calls) == len(run.texts)
    assert out.stats.host_syncs == len(calls) + 1
    assert out.stats.most_slots.tolist() == out.stats.nodes_run.tolist()  # all are held
    for text, node in run.nodes.items():  # the identities of the card
        assert sum(map(len, node.returns)) == node.visits - (2 if text else 1)


def test_one_simulation_is_greedy_and_more_are_no_worse():
    reward = lambda samples: [worth(s.tokens) for s in samples]
    plain = kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens
    # The first simulation enters the best move, and writes greedily from there.
    assert found(1, reward).tokens == plain
    scores = [found(n, reward).scores for n in (1, 5, 25)]
    assert all(a <= b for a, b in zip(scores[0], scores[1]))
    assert all(a <= b for a, b in zip(scores[1], scores[2]))
    assert found(25, reward).tokens != plain  # planted: it searches


@struct.dataclass
class Planted:
    leaf: jax.Array  # int32[P, NEW]


def planted(leaves: np.ndarray) -> Reward:
    """The share of the leaf's beginning that a text agrees with."""

    def score(state, tokens, prompt, length):
        text = jnp.take(tokens, prompt + jnp.arange(NEW), mode="clip")
        same = (text == state.row.leaf) & (prompt + jnp.arange(NEW) < length)
        return jnp.cumprod(same).sum() / NEW

    init = lambda prompts: base.State(Planted(jnp.asarray(leaves)))
    return Reward(score=score, init=init)


@pytest.mark.long
def test_planted_leaves():
    """100 trees, 400 simulations, priors of deviation 0.5: found in 95 or more."""
    draw = np.random.default_rng(0)
    model = types.SimpleNamespace(**vars(kit.TARGET))
    params = model.model.init(jax.random.key(1), 0.25)
    table = params["table"].at[..., kit.EOS].add(-30.0)  # no text ends early
    model.params = {**params, "table": table}
    prompts = [[*map(int, draw.integers(0, kit.VOCAB - 1, 5))] for _ in range(100)]
    leaves = np.zeros((100, NEW), np.int32)
    for row, prompt in zip(leaves, prompts):
        for i in range(NEW):
            logits = law(model.params, [*prompt, *row[:i]])
            row[i] = np.argsort(-logits, kind="stable")[draw.integers(0, 3)]

    def hits(simulations):
        method = Method(search=Spec("search/pg_td", simulations=simulations))
        out = kit.generate(
            *(method, 0.0),
            lm=model,
            prompts=prompts,
            max_new_tokens=NEW,
            reward=planted(leaves),
        )
        return sum(np.asarray(out.scores) > 1 - 1e-6)

    assert hits(400) >= 95
    assert hits(20) < 60  # planted: too few simulations


def test_refuses():
    for fields, words in (
        ({"top": 0}, "top=0"),
        ({"explore": -1.0}, "explore=-1.0"),
        ({"backup": "sum"}, "backup='sum'"),
    ):
        with pytest.raises(MethodError, match=words):
            found(2, worth, **fields)
    with pytest.raises(MethodError, match="pass reward="):
        kit.generate(Method(search=Spec("search/pg_td")))
