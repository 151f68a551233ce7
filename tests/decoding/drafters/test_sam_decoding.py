"""SAM-Decoding's copies against suffix automata, walked as in the paper."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, base, tree
from decoding.conformance import kit as conformance
from decoding.drafters import sam_decoding, token_recycling
from decoding.text_lookup import suffix_array
from decoding.tree_building import draft_model, replaced_drafts
from models.errors import MethodError
from tests.decoding.drafters import kit

VOCAB = 4


class Automaton:
    """States of a text's suffixes: successors, link, length and first end."""

    def __init__(self, text: list[int]):
        self.text = [-1, *text]
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.end = [-1], [0], [0]
        last = 0
        for place, token in enumerate(text, 1):
            last = self._add(last, token, place)

    def _state(self, successors, link: int, length: int, end: int) -> int:
        self.next.append(dict(successors))
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.next) - 1

    def _add(self, last: int, token: int, place: int) -> int:
        new = self._state({}, -1, place, place)
        p = last
        while p != -1 and token not in self.next[p]:
            self.next[p][token] = new
            p = self.link[p]
        if p == -1:
            self.link[new] = 0
            return new
        q = self.next[p][token]
        if self.length[p] + 1 == self.length[q]:
            self.link[new] = q
            return new
        clone = self._state(self.next[q], self.link[q], self.length[p] + 1, self.end[q])
        while p != -1 and self.next[p].get(token) == q:
            self.next[p][token] = clone
            p = self.link[p]
        self.link[q] = self.link[new] = clone
        return new


class Found(NamedTuple):
    """A match of a source's automaton, and the tokens after the place it ends at."""

    length: int
    tokens: list[int]


def step(known: Automaton, state: int, length: int, token: int) -> tuple[int, int]:
    while state and token not in known.next[state]:
        state = known.link[state]
        length = known.length[state]
    if token in known.next[state]:
        return known.next[state][token], length + 1
    return 0, 0


def ancestor(known: Automaton, state: int, size: int) -> int:
    """The end of the state, or of the shorter suffix with enough tokens behind it."""
    left = lambda s: len(known.text) - 1 - known.end[s]
    while known.link[state] > 0 and size + 1 > left(state):
        state = known.link[state]
    return known.end[state]


def of_text(text: list[int], size: int) -> Found:
    """Follow the text and the root through the automaton of what stands before it.

    Each token is read before it is added, as in the authors' code, so that the state is
    of an earlier place.
    """
    state = length = 0
    for n in range(len(text)):
        known = Automaton(text[:n])
        # The state of the suffix so far, in the automaton that now has one token more.
        state = 0
        for token in text[n - length : n]:
            state = known.next[state][token]
        state, length = step(known, state, length, text[n])
    at = ancestor(known, state, size)
    return Found(length, text[at : at + size])


def of_corpus(known: Automaton, text: list[int], size: int) -> Found:
    """Follow the text through the automaton of a corpus."""
    state = length = 0
    for token in text:
        state, length = step(known, state, length, token)
    at = ancestor(known, state, size) + 1
    tokens = known.text[at : at + size]
    tokens = tokens[: [*tokens, suffix_array.END].index(suffix_array.END)]
    return Found(length if tokens else 0, tokens)


def by_hand(
    text: list[int],
    size: int,
    least: int,
    corpus: Automaton | None = None,
    bias: int = 5,
) -> list[int] | None:
    """The copied tokens; None: the tree."""
    best = of_text(text, size)
    if corpus is not None:
        stored = of_corpus(corpus, text, size)
        if stored.length - bias > best.length:
            best = Found(stored.length - bias, stored.tokens)
    return best.tokens if best.length >= least else None


def drafted(drafter: base.Drafter, texts: list[list[int]]) -> list[list[int] | None]:
    """The copied chains; None: the tree, which begins with zeros here."""
    ctx = kit.context(texts, size=64)
    nodes, _, _ = drafter.draft(kit.keys(len(texts)), ctx, drafter.init(ctx))
    rows: list[list[int] | None] = []
    for b in range(len(texts)):
        live = np.asarray(nodes.kind[b]) == base.CANDIDATE
        chain = np.asarray(nodes.parents[b]) == np.arange(-1, nodes.tokens.shape[1] - 1)
        copied = chain[live].all()
        rows.append(np.asarray(nodes.tokens[b])[live][1:].tolist() if copied else None)
    return rows


def texts(seed: int, vocab: int = VOCAB) -> list[list[int]]:
    """Ragged texts of many repeats."""
    rng = np.random.default_rng(seed)
    found = [rng.integers(0, vocab, int(n)).tolist() for n in rng.integers(1, 50, 24)]
    return found + [(t * 3)[:50] for t in found[:8]]


