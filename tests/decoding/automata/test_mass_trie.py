"""Bounds of visited texts, against sums over a finite language."""

import numpy as np
import pytest

from decoding.automata import mass_trie
from decoding.automata.mass_trie import MassTrie
from experiments.measurement.sentences import USUAL, Sentences

TOY = Sentences(*USUAL)


def nodes(trie: MassTrie) -> list[tuple[tuple, float]]:
    """Every prefix of a visited text, and its bound."""
    found, todo = [], [((), trie.root(0))]
    while todo:
        prefix, at = todo.pop()
        found.append((prefix, np.exp(trie.bound[at])))
        todo += [((*prefix, t), node) for t, node in trie.children[at].items()]
    return found


def run(seed: int, marks: tuple[int, ...], keep_forbidden: bool = False):
    """The trie and its distance from the conditional law after so many texts."""
    trie, rng, found = MassTrie(), np.random.default_rng(seed), []
    for count in range(marks[-1] + 1):
        if count in marks:
            found.append(TOY.distance(trie))
        text, logprobs, masses = TOY.draw(trie, rng)
        if keep_forbidden:
            masses = [0.0] * len(masses)
        trie.add(0, text, logprobs, masses)
    return trie, found


def test_bounds_hold_and_never_rise():
    """At every node after every text. Planted: a bound below the future mass."""
    trie, rng, before = MassTrie(), np.random.default_rng(0), {}
    for _ in range(200):
        trie.add(0, *TOY.draw(trie, rng))
        now = dict(nodes(trie))
        for prefix, bound in now.items():
            assert bound >= TOY.future(prefix) * (1 - 1e-9)
            assert bound <= before.get(prefix, 1.0)
        before = now
    assert any(bound < TOY.future(prefix) * 1.01 for prefix, bound in before.items())
    lower = {prefix: bound * 0.98 for prefix, bound in before.items()}
    assert any(bound < TOY.future(prefix) for prefix, bound in lower.items())


@pytest.fixture(scope="module")
def converged():
    return [run(seed, (0, 5, 200, 1000)) for seed in range(5)]


def test_texts_go_to_the_conditional_law(converged):
    """Mean of five runs. After five texts the law is further away than the mask's."""
    first, early, some, many = np.mean([found for _, found in converged], 0)
    assert early > first > 0.3 and some <= 0.01 and many <= 0.001
    for trie, _ in converged:
        assert trie.log_bound(0) == pytest.approx(np.log(TOY.future(())), abs=2e-3)


def test_fault_forbidden_mass_kept():
    """Planted: Z = 1 everywhere, as if what the mask forbids might still follow."""
    trie, (far,) = run(0, (200,), keep_forbidden=True)
    assert far > 0.1 and trie.log_bound(0) > np.log(TOY.future(())) + 0.5


def test_first_text_has_the_law_of_the_mask():
    """Planted: the conditional law, which is another one."""
    masked = [
        np.exp(sum(TOY.law(t[:i])[w] - TOY.mass(t[:i]) for i, w in enumerate(t)))
        for t in TOY.texts
    ]
    np.testing.assert_allclose(TOY.next_law(MassTrie()), masked)
    assert not np.allclose(masked, TOY.conditional(), atol=0.01)


def by_hand() -> MassTrie:
    trie = MassTrie()
    trie.add(0, [5, 9], np.log([0.25, 0.5]), np.log([0.5, 0.5]))
    trie.add(0, [5, 8], np.log([0.25, 0.125]), np.log([0.5, 0.5]))
    return trie


def test_by_hand():
    """Z = 1/2 at both nodes, and 1 behind: c = 1/2 - (1/4) (1 - 1/2) = 3/8."""
    trie = by_hand()
    assert trie.log_bound(0, [5]) == pytest.approx(np.log(0.5))
    assert trie.log_bound(0) == pytest.approx(np.log(0.375))
    assert trie.log_bound(0, [9]) == trie.log_bound(1) == 0.0
    assert trie.log_bound(0) != pytest.approx(np.log(0.5))  # planted: Z alone
    other = trie.copy()
    other.add(1, [3], [-1.0], [-0.5])
    assert (trie.size, other.size) == (4, 6) and trie.root(1) == mass_trie.NOWHERE


def test_arrays_hold_the_bounds_below_one():
    trie = by_hand()
    arrays = trie.arrays()
    at = trie.root(0)
    begin, end = arrays.first[at : at + 2]
    assert arrays.token[begin:end].tolist() == [5]
    assert arrays.child[begin] == trie.node(0, [5])
    assert arrays.bound[begin] == np.float32(np.log(0.5))
    assert (arrays.first[at + 1 :] == 1).all()  # planted: leaves are listed too
    sizes = [len(values) for values in arrays]
    few = mass_trie.FEWEST
    assert sizes == [few + 1] + [few + mass_trie.ROOM] * 3


def test_the_most_telling_children_are_listed():
    """300 children, the likelier ones last. Planted: the first 256."""
    trie, count = MassTrie(), 300
    share = np.arange(1, count + 1) / (count * (count + 1))
    for token, p in enumerate(share):
        trie.add(0, [token, 0], [np.log(p), -1.0], [-0.1, -0.5])
    arrays = trie.arrays()
    begin, end = arrays.first[trie.root(0) : trie.root(0) + 2]
    listed = set(arrays.token[begin:end].tolist())
    assert listed == {*range(count - mass_trie.ROOM, count)}
    assert listed != {*range(mass_trie.ROOM)}


def test_masses_do_not_underflow():
    """A text of 2,000 tokens, each of probability 1e-3. Planted: in probabilities."""
    trie, size = MassTrie(), 2000
    trie.add(0, [0] * size, [np.log(1e-3)] * size, [np.log(1e-3)] * size)
    assert trie.log_bound(0) == mass_trie.LEAST
    assert trie.log_bound(0, [0] * 1000) == pytest.approx(1000 * np.log(1e-3))
    assert 1e-3**1000 == 0.0
