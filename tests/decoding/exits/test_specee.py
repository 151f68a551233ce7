"""A target that stops early, against the table of the toy model, layer by layer."""

import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.exits import specee
from models.base import Block, Visibility, pack_bits
from models.errors import ConfigError, MethodError
from models.heads import eagle
from models.predictors import exit_predictor
from models.synthetic import toy

V, LAYERS, K, STATIC, LAST, NEW = 8, 5, 6, (1,), 2, 20
PROMPTS = [[1], [2, 3, 4], [5, 5, 0, 1, 6]]


def target():
    model, params = toy.model(V, n_layers=LAYERS, seed=3)
    # Layers add less and less, so that early answers often stand.
    scale = 0.5 ** np.arange(LAYERS)
    table = params["table"] * scale[:, None, None, None]
    return types.SimpleNamespace(
        model=model,
        params={**params, "table": table.astype(jnp.float32)},
        tokenizer=None,
        config=model.config,
    )


LM = target()
HEADS = eagle.init(jax.random.key(1), LM.config)
EXITS = exit_predictor.init(jax.random.key(2), LAYERS, K, 16)
# What has changed since the last layer that was asked counts most.
EXITS["in"]["weight"] = EXITS["in"]["weight"].at[:, 2 * K :].multiply(8.0)
BESIDE = {"heads": HEADS, "exits": EXITS}
METHOD = Method(exit=Spec("exits/specee", static=STATIC, last=LAST, threshold=0.5))


def by_hand(text, candidates, past) -> tuple[int, int]:
    """Layers taken and the token said after `text`, of one row."""
    table = np.asarray(LM.params["table"])
    weights = jax.tree.map(np.asarray, EXITS)
    asked = set(STATIC)
    for e in past[-LAST:]:
        asked |= {min(max(e - 1 + around, 0), LAYERS - 2) for around in (-2, 0, 2)}
    before = np.zeros(K)
    for layer in range(LAYERS):
        logits = toy.logits({"table": table[: layer + 1]}, text)
        best = int(logits.argmax())
        if layer == LAYERS - 1:
            return LAYERS, best
        if layer not in asked:
            continue
        z = logits[candidates].astype(np.float64)
        s = np.exp(z - z.max())
        s /= s.sum()
        given = np.concatenate([z, s, s - before])
        hidden = given @ weights["in"]["weight"][layer] + weights["in"]["bias"][layer]
        odds = np.maximum(hidden, 0) @ weights["out"]["weight"][layer]
        before = s
        if odds + weights["out"]["bias"][layer] > 0 and best in candidates:
            return layer + 1, best
    raise AssertionError


def agrees(lm=LM, prompts=PROMPTS) -> tuple[bool, list[int]]:
    """Whether every row of every round is as by hand; and all layers taken."""
    beside = {"heads": HEADS, "exits": EXITS}
    run = kit.Run(METHOD, lm=lm, beside=beside).alter(chunk=4)
    state = run.start(prompts, NEW)
    past, same = [[] for _ in prompts], True
    for _ in range(NEW):
        texts = [
            t[:n].tolist()
            for t, n in zip(np.asarray(state.tokens), np.asarray(state.length))
        ]
        state, outcome = run.engine.step(run.params, state)
        taken = np.asarray(outcome.target.hidden[specee.EXIT])[:, 0, 0].astype(int)
        said = np.asarray(outcome.verdict.token)
        candidates = np.asarray(state.exit.row.candidates)
        for i, text in enumerate(texts):
            wanted = by_hand(text, candidates[i], past[i])
            same &= wanted == (taken[i], said[i])
            past[i].append(int(taken[i]))
    return same, [layers for row in past for layers in row]


def test_every_token_is_that_of_its_layer():
    """The toy model looks every layer's cache through: what was not written, or not as
    the other layers have it, changes its logits."""
    same, taken = agrees()
    assert same
    assert len(set(taken)) >= 3 and LAYERS in taken


@pytest.mark.long
def test_fault_layers_that_are_not_filled():
    """Planted: the keys of the layers that were left out are missing. A row alone, so
    that nobody else's layers run."""
    alone = PROMPTS[1:2]
    assert agrees(LM, alone)[0]
    bare = LM.model._replace(fill=lambda params, cache, x, block, lo, hi: cache)
    lm = types.SimpleNamespace(**{**vars(LM), "model": bare})
    assert not agrees(lm, alone)[0]


@pytest.mark.long
def test_fault_another_neighbourhood(monkeypatch):
    monkeypatch.setattr(specee, "AROUND", (-1, 0, 1))
    assert not agrees()[0]


def test_fault_s_of_the_layer_before(monkeypatch):
    """Planted: every predictor takes itself for the first that was asked."""
    sound = exit_predictor.features
    monkeypatch.setattr(
        exit_predictor, "features", lambda z, before: sound(z, 0 * before)
    )
    assert not agrees()[0]


