"""The bytes that must follow in a state, and their tokens: what jump-forward drafts.

In most states of a schema with fixed keys one byte alone can follow, then another. A
vocabulary spells such bytes in many ways, of which a model nearly always takes the
tokenizer's own, the *canonical* one. It is a draft, which a verifier accepts or not, or
under `canonical` the only spelling that is left.

The stack is unknown here: a forced text ends where the value does. Its last token is
left out where a longer one might take more of what follows.
"""

from collections.abc import Sequence

import numpy as np

from decoding.automata.byte_machine import CALL, DEAD, POP, STRING, ByteMachine
from decoding.automata.lift import Lifted, Lists
from decoding.automata.token_spelling import Speller
from decoding.automata.token_trie import Trie

MOST_BYTES, MOST_TOKENS = 96, 32  # of a forced text
UNKNOWN = -1  # the state in which a caller goes on


def texts(machine: ByteMachine) -> tuple[list[bytes], list[int]]:
    """Return, for each state, the bytes that must follow, and the state behind them.

    That state is UNKNOWN behind a value's end.
    """
    live = machine.moves != DEAD
    is_open = (machine.ends < 0) & (machine.final < 0)
    single = (live.sum(1) == 1) & is_open & (np.arange(len(live)) >= STRING)
    byte = np.where(single, live.argmax(1), -1).tolist()
    known: dict[int, tuple[bytes, int]] = {}
    for q in np.flatnonzero(single).tolist():
        path: dict[int, bytes] = {}
        while q != UNKNOWN and byte[q] >= 0 and q not in known and q not in path:
            after, path[q] = _step(machine, byte, q)
            q = after
        text, end = known.get(q, (b"", q))
        for state, data in reversed(path.items()):
            text = (data + text)[:MOST_BYTES]
            known[state] = text, end
    pairs = [known.get(q, (b"", q)) for q in range(len(byte))]
    return [text for text, _ in pairs], [end for _, end in pairs]


def _step(machine: ByteMachine, byte: Sequence[int], q: int) -> tuple[int, bytes]:
    """Read forced bytes from `q` until its own rule goes on, or nothing is forced.

    Returns:
        Where that is, and the bytes.
    """
    stack: list[int] = []
    data = bytearray()
    state, read = q, byte[q]
    while len(data) < MOST_BYTES:
        to = int(machine.moves[state, read])
        if to & POP:
            if not stack:
                return UNKNOWN, bytes(data)
            state = int(machine.back[stack.pop(), to - POP])
            continue
        if to & CALL:
            stack.append(state)
            state = to - CALL
            continue
        data.append(read)
        state = to
        while machine.ends[state] >= 0:
            if not stack:
                return UNKNOWN, bytes(data)
            state = int(machine.back[stack.pop(), machine.ends[state]])
        if not stack or byte[state] < 0:
            return state, bytes(data)
        read = byte[state]
    return state, bytes(data)


def jumps(machine: ByteMachine, trie: Trie, speller: Speller) -> Lists:
    """Return the tokens of every state's forced text, as lists of one column.

    Args:
        machine: the grammar.
        trie: of the vocabulary.
        speller: of the same tokens.
    """
    follows = machine.moves != DEAD
    bytes_, ends = texts(machine)
    known: dict[tuple[bytes, int], tuple[int, int]] = {}
    at = np.zeros((len(bytes_), 2), np.int32)
    values: list[int] = []
    for q, (text, end) in enumerate(zip(bytes_, ends)):
        if not text:
            continue
        if (text, end) not in known:
            spelled = speller(text)[0]
            behind = np.ones(256, bool)
            if end != UNKNOWN and len(text) < MOST_BYTES:
                behind = follows[end]
            if spelled and _goes_on(trie, speller.tokens[spelled[-1]], behind):
                spelled = spelled[:-1]
            spelled = spelled[:MOST_TOKENS]
            known[text, end] = len(values), len(spelled)
            values += spelled
        at[q] = known[text, end]
    return Lists(at, np.array(values, np.int32)[:, None])


def _goes_on(trie: Trie, token: bytes, behind: np.ndarray) -> bool:
    """Return whether a longer token begins with `token` and a byte of `behind`."""
    node = 0
    for byte in token:
        first, last = trie.first[node], trie.first[node + 1]
        node = first + int(np.searchsorted(trie.byte[first:last], byte))
    first, last = trie.first[node], trie.first[node + 1]
    return bool(behind[trie.byte[first:last]].any())


def _reads(lifted: Lifted, q: int) -> bool:
    """Return whether the first forced token of `q` may follow.

    It may not where the vocabulary cannot spell what comes behind it.
    """
    token = lifted.jumps.values[lifted.jumps.at[q, 0], 0]
    if lifted.words[lifted.row[q], token >> 5] >> np.uint32(token & 31) & 1:
        return True
    for lists in (lifted.own, lifted.returns):
        first, length = lists.at[q]
        if (lists.values[first : first + length, 0] == token).any():
            return True
    return False


def only(lifted: Lifted) -> Lifted:
    """Return the grammar in which forced text has its canonical spelling alone.

    No text gets stuck so: the bytes must follow in any case, and a state that holds
    too few calling states to read them is never reached.
    """
    at, values = lifted.jumps
    forced = np.array([bool(n) and _reads(lifted, q) for q, n in enumerate(at[:, 1])])
    first = values[at[forced, 0]]
    size = len(lifted.own.values)
    own, returns = lifted.own.at.copy(), lifted.returns.at.copy()
    own[forced, 0] = size + np.arange(len(first))
    own[forced, 1] = 1
    returns[forced] = 0
    pairs = np.pad(first, ((0, 0), (0, 1)), constant_values=1)  # token, plain
    listed = np.concatenate([lifted.own.values, pairs])
    return lifted._replace(
        row=np.where(forced, 0, lifted.row),
        own=Lists(own, listed),
        returns=Lists(returns, lifted.returns.values),
    )
