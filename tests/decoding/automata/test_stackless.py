"""Machines without a stack: their lift and its pruning, against Python's `re`."""

import numpy as np
import pytest

from decoding.automata import (
    byte_machine,
    compiled,
    lift,
    machine,
    pushdown,
    regex_syntax,
    stackless,
    token_dfa,
    utf8,
)
from tests.decoding.automata import regex_oracle
from tests.decoding.automata.regex_oracle import EOS, TOKENS, VOCAB

# Pattern; prefixes up to how many bytes are tried; how many more bytes complete any of
# them (0 where the first number bounds the whole language).
PATTERNS = [
    ("(ab|ba){1,2}", 4, 0),
    ("a*bc", 2, 4),
    ("[ab]c?", 2, 0),
    ("[^a]{1,2}", 4, 0),
    ("(é|a)(é|b)?", 4, 0),
    (r"\d{1,3}-\d", 5, 0),
    ("a?(bca|b)*", 3, 3),
    ("(?i)B[^\n]?", 3, 0),
    ("", 0, 0),
]
# Their texts have at most 6 bytes; many ways are spelled by no token.
MANY = r"""
a|b (a|b){,3}abb (ab?c?|1-){0,2} [ab1-]{2,3} (bca|1-12?)b? a{3,4}b{,2} ((a|b)1?){,3}
(a|aa){1,3} (ba|ab|é){,2}1? a?b?(12|1-)? [^b]{1,2}a? .{0,2}b \d{1,2}(-\d{1,2})? (é|a){3}
[a-c]{2} é?à?a{,2} (?i)A?B x|ab (ab|ac|ad) a[bc]a? (1|12|2){,3} -?1?1?- (b|bc)a?
(bc){,2}a (a|c)(b|c)1 [^1]1 ac?b? 12{2}|1 (é|Ã)a (b?a){2,3}
""".split()


def wrong(patterns) -> int:
    return sum(regex_oracle.disagreements(*about)[1] for about in patterns)


@pytest.mark.parametrize("about", PATTERNS, ids=lambda about: about[0])
def test_mask_equals_brute_force(about):
    assert wrong([about]) == 0


def test_masks_equal_re_on_thirty_patterns():
    counts = [regex_oracle.disagreements(pattern, 6) for pattern in MANY]
    assert len(MANY) == 30
    pairs, differing = np.sum(counts, 0)
    assert pairs > 10_000 and differing == 0


# Bytes can go on from "ac" and from "b", but no token spells the rest.
STRANDED = [("ab|a[1c]2|acc", 3), ("[ab]c{2}|b", 3), ("12{2}|1", 3)]


@pytest.mark.parametrize("about", STRANDED)
def test_fault_no_pruning(monkeypatch, about):
    """Planted: every state counts as one that tokens can end."""
    assert wrong([about]) == 0
    bytes_only = lambda step, accept: np.where(accept, 0, 1).astype(np.int32)
    whole = compiled.machine(compiled.parse({"regex": about[0]}))
    monkeypatch.setattr(compiled, "machine", lambda grammar: whole)
    monkeypatch.setattr(token_dfa, "distances", bytes_only)
    assert wrong([about]) > 0


def test_fault_merged_classes(monkeypatch):
    """Planted: a token has the class of another."""
    assert wrong([("[ab]1", 2)]) == 0
    right = token_dfa.lift

    def careless(*about):
        lifted = right(*about)
        classes = lifted.classes.copy()
        classes[TOKENS.index(b"ab")] = classes[TOKENS.index(b"b")]
        return lifted._replace(classes=classes)

    monkeypatch.setattr(token_dfa, "lift", careless)
    assert wrong([("[ab]1", 2)]) > 0


def test_classes_are_as_few_as_columns():
    dfa = utf8.byte_automaton(regex_syntax.automaton("[ab]1"))
    lifted = token_dfa.lift(dfa, TOKENS, VOCAB)
    assert len(np.unique(lifted.next, axis=1).T) == lifted.next.shape[1]
    assert lifted.next.shape[1] == 3  # nowhere allowed · a and b · 1


