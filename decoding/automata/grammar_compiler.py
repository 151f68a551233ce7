"""Grammars as byte machines: GBNF, EBNF, Lark and regular expressions."""

import numpy as np

from decoding.automata import (
    byte_machine,
    call_sites,
    grammar_syntax,
    networks,
    pushdown,
    regex_syntax,
    subsets,
    utf8,
)
from models.errors import ConstraintError

SECONDS = 4.0  # of each choice of calls
MOST_CHOICES = 6


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
    if kind in ("gbnf", "ebnf"):
        grammar = grammar_syntax.parse_rules(source, start, kind)
    else:
        raise ConstraintError(f"grammar kind {kind!r}: use gbnf, lark, ebnf or regex")
    built, first = _deterministic(networks.network_of(grammar)).builder()
    machine = built.machine(first)
    if machine.start == byte_machine.DEAD:
        raise ConstraintError(
            f"{kind} grammar: no text is complete: give each rule an end"
        )
    return machine


def _regular(pattern: str) -> byte_machine.ByteMachine:
    """Return the machine of a regular expression; its stack stays empty."""
    dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
    if dfa.start == byte_machine.DEAD:
        raise ConstraintError(f"regex {pattern!r} matches no text: change it")
    built = pushdown.Builder(len(dfa.accept) + byte_machine.STRING)
    for row, accept in zip(dfa.next, dfa.accept):
        state = built.state(final=0 if accept else -1)
        for to in np.unique(row[row >= 0]).tolist():
            built.read(
                state, np.flatnonzero(row == to).tolist(), to + byte_machine.STRING
            )
    return built.machine(dfa.start + byte_machine.STRING)


def _deterministic(net: networks.Network) -> subsets.Subsets:
    """Try choices of the calls that push until one is free of conflicts."""
    sites = call_sites.CallSites(net)
    errors: list[ConstraintError] = []
    for is_shared in (False, True):
        avoided: set[call_sites.Site] = set()
        for _ in range(MOST_CHOICES):
            pushed = sites.pushing(avoided, is_shared)
            try:
                return subsets.Subsets(sites, pushed, SECONDS)
            except subsets.Conflict as error:
                errors.append(error)
                if error.sites <= avoided or not error.sites:
                    break
                avoided |= error.sites
            except subsets.TooLarge as error:
                errors.append(error)
                break
    raise errors[0]
