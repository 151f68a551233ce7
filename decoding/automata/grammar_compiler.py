"""Grammars as byte machines: GBNF, EBNF, Lark and regular expressions."""

import time

from decoding.automata import (
    byte_machine,
    call_sites,
    grammar_rules,
    grammar_syntax,
    lark_syntax,
    network_building,
    networks,
    regex_syntax,
    stackless,
    state_merging,
    subsets,
    utf8,
)
from models.errors import ConstraintError

SECONDS = 8.0  # of all choices of calls
# How calls are chosen, one try after the other: see CallSites.pushing.
ORDER = (2, 0, 1, 2, 0, 1, 2, 0)


def compile_grammar(
    kind: str, source: str, start: str = "root"
) -> byte_machine.ByteMachine:
    """Compile the text of a grammar.

    Args:
        kind: "gbnf", "lark", "ebnf" or "regex".
        source: the text.
        start: the rule to start with.

    Raises:
        ConstraintError: the text is no grammar, or one stack and one byte of
            look-ahead cannot decide it, or it is too large.
    """
    if kind == "regex":
        return _regular(source)
    try:
        grammar = _grammar(kind, source, start)
        net = network_building.network_of(grammar)
    except RecursionError as error:
        raise ConstraintError(
            f"{kind} grammar: its rules lie too deep within each other: name fewer"
        ) from error
    built, first = _deterministic(net).builder()
    machine = built.machine(first)
    if machine.start == byte_machine.DEAD:
        raise ConstraintError(
            f"{kind} grammar: no text is complete: give each rule an end"
        )
    return state_merging.merge_states(machine)


def _grammar(kind: str, source: str, start: str) -> grammar_rules.Grammar:
    if kind in ("gbnf", "ebnf"):
        return grammar_syntax.parse_rules(source, start, kind)
    if kind == "lark":
        return lark_syntax.parse_rules(source, start)
    raise ConstraintError(f"grammar kind {kind!r}: use gbnf, lark, ebnf or regex")


def _regular(pattern: str) -> byte_machine.ByteMachine:
    """Return the machine of a regular expression; its stack stays empty."""
    dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
    if dfa.start == byte_machine.DEAD:
        raise ConstraintError(f"regex {pattern!r} matches no text: change it")
    return stackless.machine(dfa)


def _deterministic(net: networks.Network) -> subsets.Subsets:
    """Try choices of the calls that push until one is free of conflicts."""
    sites = call_sites.CallSites(net)
    errors: list[ConstraintError] = []
    avoided: dict[int, set[call_sites.Site]] = {}
    tried: list[set[call_sites.Site]] = []
    deadline = time.monotonic() + SECONDS
    for sharing in ORDER:
        seconds = deadline - time.monotonic()
        if errors and seconds <= 0:
            break
        avoid = avoided.setdefault(sharing, set())
        pushed = sites.pushing(avoid, sharing)
        if pushed in tried:
            continue
        tried.append(pushed)
        try:
            return subsets.Subsets(sites, pushed, max(seconds, 1.0))
        except subsets.Conflict as error:
            errors.append(error)
            avoid |= error.sites
        except subsets.TooLarge as error:
            errors.append(error)
    raise errors[0]
