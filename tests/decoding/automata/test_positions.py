"""Positions: inlined calls return to their own callers; classes tell bytes apart."""

from decoding.automata import (
    call_sites,
    grammar_syntax,
    network_building,
    positions,
)


def positions_of(source: str, pushed=()) -> positions.Positions:
    grammar = grammar_syntax.parse_rules(source, "root")
    sites = call_sites.CallSites(network_building.network_of(grammar))
    return positions.Positions(sites, set(pushed))


def read(at: positions.Positions, text: bytes) -> bool:
    """Whether a text is read to its end, with all calls inlined."""
    now = {at.start(0)}
    for byte in text:
        kind = 1 << at.classes.of_byte[byte]
        steps = [at.step(position, positions.BETWEEN) for position in now]
        now = {to for step in steps for mask, to in step.reads if mask & kind}
    end = 1 << at.classes.end
    return any(at.step(p, positions.BETWEEN).over & end for p in now)


def test_inlined_calls_return_to_their_callers():
    at = positions_of('root ::= "a" x "b" | "c" x "d"\nx ::= "x" | "y"?\n')
    texts = [b"axb", b"cyd", b"ab", b"axd", b"cxb", b"a", b"axxb"]
    assert [read(at, text) for text in texts] == [True] * 3 + [False] * 4


def test_classes_hold_bytes_that_no_set_tells_apart():
    classes = positions_of("root ::= [a-f] [d-k]").classes
    alike = [{chr(b) for b in kind} & set("abcdefghijkl") for kind in classes.bytes]
    assert sorted(map(sorted, alike)) == sorted(
        map(sorted, [set("abc"), set("def"), set("ghijk"), set("l")])
    )
    assert classes.members(classes.all) == tuple(range(classes.end + 1))


def test_pushed_calls_are_not_entered():
    source = 'root ::= "(" root ")" | "x"'
    at = positions_of(source)
    edges = call_sites.CallSites(at.net).edges
    sites = {edge.site for edge in edges if not edge.is_last}
    pushing = positions_of(source, sites)
    kind = 1 << pushing.classes.of_byte[ord("(")]
    first = pushing.step(pushing.start(0), positions.BETWEEN)
    (behind,) = (to for mask, to in first.reads if mask & kind)
    step = pushing.step(behind, positions.BETWEEN)
    assert step.pushes and not step.reads
