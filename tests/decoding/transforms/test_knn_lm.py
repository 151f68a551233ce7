"""decoding/transforms/knn_lm.py: by hand, and in the loops against brute force.

A small random transformer, a datastore of its own states, all distances in float64. A
text is right where every token is the best of the mixed law with its noise, up to the
ties by rounding of `experiments.measurement.identity`.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import decoding
from decoding import Method, Spec, base, compose, noise
from decoding.loops import engines
from decoding.text_lookup import key_store
from decoding.transforms import knn_lm
from experiments import knn_datastore
from experiments.measurement import identity
from models import transformer
from models.base import FFN_INPUT
from models.errors import MethodError
from tests.decoding.transforms.samplers import run
from tests.models import blocks

VOCAB, K, NEW, SIZE = 40, 12, 24, 64
CONFIG = transformer.Config(
    vocab_size=VOCAB,
    d_model=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=48,
    max_positions=256,
    ropes=(transformer.rope(8, 10000.0),),
)
PASS = 24  # texts of a forward pass
RNG = np.random.default_rng(0)
TEXTS = RNG.integers(0, VOCAB, (6, 50)).tolist()
PROMPTS = [TEXTS[0][:6], [3], [5, 6, 7, 5, 6, 7, 5, 6], TEXTS[3][10:22]]
DRAFTERS = {
    "chain": Spec("drafters/prompt_lookup"),
    "tree": Spec("drafters/token_recycling", choices=((0,), (1,), (0, 0), (1, 0))),
}


@functools.cache
def target():
    """A model whose keys lie so close that several neighbours have a share."""
    model = transformer.transformer(CONFIG)
    params = blocks.numpy_params(model, 2)
    norm = params["layer_1"]["mlp_norm"]
    params["layer_1"]["mlp_norm"] = {"scale": 0.25 * norm["scale"]}
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=CONFIG
    )


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> key_store.Store:
    folder = tmp_path_factory.mktemp("store")
    keys, values = knn_datastore.entries(target(), TEXTS, SIZE)
    key_store.save(folder, target(), keys, values, "small")
    return key_store.load(folder, target(), K)


@functools.cache
def forward():
    taps = (FFN_INPUT,)
    return jax.jit(lambda p, t: transformer.forward(CONFIG, p, t, taps=taps))


def mixed(known: key_store.Store, text: list[int], weight: float = 0.25):
    """log p float64[T, V] of the token after each beginning of `text`."""
    return lasting(known, [text], weight)[0]


def lasting(known: key_store.Store, texts: list[list[int]], weight: float = 0.25):
    """`mixed` of up to `PASS` texts, by one forward pass."""
    rows = np.zeros((PASS, SIZE), np.int32)
    for row, text in zip(rows, texts, strict=False):
        row[: len(text)] = text
    out = forward()(target().params, rows)
    hidden, logits = np.asarray(out.hidden[FFN_INPUT]), np.asarray(out.logits)
    return [
        of_states(known, hidden[i, : len(text)], logits[i, : len(text)], weight)
        for i, text in enumerate(texts)
    ]


def of_states(known: key_store.Store, hidden, logits, weight: float):
    """log p float64[T, V] by the states before T tokens and the target's logits."""
    queries = np.asarray(hidden, np.float64)
    (piece,) = known.drafts["knn"]
    keys, values = np.asarray(piece.keys, np.float64), np.asarray(piece.values)
    square = lambda x: np.square(x).sum(-1)
    distance = square(queries)[:, None] - 2 * queries @ keys.T + square(keys)
    near = np.argsort(distance, 1)[:, :K]
    share = special.softmax(-np.take_along_axis(distance, near, 1), 1)
    law = np.zeros((len(queries), VOCAB))
    np.add.at(law, (np.arange(len(queries))[:, None], values[near]), share)
    p = special.softmax(np.asarray(logits, np.float64), -1)
    with np.errstate(divide="ignore"):
        return np.log(weight * law + (1 - weight) * p)


def generate(known, drafter=None, temperature=0.0, weight=0.25, **fields):
    return decoding.generate(
        target(),
        fields.pop("prompts", PROMPTS),
        Method(drafter),
        fields.pop("max_new_tokens", NEW),
        temperature,
        [Spec("transforms/knn_lm", weight=weight)],
        drafts=known.drafts,
        streams=known.streams,
        width="paper",
        **fields,
    )


