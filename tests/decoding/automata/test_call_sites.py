"""Choices of the calls that push: each cycle has one, and few are risky."""

import pytest

from decoding.automata import call_sites, grammar_syntax, network_building

SOURCE = """root ::= list | "!" text
list ::= "[" items "]"
items ::= item ("," item)*
item ::= "x" | list | sum
sum ::= "+" item item
text ::= "t" text | "<" list ">"
"""


def sites_of(source: str) -> call_sites.CallSites:
    grammar = grammar_syntax.parse_rules(source, "root")
    return call_sites.CallSites(network_building.network_of(grammar))


@pytest.mark.parametrize("sharing", [0, 1, 2])
def test_every_cycle_pushes(sharing):
    sites = sites_of(SOURCE)
    pushed = sites.pushing(set(), sharing)
    assert all(edge.is_last for edge in sites._within(pushed))
    assert not all(edge.is_last for edge in sites._within(set()))  # planted: no push


def test_no_push_can_be_spared():
    sites = sites_of(SOURCE)
    pushed = sites.pushing(set(), 0)
    for site in pushed:
        assert not all(edge.is_last for edge in sites._within(pushed - {site}))


def test_calls_between_brackets_are_preferred():
    sites = sites_of('root ::= "(" many ")" | "x" "x"?\nmany ::= root root*\n')
    assert sites.pushing(set(), 0) <= sites.bracketed - sites.risky
    assert sites.risky  # `root` behind `root` could be its own beginning


def test_calls_that_lead_to_a_cycle_push_alike():
    sites = sites_of(SOURCE)
    names = {
        sites.net.names[sites.net.owner[state]]
        for state, _ in sites.pushing(set(), 2) - sites.pushing(set(), 0)
    }
    assert "text" in names


def test_right_recursion_pushes_nothing():
    sites = sites_of('root ::= "a" root | "b" tail\ntail ::= "c" root | ""\n')
    assert sites.pushing(set(), 0) == set()


def test_avoided_calls_are_left_out_where_a_cycle_has_another():
    sites = sites_of(SOURCE)
    pushed = sites.pushing(set(), 0)
    again = sites.pushing(pushed, 0)
    assert again != pushed
    assert all(edge.is_last for edge in sites._within(again))
