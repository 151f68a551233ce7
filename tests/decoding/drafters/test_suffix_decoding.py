"""SuffixDecoding against a suffix tree written with Python dictionaries."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit as conformance
from decoding.drafters import suffix_decoding
from decoding.text_lookup import suffix_match
from models.errors import MethodError
from tests.decoding.drafters import kit

SMALL = {"most": 5, "longest": 6, "pages": 0, "span": 8}
METHOD = Method(Spec("drafters/suffix_decoding", most=5, pages=6, span=64))
# Past outputs that the tree of these tests knows: after 1 2 came 3 4 (twice) and 5.
TEXT = [1, 2, 3, 4, 9, 1, 2, 5, 6, 9, 1, 2, 3, 4, 7, 1, 2]


def matched(text: list[int], longest: int = 6) -> dict[int, int]:
    """{place: match length}, the longest first, of equals the latest."""
    n, found = len(text), {}
    for j in reversed(range(n - 1)):
        size = 0
        while size < min(longest, j + 1) and text[j - size] == text[n - 1 - size]:
            size += 1
        found[j] = size
    return {j: m for j, m in sorted(found.items(), key=lambda x: -x[1]) if m}


def budget(p: int, alpha: float) -> int:
    return min(SMALL["most"], int(alpha * p + 1e-6))


def trees_by_hand(text, alpha, least=0.1) -> list[tuple[int, dict[tuple, float]]]:
    """Of every p: the nodes allowed, and D of all nodes by their paths."""
    n, length, found = len(text), matched(text), []
    for p in set(length.values()):
        counts = collections.Counter(
            tuple(text[j + 1 : j + 1 + d])
            for j in length
            for d in range(1, SMALL["most"] + 1)
            if length[j] >= p and j + d < n
        )
        family = collections.Counter()
        for path, count in counts.items():
            family[path[:-1]] += count
        prob = {(): 1.0}
        for path in sorted(counts, key=len):
            prob[path] = prob[path[:-1]] * counts[path] / family[path[:-1]]
        del prob[()]
        found.append((budget(p, alpha), {k: d for k, d in prob.items() if d >= least}))
    return found


def paths_by_hand(text, alpha, least=0.1) -> list[tuple[float, list[int]]]:
    """Score and path of every p; the earlier place decides between equal counts."""
    n, length, found = len(text), matched(text), [(0.0, [])]
    for p in sorted(set(length.values())):
        members, path, prob, score = [j for j in length if length[j] >= p], [], 1.0, 0.0
        for d in range(1, budget(p, alpha) + 1):
            goes = [j for j in members if j + d < n]
            counts = collections.Counter(text[j + d] for j in goes)
            if not goes:
                break
            best = max(counts, key=counts.get)  # the first of equals
            prob *= counts[best] / len(goes)
            if prob < least:
                break
            path, score = [*path, best], score + prob
            members = [j for j in goes if text[j + d] == best]
        found.append((score, path))
    return found


def drafts(drafter: base.Drafter, texts: list[list[int]]) -> list[list[tuple]]:
    nodes, _ = kit.jitted(drafter, 40)(texts)
    return [kit.paths(nodes, row) for row in range(len(texts))]


def chain(tokens: list[int]) -> list[tuple]:
    return [tuple(tokens[:i]) for i in range(1, len(tokens) + 1)]


def test_worked_example():
    """After 1 2 came 3 4 twice and 5 6 once. One match of two tokens, alpha = 2: the
    path 3 4 has D = 2/3 and 2/3; then 9 and 7 have 1/3 each, and the first is older.
    The tree takes 3, 4 and, of the nodes of 1/3, the shallowest first: 5."""
    drafter = suffix_decoding.drafter(alpha=2.0, **SMALL)
    assert drafts(drafter, [TEXT]) == [chain([3, 4, 7, 1])]
    drafter = suffix_decoding.drafter(alpha=2.0, tree=True, **SMALL)
    found = drafts(drafter, [TEXT])[0]
    assert found[:2] == [(3,), (3, 4)] and found[2] == (5,) and len(found) == 4


def test_length_follows_the_match():
    """alpha · p + offset drafts, and none of less than `least`."""
    text = [5, 1, 2, 3, 4, 6, 7, 8, 9, 1, 2, 3]
    drafter = suffix_decoding.drafter(**SMALL)
    draft = kit.jitted(drafter, 40)
    start = drafter.init(kit.context([text] * 4))
    for alpha, offset, least, expected in (
        (1.0, 0.0, 0.1, [[4, 6, 7], [3, 4], [], [4, 6, 7]]),
        (0.5, 0.0, 0.1, [[4], [3], [], [4]]),
        (0.0, 2.0, 0.1, [[4, 6], [3, 4], [], [4, 6]]),
        (2.0, 0.0, 0.7, [[4, 6, 7, 8, 9], [], [], [4, 6, 7, 8, 9]]),
    ):
        numbers = {"alpha": alpha, "offset": offset, "least": least}
        row = {k: jnp.full((4,), v) for k, v in numbers.items()}
        nodes, _ = draft(
            [text, TEXT, [1], text], start.replace(row=start.row.replace(**row))
        )
        assert [kit.paths(nodes, i) for i in range(4)] == [chain(e) for e in expected]


# 120 texts of 3 letters, seed 0, of 1 to 35 tokens.
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(1, 4, RNG.integers(1, 36)).tolist() for _ in range(120)]


def test_paths_by_hand():
    """The draft is a path of greatest score, up to rounding."""
    found = drafts(suffix_decoding.drafter(alpha=1.5, **SMALL), TEXTS)
    lengths = set()
    for text, draft in zip(TEXTS, found):
        every = paths_by_hand(text, 1.5)
        best = max(score for score, _ in every)
        assert draft in [chain(path) for score, path in every if score > best - 1e-5]
        lengths.add(len(draft))
    assert lengths == set(range(6))


def test_trees_by_hand():
    """The draft's score, for a p that allows as many nodes, is the greatest of all."""
    found = drafts(suffix_decoding.drafter(alpha=1.5, tree=True, **SMALL), TEXTS)
    for text, draft in zip(TEXTS, found):
        every = trees_by_hand(text, 1.5)
        best = [sum(sorted(d.values(), reverse=True)[:n]) for n, d in every]
        sums = [
            sum(d[path] for path in draft)
            for n, d in every
            if len(draft) <= n and all(path in d for path in draft)
        ]
        assert max(sums, default=0) == pytest.approx(max(best, default=0), abs=1e-5)
    assert any(len({path[:-1] for path in draft}) < len(draft) for draft in found)