@pytest.mark.parametrize(("size", "least"), [(3, 2), (6, 3), (30, 1)])
def test_copies_are_the_automaton_s(size, least):
    """Planted: a match one token longer is asked for."""
    rows = texts(size)
    wanted = [by_hand(t, size, least) for t in rows]
    found = drafted(sam_decoding.drafter(VOCAB, size, least, **SMALL), rows)
    assert found == wanted and None in wanted and any(wanted)
    other = sam_decoding.drafter(VOCAB, size, least + 1, **SMALL)
    assert drafted(other, rows) != wanted


SMALL: dict = {"k": 4, "choices": ((0,), (1,), (0, 0))}


class Corpus(NamedTuple):
    """A datastore, its automaton, and texts that copy it or themselves."""

    folder: str
    known: Automaton
    rows: list[list[int]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Nine texts of three letters; others go on for a while as a part of them does."""
    rng = np.random.default_rng(1)
    stored = [t[:30] for t in texts(1, 3)[:9]]
    folder = str(tmp_path_factory.mktemp("datastore"))
    suffix_array.save(suffix_array.build(stored), folder)
    whole = [token for text in stored for token in [*text, suffix_array.END]]
    rows = texts(2, 3)
    for head in texts(3, 3):
        text = stored[int(rng.integers(9))]
        end = int(rng.integers(len(text) + 1))
        rows.append([*head[:20], *text[max(end - 14, 0) : end]])
    rows += [whole[-6:-1], whole[-3:-1], whole[-2:-1]]
    return Corpus(folder, Automaton(whole), [t for t in rows if t])


def copies(corpus: Corpus, size: int, least: int, bias: int) -> list:
    """The copies that the automata give."""
    return [by_hand(t, size, least, corpus.known, bias) for t in corpus.rows]


@pytest.mark.parametrize(
    ("size", "least", "bias"), [(3, 2, 5), (30, 5, 0), (400, 2, 1)]
)
def test_copies_of_a_corpus(corpus, size, least, bias):
    """Both automata, of rows of any length; of 400 tokens the corpus has too few."""
    wanted = copies(corpus, size, least, bias)
    source: dict = {"datastore": corpus.folder, **SMALL}
    drafter = sam_decoding.drafter(3, size, least, bias=bias, **source)
    assert drafted(drafter, corpus.rows) == wanted
    alone = [by_hand(t, size, least) for t in corpus.rows]
    assert None in wanted and alone != wanted
    # Planted: the corpus's match counts in full, or one token more.
    for other in {0, bias + 1} - {bias}:
        drafter = sam_decoding.drafter(3, size, least, bias=other, **source)
        assert drafted(drafter, corpus.rows) != wanted


def test_fault_the_latest_place(corpus, monkeypatch):
    """Planted: the last place of the longest match in place of the first.

    No other test copies 7 tokens: they would meet this program.
    """

    def latest(places, low, high):
        index = jnp.arange(places.store.order.shape[0])
        inside = (index >= low) & (index < high)
        return jnp.where(inside, places.store.order, -1).max()

    monkeypatch.setattr(suffix_array, "_least", latest)
    drafter = sam_decoding.drafter(3, 7, 1, bias=0, datastore=corpus.folder, **SMALL)
    assert drafted(drafter, corpus.rows) != copies(corpus, 7, 1, 0)


def test_fault_ties_to_the_corpus(corpus, monkeypatch):
    """Planted: of equal matches the corpus's is taken."""
    sound = sam_decoding._better

    def tied(text, stored):
        found = sound(text, stored._replace(length=stored.length + 1))
        return found._replace(length=jnp.maximum(text.length, stored.length))

    monkeypatch.setattr(sam_decoding, "_better", tied)
    drafter = sam_decoding.drafter(3, 4, 1, bias=0, datastore=corpus.folder, **SMALL)
    assert drafted(drafter, corpus.rows) != copies(corpus, 4, 1, 0)


def test_the_least_of_a_range(monkeypatch):
    """Ranges of an order in blocks of 4, beside numpy's. Planted: whole blocks alone,
    or ends alone."""
    monkeypatch.setattr(suffix_array, "BLOCK", 4)
    rng = np.random.default_rng(0)
    tokens = np.zeros(30, np.int32)
    order = rng.permutation(30).astype(np.int32)
    places = suffix_array.first_places(suffix_array.Datastore(tokens, order))
    places = jax.tree.map(jnp.asarray, places)
    spans = [(low, high) for low in range(30) for high in range(low, 31)]
    low, high = jnp.asarray(spans, jnp.int32).T

    def least(places) -> list[int]:
        find = jax.vmap(suffix_array._least, in_axes=(None, 0, 0))
        return find(places, low, high).tolist()

    wanted = [int(min(order[a:b], default=30)) for a, b in spans]
    assert least(places) == wanted
    assert least(places._replace(least=jnp.full(8, 30))) != wanted
    empty = places.store._replace(order=jnp.full(30, 30))
    assert least(places._replace(store=empty)) != wanted


def test_texts_with_and_without_a_corpus():
    """Plain decoding's, in one process: a program for each."""
    method = Method(conformance.spec("drafters/sam_decoding"))
    plain = conformance.plain(method, 0.8)
    calls = []
    for folder in (conformance.datastore(), "", conformance.datastore()):
        out = conformance.generate(method.with_drafter(datastore=folder), 0.8)
        assert out.tokens == plain
        calls.append(int(out.stats.target_calls.sum()))
    assert calls[0] == calls[2] != calls[1]


CASES = conformance.cases()
PROMPTS = [*conformance.PROMPTS[:3], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]]


