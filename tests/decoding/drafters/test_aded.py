"""ADED: its table by hand, and its search against one written with Python objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit as conformance
from decoding.drafters import aded
from decoding.text_lookup import suffix_array, trigram_table
from decoding.text_lookup.trigram_table import Trigrams
from models.errors import MethodError
from tests.decoding.drafters import kit

SMALL = {"iterations": 30, "depth": 3, "kept": 8, "successors": 3, "size": 64}
CORPUS = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 5, 1, 2, 3, 1, 2, 6, 6], [2, 3, 4, 1, 2, 3]]


def weights(shared: Trigrams, a: int, b: int) -> dict[int, float]:
    tokens, found = jax.jit(trigram_table.after)(shared, jnp.int32(a), jnp.int32(b))
    return {int(t): float(w) for t, w in zip(tokens, found) if t >= 0}


def test_the_table_of_a_corpus():
    """After 1 2 came 3 three times, 5 and 6 once; 8 entries are too few."""
    table = trigram_table.table(CORPUS, size=64, successors=3)
    assert weights(table, 1, 2) == pytest.approx({3: 0.6, 5: 0.2, 6: 0.2})
    assert weights(table, 3, 4) == pytest.approx({5: 0.5, 1: 0.5})
    assert weights(table, 7, 7) == {} == weights(table, -1, 2)
    pruned = trigram_table.table(CORPUS, size=8, successors=2)
    assert len(weights(pruned, 1, 2)) == 2
    assert int((pruned.keys[:, 0] >= 0).sum()) == 8


def test_it_starts_with_the_table_of_a_datastore(tmp_path):
    """No trigram reaches over the end of a text; a run does not change the corpus."""
    suffix_array.save(suffix_array.build(CORPUS), tmp_path)
    drafter = aded.drafter(**SMALL, datastore=str(tmp_path))
    same = trigram_table.table(CORPUS, size=64, successors=3)
    for _ in range(2):
        start = drafter.init(kit.context([[1]])).shared
        for one, other in zip(jax.tree.leaves(start), jax.tree.leaves(same)):
            np.testing.assert_array_equal(one, other)
        assert weights(start, 6, 7) == {}  # 1 is of the next text
        start.weights.delete()  # as a donated state is


def test_worked_example():
    """One continuation of 1 2: the search finds it to its depth, and one token more."""
    drafter = aded.drafter(**SMALL)
    table = trigram_table.table([[1, 2, 3, 4, 5, 6, 7]], size=64, successors=3)
    draft = kit.jitted(drafter)
    start = drafter.init(kit.context([[1]] * 3))
    nodes, _ = draft([[0, 1, 2], [9, 9], [2]], start.replace(shared=table))
    assert kit.paths(nodes) == [(3,), (3, 4), (3, 4, 5), (3, 4, 5, 6)]
    assert kit.paths(nodes, 1) == kit.paths(nodes, 2) == []


def by_hand(corpus, pair, c1, c2, noise, previous=False) -> dict[tuple, int]:
    """{path: visits}; `previous` is the fault of the official code's sum."""
    table: dict = {}
    shared = trigram_table.table(corpus, size=64, successors=noise.shape[2])
    f = np.float32

    def after(a, b):
        if (a, b) not in table:
            table[a, b] = list(weights(shared, a, b).items())
        return table[a, b]

    visits: dict[tuple, int] = {}
    total: dict[tuple, np.float32] = {}
    grown: dict[tuple, list] = {}
    prior: dict[tuple, float] = {}
    iterations, depth, _ = noise.shape

    def value(path, child):
        n, here = visits.get(child, 0), f(visits.get(path, 0))
        if not n:
            return f(np.inf)
        explore = (f(c1) + np.log((here + f(c2) + f(1)) / f(c2))) * f(prior[child])
        return total[child] / f(n) + explore * np.sqrt(here) / f(1 + n)

    for i in range(iterations):
        path: tuple = ()
        while len(path) < depth and grown.get(path):
            path = max(grown[path], key=lambda child: value(path, child))
        ends = (*pair, *path)
        if len(path) < depth and after(*ends[-2:]):
            grown[path] = [(*path, w) for w, _ in after(*ends[-2:])]
            prior.update({(*path, w): p for w, p in after(*ends[-2:])})
            path = grown[path][-1]
        steps = [path[:d] for d in range(1, len(path) + 1)]
        gain = f(1) + sum(
            (f(prior[s]) for s in (steps[:-1] if previous else steps)), f(0)
        )
        told = (*pair, *path)
        for d in range(depth - len(path)):
            law = after(*told[-2:])
            if not law:
                break
            pick = max(
                range(len(law)), key=lambda j: np.log(f(law[j][1])) + noise[i, d, j]
            )
            gain += f(law[pick][1])
            told = (*told, law[pick][0])
        for step in [(), *steps]:
            visits[step] = visits.get(step, 0) + 1
            total[step] = total.get(step, f(0)) + gain
    return visits