@functools.cache
def noises():
    return jax.jit(lambda key, position: noise.at_position(key, position, VOCAB))


def scores(known, texts, temperature: float):
    """The `identity.Scores` of the mixed law along `texts`."""
    keys = engines.request_keys(0, len(PROMPTS), 1)
    laws = lasting(known, [[*p, *text] for p, text in zip(PROMPTS, texts)])

    def at(i: int, k: int) -> tuple[np.ndarray, float]:
        size = len(PROMPTS[i]) + k
        law = laws[i][size - 1] / (temperature or 1.0)
        scale = np.abs(law[np.isfinite(law)]).max()
        if temperature:
            law = law + noises()(keys[i], jnp.int32(size))
        return np.asarray(law), float(scale)

    return at


def wrong(known, texts, temperature: float) -> int:
    """Tokens that are not the best of brute force's scores, ties set aside."""
    at, count = scores(known, texts, temperature), 0
    for i, text in enumerate(texts):
        for k, token in enumerate(text):
            law, scale = at(i, k)
            count += law.max() - law[token] > identity.ULPS * 1.2e-7 * scale
    return int(count)


@pytest.mark.parametrize(
    ("temperature", "drafter"),
    [
        (0.0, "chain"),
        (0.8, "tree"),
        pytest.param(0.0, "tree", marks=pytest.mark.long),
        pytest.param(0.8, "chain", marks=pytest.mark.long),
    ],
)
def test_texts_are_brute_force_s_under_drafts(known, temperature, drafter):
    """Planted: the text of the target alone; that of another weight."""
    plain = generate(known, None, temperature).tokens
    assert wrong(known, plain, temperature) == 0
    at = scores(known, plain, temperature)
    out = generate(known, DRAFTERS[drafter], temperature)
    same = identity.compare(out.tokens, plain, at, 1.2e-7)
    assert same.identical, same.differences
    assert out.stats.tokens_per_call > 1
    for weight in (0.0, 0.6):
        texts = generate(known, None, temperature, weight).tokens
        assert wrong(known, texts, temperature) > 5


class Rounds:
    """Rounds of the tree drafter, whose nodes' laws are compared with brute force."""

    def __init__(self, known: key_store.Store, **changes):
        self.known = known
        method = Method(DRAFTERS["tree"], transforms=(Spec("transforms/knn_lm"),))
        beside = (0.0, known.drafts, known.streams)
        self.parts = compose.compose(method, target(), *beside)
        program = dataclasses.replace(self.parts.program, **changes)
        self.engine = engines.Engine(program)

    def furthest(self, drafts=None, rounds: int = 6) -> float:
        """The greatest difference of a probability at any node of any round."""
        params = compose.params(
            target(), drafts or self.known.drafts, self.known.streams
        )
        limits = [len(p) + NEW for p in PROMPTS]
        keys = engines.request_keys(0, len(PROMPTS), 1)
        state = self.engine.start(params, self.parts, PROMPTS, limits, keys, SIZE)
        most, nodes = 0.0, 0
        for _ in range(rounds):
            rows = zip(np.asarray(state.tokens), np.asarray(state.length))
            texts = [tokens[:end].tolist() for tokens, end in rows]
            state, outcome = self.engine.step(params, state)
            parents, kind = outcome.tree.parents, outcome.tree.kind
            places = np.argwhere(np.asarray(kind) == base.CANDIDATE)
            paths = []
            for row, node in places:
                path, at = [], int(node)
                while at > 0:
                    path.append(int(outcome.tree.tokens[row, at]))
                    at = int(parents[row, at])
                paths.append(texts[row] + path[::-1])
            warped = np.asarray(outcome.warped, np.float64)
            for (row, node), law in zip(places, lasting(self.known, paths)):
                gap = np.exp(warped[row, node]) - np.exp(law[-1])
                most = max(most, np.abs(gap).max())
                nodes += node > 0
        assert nodes > 20
        return most


