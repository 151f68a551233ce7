"""Automata over the bytes of UTF-8 forms, from automata over characters.

A token may hold half a character. So a constraint needs the exact set of bytes that may
follow each byte, for every code point.
"""

from typing import NamedTuple

import numpy as np

from decoding.automata import regex_syntax, token_dfa


class _Form(NamedTuple):
    """The UTF-8 forms of one length, as a trie whose equal subtrees are shared.

    `tables[l]` int[nodes, 64] lists the children of a node with l + 1 continuation
    bytes left: keys of characters for l = 0, else nodes of `tables[l - 1]`. Node 0 is
    empty. `holds[l]` bool[nodes, keys] marks the keys below each node.
    """

    lead: int  # the least lead byte
    roots: np.ndarray  # int[leads]: a node of the last table
    tables: list[np.ndarray]
    holds: list[np.ndarray]


def _forms(key: np.ndarray, keys: int) -> list[_Form]:
    """Build the tries of the forms of 2, 3 and 4 bytes.

    `key` int32[0x110000] is each code point's class, one of `keys`; -1: no character.
    """
    forms = []
    padded = np.append(key, np.full(5 * 2**18 - len(key), -1, key.dtype))
    spans = ((0xC0, 0x80, 0x800), (0xE0, 0x800, 0x10000), (0xF0, 0x10000, 5 * 2**18))
    for length, (lead, first, last) in enumerate(spans, 1):
        ids = padded[:last].copy()
        ids[:first] = -1  # a code point has one form: longer ones are not UTF-8
        tables: list[np.ndarray] = []
        holds: list[np.ndarray] = []
        below = np.eye(keys + 1, dtype=bool)[:, :-1]  # its last row, -1: no key
        for level in range(length):
            empty = np.full((1, 64), 0 if level else -1, ids.dtype)
            rows = np.concatenate([empty, ids.reshape(-1, 64)])
            known: dict[bytes, int] = {}  # far fewer than rows: cheaper than a sort
            ids = np.array([known.setdefault(r.tobytes(), len(known)) for r in rows])
            table, ids = rows[np.unique(ids, return_index=True)[1]], ids[1:]
            below = below[table].any(1)
            tables.append(table)
            holds.append(below)
        forms.append(_Form(lead, ids, tables, holds))
    return forms


def byte_automaton(dfa: regex_syntax.CharacterDFA) -> token_dfa.ByteDFA:
    """Build the minimal automaton of the UTF-8 forms of the strings of `dfa`.

    Its start is DEAD if the language is empty.
    """
    key, keys = dfa.key.copy(), int(dfa.key.max()) + 1
    key[0xD800:0xE000] = -1  # surrogates have no UTF-8 form
    forms = _forms(key, keys)
    # A byte state is a character state in a form: (state, form, level, node).
    start = (0, 0, -1, 0)
    number, queue, rows = {start: 0}, [start], []

    def visit(state: tuple) -> int:
        if state not in number:
            number[state] = len(queue)
            queue.append(state)
        return number[state]

    for char, form, level, node in queue:  # grows while it is read
        moves = dfa.moves[char]
        target = np.full(keys + 1, token_dfa.DEAD, np.int32)
        for transition, reached in moves.items():
            target[transition] = visit((reached, 0, -1, 0))
        row = np.full(256, token_dfa.DEAD, np.int32)
        if level == 0:
            row[0x80:0xC0] = target[forms[form].tables[0][node]]
        elif level > 0:
            below = forms[form].tables[level][node]
            row[0x80:0xC0] = _enter(forms, char, form, level - 1, below, moves, visit)
        else:
            row[:0x80] = target[key[:0x80]]
            for i, kind in enumerate(forms):
                to = _enter(forms, char, i, i, kind.roots, moves, visit)
                row[kind.lead : kind.lead + len(to)] = to
        rows.append(row)
    accept = np.array([dfa.accept[s[0]] and s[2] < 0 for s in queue])
    return token_dfa.minimise(token_dfa.ByteDFA(np.stack(rows), accept, 0))


def _enter(forms, char, form, level, nodes, moves, visit) -> np.ndarray:
    """Return the byte states of `nodes`; DEAD if no character below has a move."""
    alive = forms[form].holds[level][:, list(moves)].any(1)
    to = np.full(len(alive), token_dfa.DEAD, np.int32)
    for node in np.unique(nodes):
        if alive[node]:
            to[node] = visit((char, form, level, int(node)))
    return to[nodes]
