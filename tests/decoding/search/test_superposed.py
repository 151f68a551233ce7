"""decoding/search/superposed.py: against a plain search of whole forward passes."""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.hypotheses import nodes, pool
from decoding.hypotheses.nodes import View
from decoding.loops import engines, leaves, search
from decoding.search import superposed
from decoding.text_lookup import suffix_array
from models import base
from models.errors import MethodError
from models.synthetic import recorded, toy
from tests.models import small

LM = kit.model(0, ending=0.0)
K, NEW, KEPT = 3, 40, 6  # more rounds than lie between two settlings
STORED = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [5, 1, 2, 4, 0], [3, 1, 2, 2]]


def method(**call) -> Method:
    return Method(
        search=Spec(
            "search/superposed", **{"kept": KEPT, "law_temperature": 1.0, **call}
        )
    )


def searched(lm=LM, n=K, prompts=kit.PROMPTS, new=NEW, stop=None, **call):
    return decoding.generate(
        lm, prompts, method(**call), max_new_tokens=new, n=n, stop=stop
    )


def of_toy(params, prompt, mixes, weigh=lambda w: w):
    """Logits behind a prompt and mixtures: the toy reads the token nearest the mean."""
    read = [round(float(sum(weigh(w) * t))) for t, w in mixes]
    return toy.logits(params, [*prompt, *read])


def chances(texts, context, token, shares=superposed.WEIGHTS) -> float:
    """The law of n-grams, by counting."""
    total = 0.0
    for size, share in enumerate(shares, 1):
        span = tuple(context[-size:])
        if len(context) < size:
            continue
        places = lambda x: sum(
            tuple(text[i : i + len(x)]) == x
            for text in texts
            for i in range(len(text) - len(x) + 1)
        )
        total += share * places((*span, token)) / max(places(span), 1)
    return total


def expected(
    law, root, eos, k=K, kept=KEPT, new=NEW, texts=None, alpha=0.54, heat=1.0, stop=None
):
    """The drafts of a prompt, by whole passes: `law` of the mixtures so far -> logits.

    Returns:
        The k best texts and their sums.
    """
    drafts, ended, mixes = [((), 0.0)], [], []
    while drafts:
        logits = np.asarray(law(mixes), np.float64) / heat
        best = np.argsort(-logits, kind="stable")[:kept]
        logp = logits[best] - np.log(np.exp(logits[best] - logits[best].max()).sum())
        logp -= logits[best].max()
        every = []
        for (text, total), (token, given) in itertools.product(drafts, zip(best, logp)):
            if texts is not None:
                chance = chances(texts, [root, *text], token)
                known = alpha * np.log(chance) if chance > 0 else -200.0
                given = (1 - alpha) * given + known
            every.append(((*text, int(token)), total + given))
        every.sort(key=lambda one: -one[1])
        over = lambda text: text[-1] in eos or len(text) == new or text[-2:] == stop
        ended += [one for one in every[:k] if over(one[0])]
        ended = sorted(ended, key=lambda one: -one[1])[:k]
        drafts = [one for one in every[: 2 * k] if not over(one[0])][:k]
        if len(ended) == k and drafts and ended[-1][1] >= drafts[0][1]:
            break
        if drafts:
            sums = np.asarray([total for _, total in drafts])
            weights = np.exp(sums - sums.max())
            tokens = np.asarray([text[-1] for text, _ in drafts])
            mixes.append((tokens, weights / weights.sum()))
    return [list(text) for text, _ in ended], [total for _, total in ended]


def by_hand(params, n=K, weigh=lambda w: w, prompts=kit.PROMPTS, **call):
    """`expected` of the toy model for every prompt."""
    found = [
        expected(
            lambda mixes, p=p: of_toy(params, p, mixes, weigh),
            p[-1],
            (kit.EOS,),
            **call,
        )
        for p in prompts
    ]
    return [texts for texts, _ in found], [sums for _, sums in found]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    """One folder, which a program is made for."""
    folder = tmp_path_factory.mktemp("store")
    suffix_array.save(suffix_array.build(STORED), folder)
    return str(folder)


@functools.cache
def long_memory(ending: float):
    """A toy of four tokens' memory: its texts have no cycles, whose sums would tie."""
    lm, params = toy.model(kit.VOCAB, order=4, seed=5, eos=(kit.EOS,))
    table = params["table"].at[..., kit.EOS].add(ending)
    return types.SimpleNamespace(
        model=lm,
        params={**params, "table": table},
        tokenizer=kit.TARGET.tokenizer,
        config=lm.config,
    )


