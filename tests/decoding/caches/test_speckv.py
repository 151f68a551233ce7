"""SpecKV: what it keeps is what NumPy keeps, in every layer, by a guess of the text."""

import functools
import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.caches import speckv
from decoding.conformance import kit, peaked
from decoding.loops import engines, prefill
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

PROMPTS = [*peaked.PROMPTS[2:], peaked.PROMPTS[3][5:31]]  # of 9, 20, 39 and 26 tokens
NUMBERS = {"budget": 12, "window": 4, "kernel": 3}
AHEAD = 6
SPEC = Spec("caches/speckv", **NUMBERS, lookahead=AHEAD)
SNAP = Spec("caches/snapkv", **NUMBERS, pooling="max")
OTHER = 4  # seed of a draft model that guesses otherwise


@functools.cache
def run(spec: Spec, draft: int = 3) -> kit.Run:
    """Compose a policy for the target of seed 3; with draft=3 the target guesses."""
    lm = peaked.model()
    return kit.Run(Method(policy=spec), lm=lm, beside={"draft": peaked.model(draft)})


def start(spec: Spec, draft: int = 3, prompts=PROMPTS, **fields):
    fields = {"new": peaked.NEW, "size": peaked.SIZE, **fields}
    return run(spec, draft).start(prompts, **fields)


def kept(state) -> list:
    """Return of each prompt, layer and head the tokens that have slots."""
    cache = state.caches["target"]
    every = [np.asarray(layer.tokens(cache.length)) for layer in cache.layers]
    rows = range(len(every[0]))
    return [
        [[[int(t) for t in h if t >= 0] for h in x[row]] for x in every] for row in rows
    ]


@functools.cache
def written(draft: int) -> list[list[int]]:
    """Return the greedy texts of a model that keeps its whole cache."""
    lm = peaked.model(draft)
    return decoding.generate(lm, PROMPTS, max_new_tokens=peaked.NEW).tokens


def expected(prompt, guess, reduce=np.max, seen=None) -> list:
    """Keep the slots of the largest pooled weights, in NumPy.

    Args:
        prompt: its tokens.
        guess: what is taken to follow.
        reduce: over the queries and the heads of a group.
        seen: tokens whose keys the queries see; None: all before them.
    """
    end, window = len(prompt) - 1, NUMBERS["window"]
    first = max(end - window, 0)
    every = []
    for q, k in oracle.every_layer(3, (*prompt, *guess)):
        heads = []
        for g in range(k.shape[1]):
            rows = []
            last = end + 1 + len(guess) if guess else end  # behind the queries
            for t in range(first, last):
                stop = t + 1 if seen is None else min(t + 1, seen(end))
                row = np.zeros((q.shape[2], last))
                row[:, :stop] = oracle.weights(q[t, g], k[:stop, g])
                rows.append(row)
            worth = reduce(np.concatenate(rows), 0)[:first]
            padded = np.pad(worth, 1)
            pooled = np.array([padded[j : j + 3].max() for j in range(first)])
            rounded = pooled.astype(ml_dtypes.bfloat16).astype(np.float64)
            best = np.argsort(-rounded, kind="stable")[: NUMBERS["budget"] - window]
            heads.append(sorted([*best.tolist(), *range(first, end)]))
        every.append(heads)
    return every


def differ(found: list, due: list) -> int:
    return sum(a != b for a, b in zip(found, due, strict=True))


@pytest.mark.long
def test_the_true_text_gives_the_oracles_slots():
    """The target guesses its own text; four prompts of other lengths, two layers.

    Planted: no guess, another model's guess, sums, and keys of the prompt alone.
    """
    found = kept(start(SPEC))
    guesses = [text[:AHEAD] for text in written(3)]
    of = lambda texts, **rule: [
        expected(p, text, **rule) for p, text in zip(PROMPTS, texts)
    ]
    assert differ(found, of(guesses)) == 0
    assert differ(found, of([[]] * len(PROMPTS))) > 0
    assert differ(found, of([text[:AHEAD] for text in written(OTHER)])) > 0
    assert differ(found, of(guesses, reduce=np.sum)) > 0
    assert differ(found, of(guesses, seen=lambda end: end)) > 0


