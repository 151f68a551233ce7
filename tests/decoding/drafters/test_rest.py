"""REST: its suffix array, its search and its trie against Python's own sorting."""

import collections
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit as conformance
from decoding.drafters import rest
from decoding.text_lookup import suffix_array
from experiments import datastore as command
from models.errors import MethodError
from tests.decoding.drafters import kit

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "datastore"
SMALL = {"choices": 6, "longest": 4, "hits": 40, "length": 3}
# 3 texts of 4 letters, seed 0.
TEXTS = np.random.default_rng(0).integers(0, 4, (3, 60)).tolist()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("datastore")
    suffix_array.save(suffix_array.build(TEXTS), path)
    return str(path)


def suffixes(tokens: list[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda i: tokens[i : i + suffix_array.DEPTH])


def test_the_suffix_array():
    """Sorted by 64 tokens; a text that repeats itself has many equal beginnings."""
    for texts in (TEXTS, [[1] * 100, [1, 2] * 50], [[5]]):
        store = suffix_array.build(texts)
        tokens = store.tokens.tolist()
        assert tokens == [t for text in texts for t in [*text, -1]]
        key = [tokens[i : i + suffix_array.DEPTH] for i in store.order]
        assert key == [tokens[i : i + suffix_array.DEPTH] for i in suffixes(tokens)]
        assert sorted(store.order.tolist()) == list(range(len(tokens)))


def test_ranges_by_hand():
    """Of every query of 1 to 4 tokens: as many places as a scan finds."""
    store = suffix_array.build(TEXTS)
    tokens = store.tokens.tolist()
    held = suffix_array.Datastore(*map(jnp.asarray, store))
    queries = np.random.default_rng(1).integers(0, 5, (60, 4))
    sizes = np.arange(60) % 4 + 1
    find = jax.jit(jax.vmap(lambda q, s: suffix_array.find(held, q, s)))
    low, high = find(jnp.asarray(queries, jnp.int32), jnp.asarray(sizes, jnp.int32))
    met = 0
    for query, size, a, b in zip(queries.tolist(), sizes, low.tolist(), high.tolist()):
        places = {i for i in range(len(tokens)) if tokens[i : i + size] == query[:size]}
        assert set(store.order[a:b].tolist()) == places
        met += bool(places)
    assert 0 < met < 60


def by_hand(text: list[int]) -> collections.Counter:
    """How often each continuation of the longest known span stands in TEXTS."""
    for span in range(min(SMALL["longest"], len(text)), 1, -1):
        counts: collections.Counter = collections.Counter()
        hit = False
        for told in TEXTS:
            for end in range(span, len(told) + 1):
                if told[end - span : end] == text[-span:]:
                    hit = True
                    for d in range(1, SMALL["length"] + 1):
                        if end + d <= len(told):
                            counts[tuple(told[end : end + d])] += 1
        if hit:
            return counts
    return collections.Counter()


def test_tries_by_hand(directory):
    """100 ragged texts, seed 2: nodes of greatest count, closed under parents."""
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 5, rng.integers(1, 12)).tolist() for _ in range(100)]
    nodes, _ = kit.jitted(rest.drafter(directory, **SMALL))(texts)
    for row, text in enumerate(texts):
        counts, found = by_hand(text), kit.paths(nodes, row)
        best = sorted(counts.values(), reverse=True)[: SMALL["choices"]]
        assert sorted((counts[path] for path in found), reverse=True) == best
    assert any(len(kit.paths(nodes, row)) == 0 for row in range(100))