@pytest.mark.parametrize("ending", [0.0, -30.0])
def test_drafts_are_those_of_whole_passes(ending):
    """A wrong mask shows in the toy's logits; planted: equal weights, other tokens."""
    lm = long_memory(ending)
    out = searched(lm)
    texts, sums = by_hand(lm.params)
    assert out.tokens == texts
    np.testing.assert_allclose(out.scores, sums, rtol=1e-4)
    equal = lambda w: np.full(len(w), 1 / len(w))
    assert by_hand(lm.params, weigh=equal)[0] != texts
    rounds = out.stats.rounds
    assert rounds == NEW if ending < 0 else rounds <= NEW
    assert (out.stats.nodes_run <= rounds).all()


@pytest.mark.long
def test_a_stop_string_ends_the_draft_that_has_it():
    """Planted: without the stop string, and each draft with the first one's end."""
    lm = long_memory(-30.0)
    out = searched(lm, stop="bb")
    assert out.tokens == by_hand(lm.params, stop=(1, 1))[0]
    assert out.tokens != by_hand(lm.params)[0]
    below = View.ends_below
    with pytest.MonkeyPatch.context() as patch, engines.apart():
        first = lambda view, node, token: below(view, node[:1] + 0 * node, token)
        patch.setattr(View, "ends_below", first)
        assert searched(lm, stop="bb").tokens != out.tokens


def test_n_grams():
    """q of a datastore, by counting; planted: the weights in reverse."""
    built = suffix_array.Datastore(*map(jnp.asarray, suffix_array.build(STORED)))
    tokens, shares = np.arange(6), np.asarray(superposed.WEIGHTS, np.float32)
    find = jax.jit(lambda last: superposed.ngrams(built, last, tokens, shares))
    for context in ([1], [1, 2], [3, 1, 2], [2, 3, 1, 2], [9, 9, 3, 1, 2], [0, 0]):
        last = np.full(5, -1, np.int32)
        last[-len(context) :] = context
        wanted = [chances(STORED, context, t) for t in tokens]
        np.testing.assert_allclose(find(last), wanted, rtol=1e-5)
    reverse = [chances(STORED, [1, 2], t, shares[::-1]) for t in tokens]
    found = np.asarray(find(np.asarray([-1, -1, -1, 1, 2], np.int32)))
    assert np.abs(found - reverse).max() > 0.01


def test_drafts_with_n_grams(store):
    """Against counting; planted: alpha of 0, and a store of one text."""
    out = searched(datastore=store)
    texts, sums = by_hand(LM.params, texts=STORED)
    assert out.tokens == texts
    np.testing.assert_allclose(out.scores, sums, rtol=1e-4)
    assert searched(datastore=store, alpha=0.0).tokens != texts
    assert by_hand(LM.params, texts=STORED[:1])[0] != texts


def test_one_draft_is_greedy():
    """At any temperature of the law; planted: three drafts, whose mixture differs."""
    for lm in (LM, kit.TARGET):  # the mixture of one row is that row
        greedy = [kit.greedy_by_hand(lm.params, p, NEW) for p in kit.PROMPTS]
        for heat in (0.06, 1.0):
            one = searched(lm, 1, drafts=1, law_temperature=heat)
            assert one.tokens == greedy
    lm = long_memory(-30.0)
    several = searched(lm, new=[1, 1, 1, NEW]).tokens
    assert several[3][0] != kit.greedy_by_hand(lm.params, kit.PROMPTS[3], NEW)
    for texts in several[:3]:  # of one token each
        assert len({text[0] for text in texts}) == K


@functools.cache
def transformer():
    return types.SimpleNamespace(
        model=small.LM, params=small.PARAMS, tokenizer=None, config=small.CONFIG
    )


@functools.cache
def whole_pass():
    def run(params, embeds, at):
        cache = small.LM.init_cache(1, 64)
        tokens = jnp.zeros(embeds.shape[:2], jnp.int32)
        block = base.causal_block(tokens, cache.length, at[None] + 1, 64, base.ALL)
        out, _ = small.LM(params, cache, dataclasses.replace(block, embeds=embeds))
        return out.logits[0, at]

    return jax.jit(run)


def of_transformer(prompt, mixes):
    """Logits of one causal pass over the prompt's rows and the mixtures."""
    table = np.asarray(small.PARAMS["embedding"]["tokens"])
    rows = [table[t] for t in prompt] + [w @ table[t] for t, w in mixes]
    embeds = np.zeros((1, 64, table.shape[1]), np.float32)
    embeds[0, : len(rows)] = rows
    return whole_pass()(small.PARAMS, jnp.asarray(embeds), jnp.int32(len(rows) - 1))


PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [8]]


def of_passes(weigh=lambda w: w, prompts=PROMPTS):
    return [
        expected(
            lambda mixes, p=p: of_transformer(p, [(t, weigh(w)) for t, w in mixes]),
            p[-1],
            (),
            kept=9,
        )
        for p in prompts
    ]


