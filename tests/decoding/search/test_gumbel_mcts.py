"""decoding/search/gumbel_mcts.py against plain Python, `mctx` and the model's law."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding import Method, Spec
from decoding.conformance import kit
from decoding.search import gumbel_mcts
from models.base import causal_block
from models.errors import MethodError
from models.synthetic import toy

LM, NEW = kit.model(0, ending=-1.0), 5
HEAD = Spec("rewards/value_head")


@functools.cache
def law(text: tuple[int, ...]) -> np.ndarray:
    logits = np.float64(toy.logits(LM.params, [*text]))
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


@jax.jit
def states(tokens, size):
    cache = LM.model.init_cache(1, kit.SIZE, jnp.float32)
    block = causal_block(tokens, 0 * size, size, cache.size)
    return LM.model(LM.params, cache, block, ("norm",))[0].hidden["norm"][0]


@functools.cache
def value(text: tuple[int, ...]) -> float:
    """The head's, at the text's last token."""
    tokens = jnp.asarray([([*text] + [0] * kit.SIZE)[: kit.SIZE]])
    head = kit.value_head()
    state = states(tokens, jnp.asarray([len(text)]))[len(text) - 1]
    return float(state @ head["weight"] + head["bias"])


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


class ByHand:
    """The search in plain Python, at temperature 0; `ran` are the nodes it ran."""

    def __init__(self, prompt, simulations, top, visits=50.0, scale=0.1, drop=1):
        self.prompt, self.top, self.drop = tuple(prompt), top, drop
        self.visits, self.scale, self.simulations = visits, scale, simulations
        self.text, self.ran = (), {()}
        while not self.over(self.text):
            self.text = self.next()

    def over(self, text) -> bool:
        return len(text) == NEW or text[-1:] == (kit.EOS,)

    def node(self, text):
        logits = law((*self.prompt, *text))
        tokens = np.argsort(-logits, kind="stable")[: self.top]
        return types.SimpleNamespace(
            tokens=[int(t) for t in tokens],
            logits=logits[tokens],
            returns=[[] for _ in tokens],
            value=value((*self.prompt, *text)),
        )

    def scores(self, node):
        n = np.array([len(r) for r in node.returns])
        q = np.array([np.mean(r) if r else 0.0 for r in node.returns])
        p = softmax(node.logits) * (n > 0)
        mean = (p * q).sum() / p.sum() if n.any() else 0.0
        q = np.where(n > 0, q, (node.value + n.sum() * mean) / (1 + n.sum()))
        q = (q - q.min()) / max(q.max() - q.min(), 1e-8)
        return n, node.logits + (self.visits + n.max()) * self.scale * q

    def next(self):
        nodes = {self.text: self.node(self.text)}
        root = nodes[self.text]
        count = len(root.tokens)
        for considered in gumbel_mcts.halving(count, self.simulations):
            n, score = self.scores(root)
            move = int(np.argmax(np.where(n == considered, score, -np.inf)))
            text, path = self.text, []
            while True:
                path.append((text, move))
                text = (*text, nodes[text].tokens[move])
                if self.over(text) or text not in nodes:
                    break
                n, score = self.scores(nodes[text])
                move = int(np.argmax(softmax(score) - n / (1 + n.sum())))
            self.ran.add(text)
            if not self.over(text):
                nodes[text] = self.node(text)
            for at, move in path[:: self.drop]:
                nodes[at].returns[move].append(value((*self.prompt, *text)))
        n, score = self.scores(root)
        move = int(np.argmax(np.where(n == n.max(), score, -np.inf)))
        self.visits_of_root = n.tolist()
        return (*self.text, root.tokens[move])


def found(simulations, top=3, temperature=0.0, **fields):
    call = {"lm": LM, "max_new_tokens": NEW, **fields}
    search = {"simulations": simulations, "top": top}
    search |= {k: call.pop(k) for k in ("visits", "scale") if k in call}
    rewards = call.pop("rewards", (HEAD,))
    method = Method(search=Spec("search/gumbel_mcts", **search), rewards=rewards)
    return kit.generate(method, temperature, **call)


@pytest.mark.parametrize(
    ("simulations", "top"), [(12, 3), pytest.param(20, 8, marks=pytest.mark.long)]
)
def test_against_plain_python(simulations, top):
    """Texts, values, and how many nodes ran: none of them twice."""
    scale = 1.0
    out = found(simulations, top, scale=scale)
    runs = [ByHand(p, simulations, top, scale=scale) for p in kit.PROMPTS]
    assert [tuple(text) for text in out.tokens] == [run.text for run in runs]
    wanted = [value((*run.prompt, *run.text)) for run in runs]
    np.testing.assert_allclose(out.scores, wanted, rtol=1e-4, atol=1e-5)
    assert out.stats.nodes_run.tolist() == [len(run.ran) for run in runs]
    # Planted: no values; every other move of a simulation is not counted.
    plain = kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens
    assert found(simulations, top, scale=0.0).tokens == plain != out.tokens
    other = [ByHand(p, simulations, top, scale=scale, drop=2) for p in kit.PROMPTS]
    assert [run.ran for run in other] != [run.ran for run in runs]


def test_one_simulation_draws_from_the_law():
    """chi^2 of 4,000 first tokens at T = 1, level 1e-4; planted: that of T = 0.5."""
    n, prompt = 4000, kit.PROMPTS[0]
    prompts = [prompt] * n
    out = found(1, kit.VOCAB, 1.0, prompts=prompts, max_new_tokens=1)
    counts = np.bincount([text[0] for text in out.tokens], minlength=kit.VOCAB)
    logits = law(tuple(prompt))
    assert stats.chisquare(counts, n * softmax(logits)).pvalue > 1e-4
    assert stats.chisquare(counts, n * softmax(2 * logits)).pvalue < 1e-4


def test_halving_of_mctx():
    reason = "mctx is not installed"
    halving = pytest.importorskip("mctx._src.seq_halving", reason=reason)
    considered = halving.get_sequence_of_considered_visits
    for moves in range(20):
        for simulations in (1, 2, 7, 16, 50):
            wanted = list(considered(moves, simulations))
            assert gumbel_mcts.halving(moves, simulations) == wanted


def test_halving_by_hand():
    """Four moves, 16 simulations: two visits each, then four more of the better two."""
    rounds = [0] * 4 + [1] * 4 + [x for n in range(2, 6) for x in (n, n)]
    assert gumbel_mcts.halving(4, 16) == rounds
    assert gumbel_mcts.halving(1, 3) == [0, 1, 2]


def test_the_policy_of_mctx():
    """Every token is the action of `mctx.gumbel_muzero_policy` without noise."""
    mctx = pytest.importorskip("mctx", reason="mctx is not installed")
    simulations, top, prompt = 12, 3, tuple(kit.PROMPTS[0])
    texts, child, logits, worth = [()], [], [], []
    for node, text in enumerate(texts):  # which grows
        worth.append(value((*prompt, *text)))
        if len(text) == NEW or text[-1:] == (kit.EOS,):
            child.append([node] * top)
            logits.append(np.zeros(top))
            continue
        every = law((*prompt, *text))
        tokens = np.argsort(-every, kind="stable")[:top]
        child.append([len(texts) + i for i in range(top)])
        logits.append(every[tokens])
        texts += [(*text, int(token)) for token in tokens]
    child, prior = jnp.asarray(child), jnp.asarray(logits, jnp.float32)
    worth = jnp.asarray(worth, jnp.float32)

    def model(params, key, action, node):
        after = child[node, action]
        zero, one = jnp.zeros(1), jnp.ones(1)
        about = {"reward": zero, "discount": one}
        about |= {"prior_logits": prior[after], "value": worth[after]}
        return mctx.RecurrentFnOutput(**about), after

    @functools.partial(jax.jit, static_argnums=1)
    def action(node, scale):
        return mctx.gumbel_muzero_policy(
            *(None, jax.random.key(0)),
            root=mctx.RootFnOutput(
                prior_logits=prior[node], value=worth[node], embedding=node
            ),
            recurrent_fn=model,
            num_simulations=simulations,
            gumbel_scale=0.0,
            qtransform=functools.partial(
                mctx.qtransform_completed_by_mix_value, value_scale=scale
            ),
        ).action[0]

    def by_mctx(scale):
        node = 0
        while child[node, 0] != node:
            node = int(child[node, int(action(jnp.asarray([node]), scale))])
        return list(texts[node])

    for scale in (1.0, 0.1):
        assert found(simulations, top, prompts=[prompt], scale=scale).tokens == [
            by_mctx(scale)
        ]
    assert by_mctx(1.0) != by_mctx(0.0)  # planted: without values


def test_refuses():
    for fields, words in (
        ({"simulations": 0}, "simulations=0"),
        ({"simulations": 2, "top": 0}, "top=0"),
        ({"simulations": 2, "scale": -1.0}, "scale=-1.0"),
        ({"simulations": 2, "visits": float("nan")}, "visits=nan"),
    ):
        with pytest.raises(MethodError, match=words):
            found(**fields)
    with pytest.raises(MethodError, match="a value for every node"):
        found(2, rewards=(Spec("rewards/length", target=3),))