def test_few_places_give_the_same_trie(directory, monkeypatch):
    """Texts of 30 rows that stand in 6 places at most, and in more: as at once."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 4, 2 + i % 3).tolist() for i in range(30)]
    whole, _ = kit.jitted(rest.drafter(directory, **SMALL))(texts)
    monkeypatch.setattr(rest, "FEW", 6)
    draft = kit.jitted(rest.drafter(directory, **SMALL))
    counts = []
    for row, text in enumerate(texts):
        nodes, _ = draft([text])
        assert kit.paths(nodes) == kit.paths(whole, row)
        counts.append(sum(n for path, n in by_hand(text).items() if len(path) == 1))
    assert 0 < sum(count > 6 for count in counts) < 30
    thin, _ = kit.jitted(rest.drafter(directory, **{**SMALL, "hits": 6}))(texts)
    rows = range(len(texts))  # planted: six places for all
    assert any(kit.paths(thin, row) != kit.paths(whole, row) for row in rows)


@pytest.mark.long
def test_many_places_are_thinned_evenly(directory):
    """With 8 hits of some 60 the common continuations are still the common ones."""
    text = [1]
    settings = {**SMALL, "shortest": 1, "longest": 1, "length": 1, "choices": 4}
    every, _ = kit.jitted(rest.drafter(directory, **{**settings, "hits": 200}))([text])
    some, _ = kit.jitted(rest.drafter(directory, **{**settings, "hits": 8}))([text])
    assert len(kit.paths(every)) == 4
    assert {(2,), (3,)} <= set(kit.paths(some))


def test_fault_the_least_places_alone(directory):
    """Planted: the first 8 places (the official code's) never go on with 2 or 3, of
    which there are more than of 0 and 1."""
    store = suffix_array.load(directory)
    held = suffix_array.Datastore(*(jnp.asarray(np.asarray(x)) for x in store))
    low, high = suffix_array.find(held, jnp.array([1], jnp.int32), jnp.int32(1))
    assert int(high - low) > 30
    heads = np.asarray(store.tokens)[np.asarray(store.order)[int(low) :][:8] + 1]
    assert set(heads.tolist()) <= {-1, 0, 1}


def test_damaged_datastores(tmp_path):
    with pytest.raises(MethodError, match=r"experiments\.datastore"):
        rest.drafter(str(tmp_path))
    np.save(tmp_path / "tokens.npy", np.zeros(4, np.int32))
    np.save(tmp_path / "order.npy", np.zeros(3, np.int32))
    with pytest.raises(MethodError, match="shape"):
        rest.drafter(str(tmp_path))
    np.save(tmp_path / "order.npy", np.array([{}] * 4), allow_pickle=True)
    with pytest.raises(MethodError, match="not an array file"):
        rest.drafter(str(tmp_path))
    with pytest.raises(MethodError, match="empty"):
        suffix_array.build([[], []])


def test_the_golden_datastore_is_read_and_made_again(tmp_path):
    """The files of the conformance suite: the toy model's greedy texts."""
    texts = [
        [*prompt, *conformance.greedy_by_hand(conformance.TARGET.params, prompt, 40)]
        for prompt in conformance.PROMPTS
    ]
    suffix_array.save(suffix_array.build(texts), tmp_path)
    for name in suffix_array.FILES:
        golden = np.load(GOLDEN / name, allow_pickle=False)
        assert np.load(tmp_path / name).tolist() == golden.tolist()


def test_known_texts_take_fewer_calls():
    """With the greedy texts in the datastore most drafts are accepted."""
    out = conformance.generate(Method(conformance.spec("drafters/rest")))
    assert out.stats.tokens_per_call > 1.5


def test_the_command(tmp_path, capsys):
    text = tmp_path / "a.txt"
    text.write_text("def main():\n    return 0\n" * 3)
    out = str(tmp_path / "store")
    assert command.main([f"--text={tmp_path}", f"--out={out}"]) == 0
    assert "tokens" in capsys.readouterr().out
    assert rest.drafter(out).nodes == 65
    rows = tmp_path / "b.jsonl"
    rows.write_text('{"q": "one", "a": "two"}\n{"q": "three", "a": ""}\n')
    fields = [f"--text={rows}", "--fields=q,a", f"--out={out}"]
    assert command.main(fields) == 0
    tokens = suffix_array.load(out).tokens
    assert (tokens == suffix_array.END).sum() == 2
    assert command.main([*fields, "--most=4"]) == 0
    np.testing.assert_array_equal(suffix_array.load(out).tokens[:3], tokens[:3])
    assert len(suffix_array.load(out).tokens) <= 5
    assert command.main([f"--text={rows}", "--fields=x", f"--out={out}"]) == 2
    assert command.main([f"--out={out}"]) == 2
    assert command.main([f"--text={tmp_path}/none", f"--out={out}"]) == 2


def test_bad_arguments():
    with pytest.raises(MethodError, match="shortest=5"):
        rest.drafter("nowhere", shortest=5, longest=4)
    with pytest.raises(MethodError, match="length=60"):
        rest.drafter("nowhere", length=60)
    with pytest.raises(MethodError, match="hits=0"):
        rest.drafter("nowhere", hits=0)


def test_recipe_names_the_argument():
    assert Spec("drafters/rest", datastore=str(GOLDEN)).build({}).depth == 10