@pytest.mark.long
def test_a_transformer_by_whole_passes():
    """A sliding layer among three; planted: equal weights."""
    out = searched(transformer(), prompts=PROMPTS, kept=9)
    wanted = of_passes()
    assert out.tokens == [texts for texts, _ in wanted]
    np.testing.assert_allclose(out.scores, [sums for _, sums in wanted], atol=1e-3)
    equal = of_passes(lambda w: np.full(len(w), 1 / len(w)), PROMPTS[:1])
    assert out.tokens[:1] != [texts for texts, _ in equal]
    one = searched(transformer(), 1, PROMPTS, drafts=1)
    for prompt, text in zip(PROMPTS, one.tokens):  # greedy, by the rows of its tokens
        for i in range(0, NEW, 7):
            assert text[i] == of_transformer([*prompt, *text[:i]], []).argmax()


LATER = [pytest.param(name, marks=pytest.mark.long) for name in ("slots", "parents")]


@pytest.mark.parametrize("fault", [*LATER, "weights"])
def test_faults_of_the_loop(fault, monkeypatch, store):
    """Planted: drafts but the first have no key; all leaves hang below the first draft;
    the first draft's row is the input. N-grams make another draft the first."""
    right = searched(kit.TARGET, datastore=store).tokens
    hang, mixed = leaves._hang, search._mixed
    if fault == "slots":
        monkeypatch.setattr(search, "_shared", lambda mix, known, *_: known)
    if fault == "parents":
        alone = lambda chosen: chosen._replace(below=None)
        wrong = lambda p, s, chosen, *more: hang(p, s, alone(chosen), *more)
        monkeypatch.setattr(leaves, "_hang", wrong)
    if fault == "weights":
        first = lambda mix: nodes.alone(mix.node[..., 0], K)
        wrong = lambda p, w, n, mix: mixed(p, w, n, first(mix))
        monkeypatch.setattr(search, "_mixed", wrong)
    with engines.apart():
        assert searched(kit.TARGET, datastore=store).tokens != right


def test_weights_are_chances_of_sum_one():
    """A softmax of the sums of the drafts that go on; 0 where there are fewer."""
    choice = superposed.select(1, drafts=K, kept=KEPT, law_temperature=1.0)
    tree = jax.tree.map(lambda x: x[0], nodes.first(jnp.zeros(1, jnp.int32), 32))
    tree = dataclasses.replace(tree, size=jnp.int32(4))
    state = choice.init({}, NEW)
    start = state.row.replace(
        node=jnp.asarray([1, 2, 3]), sums=jnp.asarray([-1.0, -2.5, -7.0])
    )
    logits = jax.random.normal(jax.random.key(0), (1, kit.VOCAB))

    @jax.jit
    def select(ends, limit):
        stops = lambda node, token: jnp.broadcast_to(ends, token.shape)
        view = View(
            *(jnp.asarray([1]), logits, jax.nn.log_softmax(logits), {}, {}),
            *(jnp.zeros(1), jnp.zeros(0), tree, limit, jnp.asarray(False)),
            *(jnp.int32(3), pool.empty(K), stops, None),
        )
        before = dataclasses.replace(state, row=start)
        return choice.select(jax.random.key(0), before, view)

    for ends, limit, there in ((False, NEW, K), (True, NEW, 0), (False, 1, 0)):
        picked, after = select(jnp.asarray(ends), jnp.int32(limit))
        weights, node = np.asarray(picked.mix.weight[0]), np.asarray(picked.mix.node[0])
        assert (node >= 0).sum() == there and (picked.there.sum() == there)
        assert bool(picked.done) == (there == 0)
        if there:
            sums = np.asarray(after.row.sums, np.float64)
            np.testing.assert_allclose(weights.sum(), 1.0, atol=1e-6)
            np.testing.assert_allclose(
                weights, np.exp(sums) / np.exp(sums).sum(), atol=1e-6
            )
            assert node.tolist() == [4, 5, 6] and int(picked.run[0]) == 4
        else:
            assert not weights.any()


def test_refuses():
    for call, words in (
        ({"drafts": 0}, "drafts=0"),
        ({"kept": 2}, "kept=2"),
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"law_temperature": 0.0}, "law_temperature=0.0"),
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"weights": (0.9, 0.9)}, "weights="),
    ):
        with pytest.raises(MethodError, match=words):
            searched(**call)
    lm = types.SimpleNamespace(
        model=recorded.language_model(8),
        params={"text": jnp.zeros((1, 8), jnp.int32)},
        tokenizer=None,
        config=recorded.Config(8),
    )
    with pytest.raises(MethodError, match="mixes rows of the embedding table"):
        searched(lm)
    reads = Spec("transforms/repetition_penalty", penalty=1.2)
    with pytest.raises(MethodError, match="a transform that reads the text"):
        kit.generate(dataclasses.replace(method(), transforms=(reads,)), n=1)