def test_fault_no_length_control():
    """Planted: a budget that does not know the match; the oracle disagrees."""
    free = drafts(suffix_decoding.drafter(alpha=0.0, offset=5.0, **SMALL), TEXTS)
    every = [[chain(path) for _, path in paths_by_hand(t, 1.5)] for t in TEXTS]
    assert any(draft not in known for draft, known in zip(free, every))


def test_past_outputs_are_kept():
    """The pages hold the texts of the first request, and help the second one."""
    first = conformance.generate(METHOD)
    shared = first.memory
    order = np.argsort(np.asarray(shared.owner))[-4:]
    for page, text in zip(order, first.tokens):
        assert (
            np.asarray(shared.pages)[page, : int(shared.filled[page])].tolist() == text
        )
    assert int(shared.tickets) == 4
    again = conformance.generate(METHOD, memory=shared)
    assert again.tokens == first.tokens
    assert again.stats.target_calls.sum() < first.stats.target_calls.sum()
    assert int(again.memory.tickets) == 8
    assert sorted(np.asarray(again.memory.owner)) == list(range(2, 8))  # FIFO


def store(active, filled: int, tickets=(-1, -1), pages: int = 2):
    """The shared state after one round that committed 5 and 6 in two rows."""
    drafter = suffix_decoding.drafter(most=1, pages=pages, span=4)
    ctx = kit.context([[1], [1]])
    state = drafter.init(ctx)
    state = state.replace(
        row=state.row.replace(ticket=jnp.array(tickets, jnp.int32)),
        shared=state.shared.replace(
            filled=jnp.full((pages,), filled, jnp.int32),
            owner=jnp.arange(pages, dtype=jnp.int32),
            tickets=jnp.int32(pages),
        ),
    )
    none = jnp.zeros((2, 2), jnp.int32)
    nodes = base.TokenTree(none, none - 1, none, depth=1)
    seen = kit.outcome(nodes, jnp.zeros((2, 2, 9)), active)
    seen = seen.replace(
        verdict=seen.verdict.replace(token=jnp.array([5, 6], jnp.int32))
    )
    return jax.jit(lambda state: drafter.observe(ctx, state, seen))(state)


def test_a_long_output_takes_another_page():
    state = store([True, True], 4, (0, 1))
    assert state.row.ticket.tolist() == [2, 3]
    assert state.shared.pages[:, 0].tolist() == [5, 6]
    assert state.shared.filled.tolist() == [1, 1]


def test_a_page_has_one_writer():
    """Two rows and one page: the later ticket writes, and the texts do not mix."""
    state = store([True, True], 0, pages=1)
    assert state.shared.owner.tolist() == [2] and int(state.shared.tickets) == 3
    assert state.shared.pages[0].tolist() == [6, 0, 0, 0]
    assert state.shared.filled.tolist() == [1]


@pytest.mark.parametrize("fault", [False, True])
def test_fault_finished_rows_write(fault):
    """Planted: a finished row is taken for an active one, and takes a page."""
    state = store([True, fault], 0)
    assert int(state.shared.tickets) == (4 if fault else 3) != 2


def test_fault_the_end_matches_itself():
    """Planted: the text's own end among the places; nothing can be drafted from it."""
    text = [3, 1, 2]
    ends = jnp.array([[len(text)]])
    ctx = kit.context([text], size=8)
    pattern = suffix_match.last_tokens(ctx.tokens, ctx.length, 4)
    assert pattern.tolist() == [[2, 1, 3, -1]]
    sound = suffix_match.matches(ctx.tokens[:, None], ends, pattern)
    wrong = suffix_match.matches(ctx.tokens[:, None], ends + 1, pattern)
    assert not sound.any() and int(wrong.max()) == 3


def test_bad_arguments():
    for field, value in (("most", 0), ("least", 2.0), ("alpha", -1.0), ("span", 16)):
        with pytest.raises(MethodError, match=f"{field}={value}"):
            suffix_decoding.drafter(**{field: value})
    assert jax.tree.leaves(suffix_decoding.drafter(pages=0).init(kit.context([[1]])))