def test_machine_equals_one_built_state_by_state():
    """Planted: a final state that is none."""
    for pattern in ("(ab|ba){1,2}", "[^a]{1,2}b", r"\d{1,3}-\d"):
        dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
        built = pushdown.Builder()
        for accept in dfa.accept:
            built.state(final=0 if accept else -1)
        for q, byte in np.argwhere(dfa.next >= 0).tolist():
            to = int(dfa.next[q, byte]) + byte_machine.STRING
            built.read(q + byte_machine.STRING, [byte], to)
        slow = built.machine(dfa.start + byte_machine.STRING)
        fast = stackless.machine(dfa)

        def forms(each):
            text, state = [], each.start
            while each.exit[state] >= 0:
                text.append(int(each.exit[state]))
                state = each.moves[state, text[-1]]
            costs = sorted(zip(each.cost.tolist(), each.final.tolist()))
            return costs, len(text), byte_machine.accepts(each, bytes(text))

        assert forms(fast) == forms(slow)
        final = fast.final.copy()
        final[fast.final >= 0] = -1
        assert forms(fast._replace(final=final)) != forms(slow)


def test_finishing_takes_as_few_tokens_as_can_be():
    """From every state, by the listed first token. Planted: bytes."""
    for pattern in ("(bc)*a", "1(2|-){1,2}bca", "a{1,5}bc"):
        built = compiled.machine(compiled.parse({"regex": pattern}))
        lifted = stackless.lift(built, TOKENS, VOCAB)
        (cost, token), text = lifted.cost[built.start], []
        at = byte_machine.Config(built.start)
        while token >= 0:
            text.append(token)
            at = byte_machine.read(built, at, TOKENS[token])
            left, token = lifted.cost[at.state]
            assert left == cost - len(text)
        assert byte_machine.is_final(built, at)
        data = b"".join(TOKENS[token] for token in text)
        assert regex_oracle.matches(pattern, data)
    assert cost == 2 < built.cost[built.start] == 3


def ends_within(pattern: str, more: int, is_limited: bool, seed: int) -> bool:
    """Whether a random text is whole within `more` tokens above the fewest."""
    tables, start = regex_oracle.placed(pattern)
    limit = int(tables.cost[start, 0]) + 1 + more
    rng = np.random.default_rng(seed)
    row, text = machine.init(start, limit, 1, is_limited), b""
    for _ in range(limit):
        token = rng.choice(np.flatnonzero(regex_oracle.allowed(tables, row)))
        if token in EOS:
            return regex_oracle.matches(pattern, text)
        text += TOKENS[token]
        row = regex_oracle.advance(tables, row, token)
    return False


def test_texts_end_within_their_limit():
    """Where tokens spell no shortest ending of bytes. Planted: no limit."""
    cases = [(p, more) for p in ("(a|b)*bc", "(1-|1)*(bca|-)") for more in (0, 1, 3)]
    for seed in range(4):
        assert all(ends_within(*case, True, seed) for case in cases)
    assert not all(ends_within(*case, False, 0) for case in cases)


def test_table_sizes(words):
    # Megabytes of masks and moves; a dense table takes Q · V entries of 2 bytes.
    patterns = [
        r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
        r'\{"name": "[^"\\\n]{1,20}", "age": (0|[1-9]\d{0,2}), "tags": '
        r'\[("[a-z]{1,8}"(, "[a-z]{1,8}"){0,3})?\]\}',
        r'\{"title": "([^"\\\n]|\\["\\/bfnrt]){0,40}", "tags": \["[^"\\\n]{1,40}"'
        r'(, "[^"\\\n]{1,40}"){1,4}\], "id": \d{1,9}\}',
    ]
    for size, most in ((4096, (0.2, 0.2, 0.8)), (131_072, (1.3, 1.3, 4.9))):
        for pattern, megabytes in zip(patterns, most):
            tables, _ = regex_oracle.placed(pattern, words[:size], size)
            parts = (tables.fixed, tables.plain, tables.own.values, tables.moves)
            assert sum(part.nbytes for part in parts) * 1e-6 <= megabytes
        states = len(compiled.machine(compiled.parse({"regex": pattern})).ends)
        assert states * size * 2e-6 > 10 * megabytes


def test_few_and_many_tokens_agree(monkeypatch):
    """Words where lists were; planted: words of a state that lost a token."""
    monkeypatch.setattr(stackless, "FEW", 1)
    assert wrong([("(ab|ba){1,2}", 4), ("[ab]c?", 2)]) == 0
    lost = lambda allowed: lift.pack(allowed & (np.arange(VOCAB) != 1))
    monkeypatch.setattr(stackless, "pack", lost)
    assert wrong([("(ab|ba){1,2}", 4)]) > 0


def test_dead_states_stay_dead():
    tables, start = regex_oracle.placed("ab")
    row = machine.init(start, 0, 1, False)
    for token in (TOKENS.index(b"bc"), TOKENS.index(b"a"), EOS[0]):
        row = regex_oracle.advance(tables, row, token)
        assert row.state == machine.DEAD
        assert regex_oracle.allowed(tables, row).all()