def generate(threshold: float):
    method = Method(exit=Spec("exits/specee", static=STATIC, threshold=threshold))
    drafts = {"heads": HEADS, "exits": EXITS}
    return kit.decoding.generate(
        LM, kit.PROMPTS, method, max_new_tokens=NEW, drafts=drafts
    )


@pytest.mark.long
def test_the_ends_of_the_threshold():
    """At 1 plain decoding's text; at 0 another, by the same program."""
    plain = kit.decoding.generate(LM, kit.PROMPTS, max_new_tokens=NEW).tokens
    whole = generate(1.0)
    assert whole.tokens == plain and whole.guarantee == base.LOSSY
    early = generate(0.0)
    assert early.tokens != plain and early.stats.compile_seconds == 0
    assert whole.exits.taken.tolist() == [0] * (LAYERS - 1) + [NEW * 4]
    assert early.exits.taken.sum() == NEW * 4 > early.exits.taken[-1]


def test_the_schedule():
    """Two texts: one new, one whose last tokens took 1, 4 and all 6 layers."""
    history = jnp.asarray([[0, 0, 0], [1, 4, 6]], jnp.int32)
    found = specee.schedule(history, (2,), 6)
    assert found.tolist() == [
        [False, False, True, False, False],
        [True, True, True, True, True],
    ]
    found = specee.schedule(history[:, 1:2], (0,), 7)
    assert found[1].tolist() == [True, True, False, True, False, True]


def test_rows_that_are_done_hold_nothing_up():
    """They go through no layer, and where none is left no layer runs; their keys are
    written all the same."""
    model = specee.exiting(LM.model)
    asked = specee.Asked(
        jnp.zeros((2, K), jnp.int32),
        jnp.zeros((2, LAYERS - 1), bool),
        jnp.asarray([True, False]),
        jnp.full(2, 0.5),
    )
    tokens = jnp.asarray([[3], [4]], jnp.int32)
    none = jnp.zeros((2, 1), jnp.int32)
    seen = Visibility(
        none[:, 0], jnp.broadcast_to(pack_bits(jnp.eye(1, dtype=bool)), (2, 1, 1))
    )
    block = Block(tokens, none, none, seen)

    @jax.jit
    def call(asked):
        weights = {**LM.params, "exits": EXITS, "asked": asked}
        cache = LM.model.init_cache(2, 4)
        x = model.embed(weights, tokens, none)
        taps = (specee.EXIT, 0)
        y, cache, hidden = model.layers(weights, cache, x, block, 0, LAYERS, taps)
        return x, y, cache, hidden[0]

    x, y, cache, embedded = call(asked)
    np.testing.assert_array_equal(y[1], x[1])
    assert (np.asarray(y[0]) != np.asarray(x[0])).any()
    np.testing.assert_array_equal(embedded, x)
    assert [int(layer.token[1, 0]) for layer in cache.layers] == [4] * LAYERS
    x, y, cache, _ = call(asked.replace(live=jnp.zeros(2, bool)))
    np.testing.assert_array_equal(y, x)
    assert [int(layer.token[0, 0]) for layer in cache.layers] == [3] * LAYERS


def test_the_predictors_are_the_paper_s():
    """7,169 numbers a layer, on twelve features."""
    own = exit_predictor.init(jax.random.key(0), 32)
    assert sum(x.size for x in jax.tree.leaves(own)) == 31 * 7169
    given, s = exit_predictor.features(
        jnp.asarray([1.0, 2.0, 3.0, 0.0]), jnp.full(4, 0.25)
    )
    np.testing.assert_allclose(given, [1, 2, 3, 0, *s, *(s - 0.25)], rtol=1e-6)


def test_bad_arguments():
    with pytest.raises(MethodError, match="of a target of 5 layers"):
        specee.exit_policy(HEADS, EXITS, LM.model)
    with pytest.raises(MethodError, match="last=0"):
        specee.exit_policy(HEADS, EXITS, LM.model, (1,), 0)
    with pytest.raises(MethodError, match="threshold=2"):
        specee.exit_policy(HEADS, EXITS, LM.model, (1,), 5, 2.0)
    with pytest.raises(ConfigError, match="it needs 4"):
        specee.exit_policy(
            HEADS, exit_predictor.init(jax.random.key(0), 4), LM.model, (1,)
        )
    with pytest.raises(ConfigError, match="have the params"):
        specee.exit_policy(HEADS, HEADS, LM.model, (1,))


def test_wider_blocks_are_refused():
    """They would never stop, and a user would take the figures for SpecEE's."""
    drafter = Spec("drafters/prompt_lookup", k=4)
    with pytest.raises(MethodError, match="blocks of 5 nodes"):
        kit.Run(replace(METHOD, drafter=drafter), lm=LM, beside=BESIDE)
    beside = kit.Run(METHOD, lm=LM, beside=BESIDE).parts
    assert beside.guarantee == base.LOSSY