def accepted() -> tuple[list[int], int]:
    """Accepted drafts of rounds of a perfect draft model, and the number of copies."""
    method = CASES["sam_decoding-model"]  # drafts of 3, copies of 5
    run = conformance.Run(method, 0.8, draft=conformance.TARGET).alter()
    own, copied = [], 0
    for state, count, room in kit.rounds(run, PROMPTS):
        is_copy = np.asarray(state.drafter.row.copied)
        own += count[room & ~is_copy].tolist()
        copied += int((count[room & is_copy] > 0).sum())
    return own, copied


@pytest.mark.long
def test_a_draft_model_keeps_up():
    """The target as draft: its own drafts are all accepted, also after copies."""
    own, copied = accepted()
    assert len(own) > 8 and set(own) == {3} and copied > 2


@pytest.mark.long
def test_fault_a_draft_model_that_does_not_read_copies(monkeypatch):
    """Planted: the cache is taken to hold what was copied; acceptance drops."""

    def forget(model, params, cache, ctx, size):
        return cache.replace(length=ctx.length - 1), jnp.int32(0)

    monkeypatch.setattr(draft_model, "catch_up", forget)
    assert min(accepted()[0]) < 3


def head_states(rounds: int = 12) -> tuple[Any, Any, int]:
    """EAGLE's states after rounds, those of a prefill of the texts, rounds of both."""
    run = conformance.Run(CASES["sam_decoding-eagle"], 0.8).alter()
    state, mixed = run.start(PROMPTS), 0
    for _ in range(rounds):
        state = run.advance(state, 1)
        mixed += len(set(np.asarray(state.drafter.row.copied).tolist())) == 2
    texts = [
        [*prompt, *more]
        for prompt, more in zip(PROMPTS, conformance.texts(state, PROMPTS))
    ]
    fresh = run.start(texts, new=4)
    return state.drafter.row.inner, fresh.drafter.row.inner, mixed


def test_heads_keep_up():
    """After copies the head's state is that of the text, however it was drafted."""
    inner, fresh, mixed = head_states()
    assert mixed > 1
    np.testing.assert_array_equal(inner.cache.length, fresh.cache.length)
    np.testing.assert_allclose(inner.own, fresh.own, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_fault_heads_that_are_not_told_of_copies(monkeypatch):
    """Planted: a row that copied is left out of what the head observes."""
    sound = replaced_drafts._of_rows

    def own_alone(outcome, rows):
        return sound(outcome, rows & (not outcome.is_pause))

    monkeypatch.setattr(replaced_drafts, "_of_rows", own_alone)
    inner, fresh, _ = head_states()
    assert (np.asarray(inner.cache.length) < fresh.cache.length).any()


@pytest.mark.parametrize(("copied", "calls"), [(True, 0), (False, 1)])
def test_an_inner_drafter_rests_where_all_rows_copy(copied, calls):
    """Planted: one row of two that copies nothing."""
    counted = []

    def draft(keys, ctx, state):
        jax.debug.callback(lambda: counted.append(1))
        nodes = tree.chain(ctx.root, ctx.tokens[:, :2], jnp.full_like(ctx.length, 2))
        return nodes, state, ctx.cache

    inner = token_recycling.drafter(VOCAB, **SMALL)
    inner = inner._replace(draft=draft, nodes=3, depth=2, reads_text=False)
    drafter = sam_decoding.drafter(VOCAB, 3, 2, inner=inner)
    rows = [[1, 2, 3] * 3, [1, 2, 3] * 3 if copied else [1, 2, 3]]
    found = drafted(drafter, rows)
    jax.effects_barrier()
    assert len(counted) == calls
    assert found == [[1, 2, 3], [1, 2, 3] if copied else [1, 2]]


def test_an_inner_drafter_in_a_config():
    config = {"name": "drafters/sam_decoding", "inner": "drafters/eagle"}
    method = Method.from_config({"drafter": config})
    assert method.needs >= {"heads", "model", "topology"}
    with pytest.raises(MethodError, match="must see verified"):
        plain = token_recycling.drafter(VOCAB)
        sam_decoding.drafter(
            VOCAB, inner=plain._replace(pauses=False, reads_text=False)
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"least": 0},
        {"longest": 3},
        {"bias": -1},
        {"longest": 65, "datastore": "nowhere"},
        {"datastore": "nowhere"},
    ],
)
def test_numbers_that_copy_nothing(wrong):
    with pytest.raises(MethodError, match=next(iter(wrong))):
        sam_decoding.drafter(VOCAB, **wrong)
