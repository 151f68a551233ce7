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


class Moves:
    """All of a prompt's moves in tables, as `mctx` takes them; node 0 is the prompt."""

    def __init__(self, prompt, top=3):
        self.texts: list = [()]
        child, prior, value, path = [], [], [], []
        for node, text in enumerate(self.texts):  # which grows
            rest, over = text, lambda x: len(x) == NEW or x[-1:] == (kit.EOS,)
            if over(text):  # nothing comes after it
                child.append([node] * top)
                prior.append([0.0] * top)
            else:
                logits = law(LM.params, [*prompt, *text])
                tokens = np.argsort(-logits, kind="stable")[:top]
                child.append([len(self.texts) + i for i in range(top)])
                prior.append(logits[tokens])
                self.texts += [(*text, int(token)) for token in tokens]
            while not over(rest):
                rest = (*rest, int(law(LM.params, [*prompt, *rest]).argmax()))
            path.append(rest)
            value.append(worth(rest))
        self.path = path  # the greedy text from every node
        self.child = jnp.asarray(child)
        self.prior = jnp.asarray(prior, jnp.float32)
        self.value = jnp.asarray(value, jnp.float32)

    def search(self, mctx, simulations, explore=4.0, growth=10.0):
        """The tree of `mctx.search`, whose backup averages, under PG-TD's formula."""

        def choose(key, tree, node, depth=0):
            # A node counts the simulation that made it once more, but not the prompt.
            visits = (tree.node_visits[node] + (node != 0)).astype(jnp.float32)
            weight = jnp.log((visits + growth + 1) / growth) + explore
            prior = jax.nn.softmax(tree.children_prior_logits[node])
            bonus = jnp.sqrt(jnp.log(visits)) / (1 + tree.children_visits[node])
            return jnp.argmax(tree.qvalues(node) + weight * prior * bonus)

        def model(params, key, action, node):
            after = self.child[node, action]
            new = mctx.RecurrentFnOutput(
                reward=jnp.zeros(1),
                discount=jnp.ones(1),
                prior_logits=self.prior[after],
                value=self.value[after],
            )
            return new, after

        start = jnp.zeros(1, jnp.int32)
        return mctx.search(
            None,
            jax.random.key(0),
            root=mctx.RootFnOutput(
                prior_logits=self.prior[start], value=self.value[start], embedding=start
            ),
            recurrent_fn=model,
            root_action_selection_fn=choose,
            interior_action_selection_fn=choose,
            num_simulations=simulations,
            max_depth=NEW,
        )


def test_the_mean_is_that_of_mctx():
    """Visits of every node, and the texts in their order, by another implementation.

    Planted: another weight, with other visits.
    """
    mctx = pytest.importorskip("mctx", reason="mctx is not installed")
    asked: list = []
    reward = lambda samples: [
        asked.append(tuple(s.tokens)) or worth(s.tokens) for s in samples
    ]
    prompt = kit.PROMPTS[0]
    found(40, reward, prompts=[prompt], backup="mean")
    moves, mine = Moves(prompt), ByHand(prompt, 40, mean=True)

    def visits(tree) -> dict:
        """Of the moves of every node that is no whole text."""
        counts = {
            moves.texts[int(node)]: count.tolist()
            for node, count in zip(tree.embeddings[0], tree.children_visits[0])
            if count.any()
        }
        return {text: count for text, count in counts.items() if text in mine.nodes}

    tree = moves.search(mctx, 40)
    by_hand = {
        text: [len(x) for x in node.returns]
        for text, node in mine.nodes.items()
        if any(node.returns)
    }
    assert visits(tree) == by_hand
    order = [moves.path[int(node)] for node in tree.embeddings[0, 1:]]
    made = np.asarray(tree.parents[0, 1:]) >= 0
    assert [*dict.fromkeys(x for x, is_made in zip(order, made) if is_made)] == asked
    assert visits(moves.search(mctx, 40, explore=1.0)) != by_hand


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


@pytest.mark.long
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