def test_a_draft_model_guesses():
    """Planted: the target's own text in the place of the draft model's."""
    found = kept(start(SPEC, OTHER))
    due = [expected(p, t[:AHEAD]) for p, t in zip(PROMPTS, written(OTHER))]
    assert differ(found, due) == 0
    assert differ(found, [expected(p, t) for p, t in zip(PROMPTS, written(3))]) > 0


def guess_of(draft: int, eos=(), most=AHEAD, chunk=None, prompts=PROMPTS):
    """Return the guesses of a draft model, their lengths and its calls."""
    rows, longest = len(prompts), max(map(len, prompts))
    tokens = np.zeros((rows, peaked.SIZE), np.int32)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = prompt
    state = start(SNAP, prompts=prompts)
    ctx = decoding.base.Context(
        {"target": peaked.model().params, "draft": peaked.model(draft).params},
        *(jnp.asarray(tokens), state.length, state.caches["target"]),
        *(None, None, None, jnp.ones((rows,), bool)),
    )
    assert longest < peaked.SIZE
    made = speckv.guessed(
        peaked.functions(), eos, AHEAD, ctx, jnp.full((rows,), most, jnp.int32)
    )
    return [np.asarray(x) for x in made]


@pytest.mark.long
def test_guesses_end_at_eos_and_where_the_text_must_end(monkeypatch):
    """By hand: the greedy text, cut. Also if the prompt is read in pieces of 4."""
    whole = [text[:AHEAD] for text in written(OTHER)]
    tokens, count, calls = guess_of(OTHER)
    assert tokens.tolist() == whole and count.tolist() == [AHEAD] * len(PROMPTS)
    assert calls.tolist() == [AHEAD + 1] * len(PROMPTS)
    assert guess_of(OTHER, most=2)[1].tolist() == [2] * len(PROMPTS)
    assert guess_of(OTHER, most=-1)[1].tolist() == [0] * len(PROMPTS)
    end = whole[0][2]
    due = [text.index(end) + 1 if end in text else AHEAD for text in whole]
    assert guess_of(OTHER, eos=(end,))[1].tolist() == due
    assert len({*due}) > 1
    monkeypatch.setattr(speckv, "CHUNK", 4)
    pieces, _, calls = guess_of(OTHER)
    assert pieces.tolist() == whole
    assert calls.tolist() == [-(-(len(p) - 1) // 4) + AHEAD for p in PROMPTS]


@pytest.mark.long
def test_without_a_guess_it_is_snapkv():
    """Bit for bit, slots, keys and values; planted: the maximum of the queries."""

    def held(spec):
        state = start(spec)
        cache = state.caches["target"]
        used = [np.asarray(layer.used(cache.length))[:, 0] for layer in cache.layers]
        cut = lambda x, n: [np.asarray(x[b, :, : n[b]]).tolist() for b in range(len(n))]
        parts = [
            [cut(part, n) for part in (layer.pos, *layer.store.read())]
            for layer, n in zip(cache.layers, used)
        ]
        return parts, kit.texts(run(spec).advance(state), PROMPTS)

    alike = Spec("caches/speckv", **NUMBERS, lookahead=0, reduce="sum")
    largest = Spec("caches/speckv", **NUMBERS, lookahead=0)
    assert held(alike) == held(SNAP)
    assert held(largest) != held(SNAP)
    assert differ(kept(start(largest)), [expected(p, []) for p in PROMPTS]) == 0


@pytest.mark.long
def test_a_guess_leaves_nothing_in_the_cache(monkeypatch):
    """Where all slots stay, two guesses give the same texts and log-probabilities.

    Planted: a guess that is committed.
    """
    spec = Spec("caches/speckv", **{**NUMBERS, "budget": peaked.SIZE}, lookahead=AHEAD)

    def decoded(draft):
        state = start(spec, draft)
        length = np.asarray(state.caches["target"].length).tolist()
        assert length == [len(p) - 1 for p in PROMPTS]
        newest = [max(head[-1] for x in row for head in x) for row in kept(state)]
        assert newest == [len(p) - 2 for p in PROMPTS]
        state = run(spec, draft).advance(state)
        return kit.texts(state, PROMPTS), np.asarray(state.logprobs)

    (texts, logprobs), (others, beside) = decoded(3), decoded(OTHER)
    assert texts == others == written(3)
    assert (logprobs == beside).all()
    monkeypatch.setattr(prefill, "look_ahead", committed(prefill.look_ahead))
    wrong = run(spec).alter()
    run.cache_clear()
    state = wrong.start(PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    length = np.asarray(state.caches["target"].length).tolist()
    assert length != [len(p) - 1 for p in PROMPTS]


def committed(look_ahead):
    def wrong(program, params, state):
        after = look_ahead(program, params, state)
        cache = after.caches["target"]
        cache = cache.replace(length=cache.length + AHEAD)
        return after.replace(caches={**after.caches, "target": cache})

    return wrong


def instructions(text: str) -> list[str]:
    """Return a program's lines but for where in the sources they come from."""
    lines = [line for line in text.splitlines() if " = " in line]
    return [re.sub(r", metadata=\{.*?\}", "", line) for line in lines]


def test_rounds_are_those_of_no_guess():
    """The compiled rounds are equal, and no other policy has a program more."""
    texts, programs = [], []
    for ahead in (0, AHEAD):
        part = run(Spec("caches/speckv", **NUMBERS, lookahead=ahead))
        part.engine = engines.Engine(part.parts.program)
        state = part.start(PROMPTS, new=peaked.NEW, size=peaked.SIZE)
        part.advance(state)
        programs.append({key[0] for key in part.engine._compiled})
        texts.append(instructions(part.engine.text("advance")))
    run.cache_clear()
    assert texts[0] == texts[1] and len(texts[0]) > 100
    assert programs[1] - programs[0] == {"lookahead"}
    assert programs[0] == {"prefill by 128", "finish", "advance"}


@pytest.mark.long
def test_calls_are_counted():
    """One read of each prompt and a call a token; others count none."""
    rows = [AHEAD + 1] * len(PROMPTS)
    assert np.asarray(start(SPEC).counters.draft_calls).tolist() == rows
    assert not np.asarray(start(SNAP).counters.draft_calls).any()
    short = start(SPEC, new=2)
    assert np.asarray(short.counters.draft_calls).tolist() == [3] * len(PROMPTS)


@pytest.mark.long
def test_contexts_are_compressed_by_a_guess_behind_them():
    """The guess follows the context and the question's first token.

    Planted: a guess behind the context alone.
    """
    part, question = run(SPEC), 3
    contexts = [len(prompt) - question for prompt in PROMPTS]
    read = [prompt[: end + 1] for prompt, end in zip(PROMPTS, contexts)]
    rows = (PROMPTS, [len(p) + peaked.NEW for p in PROMPTS])
    keys = engines.request_keys(0, len(PROMPTS), 1)
    state = part.engine.start(
        part.params, part.parts, *rows, keys, peaked.SIZE, contexts=contexts
    )
    behind = decoding.generate(peaked.model(), read, max_new_tokens=AHEAD).tokens
    asked = [list(range(end, end + question - 1)) for end in contexts]

    def due(guesses):
        every = map(expected, read, guesses)
        return [
            [[[*head, *new] for head in layer] for layer in row]
            for row, new in zip(every, asked)
        ]

    assert differ(kept(state), due(behind)) == 0
    assert differ(kept(state), due([text[1:] for text in behind])) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lookahead": -1}, "lookahead=-1: use 0 to 1023"),
        ({"reduce": "mean"}, "reduce='mean': use 'max' or 'sum'"),
        ({"kernel": 4}, "an odd"),
        ({}, "by a draft model: pass drafts="),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/speckv", **arguments).build({})


def test_no_draft_model():
    with pytest.raises(MethodError, match="pass drafts="):
        decoding.generate(peaked.model(), PROMPTS, Method(policy=SPEC), 4)