@pytest.mark.long
def test_the_law_at_every_tree_node(known):
    """Planted: distances without |k|^2; states of the node beside; aux dropped."""
    rounds = Rounds(known)
    assert rounds.furthest() < 1e-4
    (piece,) = known.drafts["knn"]
    bare = {"knn": [piece._replace(norms=jnp.zeros_like(piece.norms))]}
    assert rounds.furthest(bare, 2) > 0.01
    stream = known.streams["knn"]

    def beside(params, hidden):
        return jnp.roll(stream.logits(params, hidden), 1, 1)

    faulty = {"knn": stream._replace(logits=beside)}
    assert Rounds(known, streams=faulty).furthest(rounds=2) > 0.01
    law = rounds.parts.program.transform
    dropped = law._replace(
        apply=lambda state, logits, aux: law.apply(state, logits, {})
    )
    assert Rounds(known, transform=dropped).furthest(rounds=2) > 0.01


def test_it_follows_what_the_store_has_memorised(known):
    """Greedily, from six tokens on; planted: without the neighbours."""
    prompts, texts = zip(*((text[:6], text[6 : 6 + NEW]) for text in TEXTS[:4]))
    for drafter in (None, DRAFTERS["chain"]):
        out = generate(known, drafter, weight=0.9, prompts=prompts)
        assert out.tokens == list(texts)
    assert generate(known, weight=0.0, prompts=prompts).tokens != list(texts)


@pytest.mark.long
def test_a_search_mixes_too(known):
    """One beam is the greedy text; two have the mixed law's sums as scores."""
    beams = Method(search=Spec("search/beam", width=2, length_penalty=0.0))
    transforms = [Spec("transforms/knn_lm")]
    beside = {"drafts": known.drafts, "streams": known.streams, "n": 2}
    out = decoding.generate(target(), PROMPTS, beams, 12, 0.0, transforms, **beside)
    for prompt, texts, values in zip(PROMPTS, out.tokens, out.scores):
        for text, value in zip(texts, values):
            law = mixed(known, [*prompt, *text])[len(prompt) - 1 : -1]
            assert value == pytest.approx(law[np.arange(12), text].sum(), abs=1e-3)
    none = [Spec("transforms/knn_lm", weight=0.0)]  # planted: the target alone
    alone = decoding.generate(target(), PROMPTS, beams, 12, 0.0, none, **beside)
    assert not np.allclose(out.scores, alone.scores, atol=0.1)


LOGITS = np.log([0.5, 0.25, 0.125, 0.125])
NEAR = np.array([0.0, 0.0, 0.75, 0.25])


def near(p=NEAR) -> dict:
    with np.errstate(divide="ignore"):
        return {"knn": jnp.asarray(np.log(p), jnp.float32)}


def test_by_hand():
    out = run(knn_lm.transform(), LOGITS, aux=near())
    want = [0.375, 0.1875, 0.28125, 0.15625]
    np.testing.assert_allclose(np.exp(out), want, rtol=1e-6)
    out = run(knn_lm.transform(), LOGITS, aux=near(NEAR * 8))  # need not be normalised
    np.testing.assert_allclose(np.exp(out), want, rtol=1e-6)


def test_endpoints_are_exact():
    logits = np.float32(LOGITS)
    np.testing.assert_array_equal(
        run(knn_lm.transform(0.0), LOGITS, aux=near()), logits
    )
    whole = run(knn_lm.transform(1.0), LOGITS, aux=near())
    np.testing.assert_array_equal(whole, jax.nn.log_softmax(near()["knn"]))
    np.testing.assert_array_equal(run(knn_lm.transform(), LOGITS), logits)  # a draft


def test_forbidden_tokens_stay_forbidden():
    banned = np.where(np.arange(4) == 2, -np.inf, LOGITS)
    banned = banned - special.logsumexp(banned)
    p = np.exp(run(knn_lm.transform(), banned, aux=near()))
    np.testing.assert_allclose(
        p, 0.75 * np.exp(banned) + 0.25 * np.eye(4)[3], rtol=1e-6
    )
    last = np.where(np.arange(4) == 0, 0.0, -np.inf)  # no neighbour has it
    np.testing.assert_array_equal(run(knn_lm.transform(1.0), last, aux=near()), last)


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_refuses(weight):
    with pytest.raises(MethodError, match=f"weight={weight}"):
        knn_lm.transform(weight)
