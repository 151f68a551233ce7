"""Matchers: words of a tree, memory by prefix, predicates, answers for a batch."""

import numpy as np
import pytest

from decoding import vocab
from decoding.automata import matchers
from models.errors import ConstraintError

V, EOS = 40, 39
NODES = np.array([0, 5, 6, 7, 5, 9], np.int32)  # the root's token is not read
PARENTS = np.array([-1, 0, 0, 1, 2, 4], np.int32)


class Sums(matchers.Matcher[int]):
    """Allow a token above the sum of the text, modulo V; token 38 is never allowed."""

    def begin(self, prompt):
        return int(prompt.sum()) % V if self.reads_prompt else 0

    def step(self, state, token):
        return None if token == 38 else (state + token) % V

    def allowed(self, state):
        return np.arange(V) > state

    def is_over(self, state):
        return state % 2 == 0


class Prompted(Sums):
    reads_prompt = True


def bits(words: np.ndarray) -> np.ndarray:
    rows = words.reshape(-1, words.shape[-1])
    sets = np.stack([np.asarray(vocab.members(row, V)) for row in rows])
    return sets.reshape(*words.shape[:-1], V)


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_packed_words_are_what_the_device_unpacks():
    """Planted: the bits of a word in the other order."""
    rng = np.random.default_rng(0)
    allowed = rng.random((20, V)) < 0.3
    words = np.stack([matchers.pack(row) for row in allowed])
    assert words.dtype == np.uint32 and (bits(words) == allowed).all()
    reverse = np.packbits(np.pad(allowed, ((0, 0), (0, 24))), axis=1).view(">u4")
    assert (bits(reverse.astype(np.uint32)) != allowed).any()


def paths() -> list[list[int]]:
    """The tokens on the path to each node."""
    found: list[list[int]] = [[]]
    for node in range(1, len(NODES)):
        found.append([*found[PARENTS[node]], int(NODES[node])])
    return found


@pytest.mark.parametrize("fault", [None, "siblings", "root"])
def test_a_node_has_the_mask_behind_its_path(fault):
    """Planted: a node hangs below its sibling, or the root's token is read twice."""
    parents, before = PARENTS.copy(), text(3, 4)
    if fault == "siblings":
        parents[4] = 1
    if fault == "root":
        before = text(3, 4, 4)
    words = Sums(V).words(before, NODES, parents)
    expected = [np.arange(V) > (7 + sum(path)) % V for path in paths()]
    assert (bits(words) == expected).all() == (fault is None)


def test_nodes_that_nobody_asks_for_are_not_read():
    matcher = Sums(V)
    words = matcher.words(text(3), NODES, PARENTS, text(5, 1))
    assert (bits(words) == [np.arange(V) > 3 + s for s in (20, 5)]).all()
    assert matcher.replayed == 1 + len({5, 4, 2, 1})


def test_memory_changes_no_word():
    """Any order of calls, and a memory of two prefixes; planted: of another text."""
    rng = np.random.default_rng(1)
    texts = [
        rng.integers(0, 12, rng.integers(0, 9)).astype(np.int32) for _ in range(60)
    ]
    fresh = [Sums(V).words(t, NODES, PARENTS) for t in texts]
    replays = []
    for most in (1, 2, 4096):
        matcher = Sums(V, most=most)
        for t, words in zip(texts, fresh):
            assert (matcher.words(t, NODES, PARENTS) == words).all()
        replays.append(matcher.replayed)
        assert len(matcher._memory) <= most
    assert min(replays[:2]) > replays[2]

    class Forgetful(Sums):
        def _root(self, prompt):
            return b""  # prompts are mixed up

    Forgetful.reads_prompt = True
    for kind, same in ((Prompted, True), (Forgetful, False)):
        matcher = kind(V)
        words = [matcher.words(t, NODES, PARENTS, None, t) for t in texts]
        alone = [kind(V).words(t, NODES, PARENTS, None, t) for t in texts]
        assert all((a == b).all() for a, b in zip(words, alone)) == same


def test_longer_texts_read_new_tokens_alone():
    matcher = Sums(V)
    for size in range(1, 20):
        matcher.state(np.ones(size, np.int32), text())
        assert matcher.replayed == size


def test_forbidden_texts_and_empty_masks():
    words = Sums(V).words(text(38), NODES, PARENTS)
    assert bits(words).all()  # an unreachable node
    words = Sums(V, [EOS]).words(text(39), text(0), text(-1))
    assert bits(words).nonzero()[1].tolist() == [EOS]
    assert bits(Sums(V).words(text(39), text(0), text(-1))).all()


def test_whole_texts():
    assert Sums(V).accepts([2, 4]) and Sums(V, [EOS]).accepts([2, 4, EOS])
    assert not Sums(V).accepts([2, 3])
    assert not Sums(V).accepts([2, 38])
    assert Prompted(V).accepts([3], [1]) and not Sums(V).accepts([3], [1])


@pytest.mark.parametrize(
    "answer", [[3, 5], np.array([3, 5]), np.isin(np.arange(V), [3, 5]), (3, 5)]
)
def test_predicates_return_ids_or_bools(answer):
    seen = []

    def predicate(tokens):
        seen.append(tokens.tolist())
        return answer

    words = matchers.Predicate(predicate, V).words(text(1, 2), NODES, PARENTS)
    assert (bits(words) == np.isin(np.arange(V), [3, 5])).all()
    assert seen == [[1, 2, *path] for path in paths()]
    free = matchers.Predicate(lambda tokens: None, V)
    assert bits(free.words(text(1), text(0), text(-1))).all()
    ends = matchers.Predicate(lambda tokens: [EOS] if len(tokens) else [1], V, [EOS])
    assert ends.accepts([1]) and not ends.accepts([])


@pytest.mark.parametrize("answer", [[V], [-1], np.ones(V + 1, bool)])
def test_predicates_of_another_vocabulary(answer):
    with pytest.raises(ConstraintError, match="a predicate returned"):
        matchers.Predicate(lambda tokens: answer, V).words(text(), text(0), text(-1))


def test_answers_of_rows():
    """Rows have their own matchers, prompts and lengths; planted: another's number."""
    held = [Sums(V), Prompted(V)]
    numbers = [matchers.NUMBERS.of(m) for m in (None, *held)]
    assert len(set(numbers)) == 3 and matchers.NUMBERS.of(held[0]) == numbers[1]
    tokens = np.tile(text(1, 2, 3, 9, 9), (3, 1))
    rows = np.stack([numbers, [2, 2, 2]], 1).astype(np.int32)
    at = np.array([[0, 1, -1]] * 3, np.int32)
    trees = [np.tile(x, (3, 1)) for x in (NODES, PARENTS)]
    words = matchers.answer(2, rows, tokens, text(3, 3, 3), *trees, at)
    assert words.shape == (3, 3, 2)
    assert bits(words[0]).all() and bits(words[:, 2]).all()
    for row, before in ((1, 3), (2, 6)):
        expected = [np.arange(V) > before + more for more in (0, 5)]
        assert (bits(words[row, :2]) == expected).all()
    wrong = matchers.answer(2, rows[[0, 2, 1]], tokens, text(3, 3, 3), *trees, at)
    assert (wrong != words).any()


def test_a_number_of_no_matcher_allows_everything():
    """A matcher that is gone frees its number, which no other one gets."""
    gone = matchers.NUMBERS.of(Sums(V))
    assert matchers.NUMBERS.of(Sums(V)) != gone
    rows = text(gone, 0)[None]
    one = text(0)[None]
    words = matchers.answer(2, rows, one, text(1), one, one - 1, one)
    assert bits(words).all()