def searched(corpus, pair, c1, c2, noise) -> dict[tuple, int]:
    shared = trigram_table.table(corpus, size=64, successors=noise.shape[2])
    numbers = [jnp.float32(c1), jnp.float32(c2)]
    found = jax.jit(aded.search)(shared, *map(jnp.int32, pair), *numbers, noise)
    paths: dict[int, tuple] = {0: ()}
    tokens, counts = found.pairs[:, 1], found.numbers[:, 1]
    visits = {(): int(counts[0])}
    for i in range(1, len(tokens)):
        if tokens[i] >= 0:
            paths[i] = (*paths[int(found.parents[i])], int(tokens[i]))
            if counts[i]:
                visits[paths[i]] = int(counts[i])
    return visits


@pytest.mark.parametrize("c1", [32.0, 0.5])
def test_search_by_hand(c1):
    """30 iterations on 600 random tokens of 4 kinds, seed 1: visit for visit."""
    corpus = np.random.default_rng(1).integers(0, 4, (2, 300)).tolist()
    noise = np.asarray(jax.random.gumbel(jax.random.key(0), (30, 3, 3)))
    found = searched(corpus, (1, 2), c1, 8.0, noise)
    assert found == by_hand(corpus, (1, 2), c1, 8.0, noise)
    assert found[()] == 30


def test_fault_the_token_before_is_summed():
    """Planted: the official code's sum leaves out the new token's own weight."""
    corpus = np.random.default_rng(1).integers(0, 4, (2, 300)).tolist()
    noise = np.asarray(jax.random.gumbel(jax.random.key(0), (30, 3, 3)))
    right, wrong = (
        by_hand(corpus, (1, 2), 0.5, 8.0, noise, previous=p) for p in (False, True)
    )
    assert right != wrong


def drafted_by_hand(choices: int, cut: bool = True) -> set[tuple]:
    """The draft after 1 2, by paths, from the search's visits; `cut` off: a fault."""
    key, shape = kit.keys(1)[0], (30, 3, 3)
    noise = np.asarray(jax.random.gumbel(key, shape))
    visits = searched(LONG, (1, 2), 32.0, 8.0, noise)
    shared = trigram_table.table(LONG, size=64, successors=3)
    del visits[()]
    nodes = sorted(visits, key=lambda path: -visits[path])[: SMALL["kept"]]
    sentences: dict[tuple, None] = {}
    for path in nodes:
        following = weights(shared, *(1, 2, *path)[-2:])
        last = (max(following, key=lambda w: following[w]),) if following else ()
        sentences[(*path, *last)] = None
    short = sorted(sentences, key=lambda path: len(set(path)))
    while cut and sum(len(set(path)) for path in short) > choices:
        short.pop()
    return {path[:d] for path in short for d in range(1, len(path) + 1)}


LONG = np.random.default_rng(1).integers(0, 4, (2, 300)).tolist()


