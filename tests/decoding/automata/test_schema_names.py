"""decoding/automata/schema_names.py: tries of names; names with patterns."""

import re

from decoding.automata.byte_machine import BODY, ESCAPE
from decoding.automata.ecma_syntax import parse
from decoding.automata.pushdown import string_moves
from decoding.automata.schema_formulas import Logic
from decoding.automata.schema_keywords import Members
from decoding.automata.schema_names import Order, Patterned, trie
from decoding.automata.string_spelling import spelled

NAMES = ("ab", "a", "é", 'a"', "a/b", "\x01", "")


def test_trie_spells_each_name():
    nodes = trie(NAMES)
    for index, name in enumerate(NAMES):
        at = 0
        for byte in spelled(name):
            assert index in nodes[at].below
            at = nodes[at].children[byte]
        assert nodes[at].name == [index]
    assert nodes[0].below == list(range(len(NAMES)))


def test_trie_runs_beside_string():
    nodes = trie(NAMES)
    moves = string_moves()
    for node in nodes:
        for byte, child in node.children.items():
            assert nodes[child].inside == moves[node.inside][byte]
        assert node.inside == BODY or not node.name


def test_trie_notes_where_a_slash_has_two_spellings():
    for names in (('a"', "a/b"), ("a/b", 'a"')):
        [node] = [node for node in trie(names) if node.inside == ESCAPE]
        assert node.has_slash
    [node] = [node for node in trie(('a"', "b/")) if node.inside == ESCAPE]
    assert not node.has_slash


def test_trie_without_a_name_that_has_no_form():
    assert trie(("\ud800",))[0].children == {}


def _patterned(names, *patterns):
    logic = Logic()
    formulas = tuple(logic.atom(("pattern", parse(text))) for text in patterns)
    return Patterned(logic, names, formulas), dict(zip(formulas, patterns))


def _place(automaton, text, first):
    at = automaton.place(0, first)
    for char in text:
        if automaton.settled[at[0]] is not None:
            return at
        [kind] = [
            k
            for k, spans in enumerate(automaton.characters.classes)
            if any(low <= ord(char) < high for low, high in spans)
        ]
        at = automaton.step(at, kind)
    return at


def _wrong(search) -> int:
    automaton, patterns = _patterned(("ab", "x"), "^a", "b$", "é")
    wrong = 0
    for text in ("", "a", "abb", "b", "xé", "éb", "abé", "c", "acb"):
        state, _ = _place(automaton, text, 0)
        settled = automaton.settled[state]
        classes = automaton.closed[state] if settled is None else settled
        held = {patterns[formula] for formula in classes}
        wrong += held != {p for p in patterns.values() if search(p, text)}
    assert automaton.closed[_place(automaton, "ab", 0)[0]] == 0
    assert automaton.closed[_place(automaton, "x", 0)[0]] == 1
    return wrong


def test_patterned_agrees_with_re():
    assert _wrong(re.search) == 0


def test_fault_patterns_that_match_the_beginning_alone():
    """Planted: a pattern counts only where it matches from the beginning."""
    assert _wrong(re.match) > 0


def test_places_are_equal_where_the_first_name_does_not_matter():
    automaton, _ = _patterned(("ab", "x", "ac"), "^a")
    assert _place(automaton, "a", 1) == _place(automaton, "a", 2)
    assert _place(automaton, "a", 0) != _place(automaton, "a", 1)


def test_order_of_names():
    logic = Logic()
    node = object()
    members = [Members(((name, node),), (), node) for name in ("b", "a")]
    formulas = [logic.atom(("required", ("c", "a")))]
    formulas += [logic.atom(("members", m)) for m in members]
    order = Order(logic, (logic.all(formulas),))
    assert order.names == ("b", "a", "c") and order.index["c"] == 2
