"""SWIFT: its trees, its search and its text, on a table model of six layers."""

import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base, compose
from decoding.conformance import kit
from decoding.drafters import swift
from decoding.tree_building import adaptive_chain
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.drafters import kit as drafter_kit

LAYERS, CONTEXT = 6, 6
FUNCTIONS, PARAMS = toy.model(kit.VOCAB, order=2, n_layers=LAYERS, eos=(kit.EOS,))
LM = types.SimpleNamespace(
    model=FUNCTIONS,
    params={**PARAMS, "table": PARAMS["table"].at[..., kit.EOS].add(-30.0)},
    tokenizer=None,
    config=FUNCTIONS.config,
)


def method(**arguments) -> Method:
    fields = {"length": 4, "siblings": (1, 2, 2, 3), "nodes": 9, "bayes": 4}
    fields |= {"context": CONTEXT, "enough": 1.0, "ratio": 0.5, "stop": 0.3}
    return Method(kit.spec("drafters/swift", **(fields | arguments)))


def test_packing_by_hand():
    """Levels of 2, 1 and 3 candidates; the third level's last do not fit."""
    drawn = jnp.array([[[1, 2, 0], [3, 0, 0], [4, 5, 6]]], jnp.int32)
    wide = jnp.array([[2, 1, 3]], jnp.int32)
    count = jnp.array([3], jnp.int32)
    chain = adaptive_chain.Chain(drawn, count, count, None, wide, None)
    nodes = swift.packed(jnp.array([7]), chain, 6, base.POINT)
    assert nodes.tokens.tolist() == [[7, 1, 2, 3, 4, 5]]
    assert nodes.parents.tolist() == [[-1, 0, 0, 1, 3, 3]]
    assert (nodes.kind == base.CANDIDATE).all()
    short = swift.packed(jnp.array([7]), chain.replace(count=count - 2), 6, base.POINT)
    assert short.kind.tolist() == [[1, 1, 1, 0, 0, 0]]


TWELVE, TABLE = toy.model(12, order=2, n_layers=2, eos=(11,))


def first_level(temperature: float, scale: float, **arguments) -> tuple[int, float]:
    """The root's children in the default tree, and the best token's probability."""
    params = {**TABLE, "table": TABLE["table"] * scale}
    lm = types.SimpleNamespace(
        model=TWELVE, params=params, tokenizer=None, config=TWELVE.config
    )
    spec = Spec("drafters/swift", length=1, **arguments)
    drafter = compose.compose(Method(spec), lm, temperature).program.drafter
    ctx = drafter_kit.context([[3]])
    cache = TWELVE.init_cache(1, 32, jnp.float32)
    noise = lambda position: jnp.zeros((1, 12))
    ctx = replace(ctx, params={"target": params}, cache=cache, noise=noise)
    keys = drafter_kit.keys(1)
    nodes = jax.jit(lambda: drafter.draft(keys, ctx, drafter.init(ctx))[0])()
    logits = toy.logits(params, [3])
    best = float(np.exp(logits.max() - np.logaddexp.reduce(logits)))
    return int((nodes.kind == base.CANDIDATE).sum()) - 1, best


@pytest.mark.parametrize("scale, rank", [(12.0, 0), (0.1, 3)])
def test_siblings_are_the_code_s(scale, rank):
    """3, 5, 8, 10 in greedy calls and 1, 3, 5, 10 in others, by certainty."""
    for temperature, numbers in ((0.0, (3, 5, 8, 10)), (0.8, (1, 3, 5, 10))):
        children, best = first_level(temperature, scale)
        assert (best > 0.95) if rank == 0 else (best <= 0.5)
        assert children == numbers[rank]


def test_fault_the_greedy_siblings_at_every_temperature():
    """Planted: a call that samples has the siblings of a greedy one."""
    assert first_level(0.8, 12.0, siblings=(3, 5, 8, 10))[0] != 1


def test_process_agrees_with_what_it_saw():
    sets = jnp.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]], bool)
    known = jnp.array([True, True, False])
    mean, variance = swift.posterior(sets, jnp.array([0.9, 0.1, 9.0]), known, sets)
    assert abs(mean[0] - 0.9) < 0.02 and abs(mean[1] - 0.1) < 0.02
    assert (variance[:2] < 0.02).all() and variance[2] > 0.1


def score(skip: np.ndarray, rows: list[tuple[list[int], list[int]]]) -> float:
    """Matchness by table look-up: a layer runs where its attention does."""
    runs = np.concatenate([[True], ~skip[::2], [True]])
    params = {**LM.params, "table": LM.params["table"][runs]}
    hits = [
        toy.logits(params, p + t[:i]).argmax() == t[i]
        for p, t in rows
        for i in range(CONTEXT)
    ]
    return float(np.mean(hits))


PROMPT = kit.PROMPTS[0]


def searched(state, run: kit.Run) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Decode from `state`: the text, the scores of all trials, and the table's."""
    best = []
    for _ in range(8):
        best.append(float(state.drafter.shared.score))
        state = run.advance(state, 5)
    assert (np.diff(best) >= 0).all()
    text, found = kit.texts(state, [PROMPT])[0], state.drafter.shared
    made = int(found.made)
    assert 4 < made <= swift.KEPT and int(found.skip.sum()) == LAYERS - 2
    scores = np.asarray(found.scores)[:made]
    assert float(found.score) == scores.max() and len(set(scores.tolist())) > 1
    expected = [score(z, [(PROMPT, text)]) for z in np.asarray(found.sets)[:made]]
    return text, scores, np.array(expected)


def test_text_is_plain_and_the_score_is_the_table_s():
    """Every trial's score is its matchness, and the best set's never falls."""
    run = kit.Run(method(), lm=LM)
    text, scores, expected = searched(run.start([PROMPT]), run)
    assert text == kit.greedy_by_hand(LM.params, PROMPT, kit.NEW)
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.long
def test_fault_the_window_is_a_token_late():
    """Planted: the trial begins after the text's first token."""
    run = kit.Run(method(), lm=LM)
    state = run.start([PROMPT])
    late = state.drafter.row.replace(start=state.drafter.row.start + 1)
    state = state.replace(drafter=state.drafter.replace(row=late))
    text, scores, expected = searched(state, run)
    assert text == kit.greedy_by_hand(LM.params, PROMPT, kit.NEW)
    assert abs(scores - expected).max() > 0.1


def test_bad_arguments():
    with pytest.raises(MethodError, match=r"siblings=\(3,\)"):
        swift.drafter(FUNCTIONS, siblings=(3,))
    with pytest.raises(MethodError, match=r"ratio=1\.0"):
        swift.drafter(FUNCTIONS, ratio=1.0)