@pytest.mark.parametrize("choices", [1000, 18, 12, 5])
def test_long_paths_are_cut(choices):
    """The paths have at most `choices` tokens together; the longest go first."""
    drafter = aded.drafter(**SMALL, choices=choices)
    start = drafter.init(kit.context([[1]]))
    table = trigram_table.table(LONG, size=64, successors=3)
    nodes, _ = kit.jitted(drafter)([[0, 1, 2]], start.replace(shared=table))
    paths = kit.paths(nodes)
    assert set(paths) == drafted_by_hand(choices)
    assert len(set(paths)) == len(paths)


def test_fault_long_paths_stay():
    """Planted: no path is cut."""
    assert drafted_by_hand(1000) == drafted_by_hand(12, cut=False)
    assert drafted_by_hand(12) != drafted_by_hand(12, cut=False)


def test_the_defaults_are_the_code_s():
    """4 states and 24 nodes with the root; one more token a node."""
    drafter = aded.drafter()
    assert (drafter.nodes, drafter.depth) == (1 + 2 * 23, 4)


def learn(table: Trigrams, texts, active=(True, True), **fields) -> Trigrams:
    drafter = aded.drafter(**{**SMALL, "recent": 4, **fields})
    ctx = kit.context(texts)
    none = jnp.zeros((2, drafter.nodes), jnp.int32)
    nodes = base.TokenTree(none, none - 1, none, depth=drafter.depth)
    seen = kit.outcome(nodes, jnp.zeros((2, 1, 9)), active)
    state = drafter.init(ctx).replace(shared=table)
    return jax.jit(lambda s: drafter.observe(ctx, s, seen).shared)(state)


def test_update_by_hand():
    """The last four tokens are two trigrams; the weakest of a full entry gives way."""
    table = trigram_table.table(CORPUS, size=64, successors=3)
    after = learn(table, [[9, 8, 1, 2, 3], [7, 7, 7]], boost=0.5)
    assert weights(after, 1, 2) == pytest.approx({3: 1.1, 5: 0.2, 6: 0.2})
    assert weights(after, 8, 1) == pytest.approx({2: 0.5})
    assert weights(after, 7, 7) == pytest.approx({7: 0.5})
    assert weights(after, 9, 8) == {}
    assert weights(after, 3, 4) == weights(table, 3, 4)
    after = learn(after, [[1, 2, 4], [1, 2, 3]], cap=1.1, boost=0.3)
    found = weights(after, 1, 2)
    assert len(found) == 3 and found == pytest.approx({3: 1.1, 4: 0.3, 6: 0.2})


@pytest.mark.parametrize("fault", [False, True])
def test_fault_finished_rows_teach(fault):
    """Planted: a finished row is taken for an active one."""
    table = trigram_table.table(CORPUS, size=64, successors=3)
    after = learn(table, [[1, 2, 3], [7, 7, 7]], (True, fault))
    assert bool(weights(after, 7, 7)) == fault


def test_repetition_raises_the_rank():
    """After 1 2 the table prefers 3; told 1 2 6 often enough, 6."""
    table = trigram_table.table(CORPUS, size=64, successors=3)
    assert max(weights(table, 1, 2), key=weights(table, 1, 2).get) == 3
    for _ in range(7):
        table = learn(table, [[1, 2, 6], [1, 2, 6]])
    assert max(weights(table, 1, 2), key=weights(table, 1, 2).get) == 6


@pytest.mark.long
def test_memory_lasts():
    """A text told again takes fewer calls; so does one after a corpus of it."""
    method = Method(Spec("drafters/aded", **SMALL))
    first = conformance.generate(method)
    texts = [[*p, *t] for p, t in zip(conformance.PROMPTS, first.tokens)]
    corpus = trigram_table.table(texts, size=64, successors=3)
    told = conformance.generate(method, memory=corpus)
    assert told.tokens == first.tokens
    assert told.stats.target_calls.sum() < first.stats.target_calls.sum()


def test_bad_arguments():
    for field, value in (
        ("recent", 2),
        ("size", 4),
        ("c2", 0.0),
        ("depth", 0),
        ("choices", 0),
    ):
        with pytest.raises(MethodError, match=f"{field}={value}"):
            aded.drafter(**{field: value})
