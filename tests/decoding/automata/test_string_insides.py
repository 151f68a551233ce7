"""Names that go on as other ones do, against walks that follow every byte."""

import numpy as np

from decoding.automata import (
    json_schema,
    lift,
    rests,
    string_insides,
    token_levels,
    token_trie,
)
from decoding.automata.byte_machine import BODY, DEAD, OVER
from tests.decoding.automata import machines
from tests.decoding.automata.machines import TOKENS, VOCAB

TRIE = machines.TRIE


def test_insides_are_runs_of_bytes():
    built = json_schema.compile_schema(True, "flexible", False)
    insides = string_insides.read(built, TRIE)
    for rank, token in enumerate(TRIE.order.tolist()):
        text = TOKENS[token]
        for depth in range(len(text)):
            state, end = BODY, -1
            for i in range(depth, len(text)):
                state = int(built.moves[state, text[i]])
                if state in (DEAD, OVER):
                    end = i + 1 if state == OVER else -1
                    break
            is_whole = state not in (DEAD, OVER)
            assert insides.whole[insides.offset[rank] + depth] == is_whole
            ranks, ends = insides.ends.at(depth)
            assert ends[ranks == rank].tolist() == ([end] if end >= 0 else [])


def test_fault_tokens_of_ranges():
    """Planted: the tokens before the first range count, too."""
    insides = string_insides.read(
        json_schema.compile_schema(True, "flexible", False), TRIE
    )
    first = int(insides.every.argmax())
    some = np.array([[first + 1, first + 4, 0], [first + 5, first + 6, 0]])
    rest = np.array([[first + 1, first + 3, 0], [first + 4, len(TOKENS), 0]])
    longer = np.flatnonzero(np.diff(insides.offset) > 1)[:, None]
    deep = np.concatenate([longer, longer + 1, np.ones_like(longer)], 1)

    def wrong(given, ranges) -> int:
        """Count the tokens that differ, where those of `given` are marked."""
        found = np.zeros(len(TRIE.order), bool)
        insides.mark(found, given)
        wanted = np.zeros(len(TRIE.order), bool)
        for low, high, depth in ranges.tolist():
            for rank in range(low, high):
                place = insides.offset[rank] + depth
                wanted[rank] |= insides.whole[place]
        return int((found != wanted).sum())

    for ranges in (some, rest, np.concatenate([rest, deep]), some[:0]):
        assert wrong(ranges, ranges) == 0
    early = np.concatenate([[[first, first + 1, 0]], rest])
    assert wrong(early, rest) > 0


SCHEMA = {
    "type": "object",
    "properties": {"ab": {"type": "integer"}, "abc": True, "é": {"const": "a"}},
    "additionalProperties": {"type": "boolean"},
}


def test_fault_jumps_equal_walks():
    """Planted: tokens whose strings end inside are left out behind a jump."""
    built = json_schema.compile_schema(SCHEMA, "compact", False)
    anything = json_schema.compile_schema(True, "flexible", False)
    every = np.flatnonzero(anything.ends < 0).astype(np.int32)
    walk = token_trie.Walk(anything, TRIE, every, rests.following(anything)[1])
    endings = rests.collect(anything, TRIE, walk)
    insides = string_insides.read(anything, TRIE)
    begin, follow = rests.origins(built), rests.following(built)[1]

    def lifted(is_jumping: bool, inside=insides):
        walk = token_trie.Walk(built, TRIE, begin, follow, is_jumping)
        about = (built, TRIE, VOCAB, endings, begin, walk)
        return lift.lift(*about, inside if is_jumping else None)

    def contents(each: lift.Lifted) -> list:
        """Of each state: tokens read whole, and (token, label and rest) of others."""
        listed = lambda lists, q: lists.values[lists.at[q, 0] :][: lists.at[q, 1]]
        rows = []
        for q in range(len(built.ends)):
            words = each.words[each.row[q]].view(np.uint8)
            bits = np.unpackbits(words, bitorder="little")
            whole = {
                *np.flatnonzero(bits).tolist(),
                *listed(each.own, q)[:, 0].tolist(),
            }
            pairs = listed(each.pairs, q)[:, 0]
            ended = {(t, int(pairs[p])) for t, p in listed(each.returns, q).tolist()}
            rows.append((whole, ended))
        return rows

    walked = contents(lifted(False))
    assert contents(lifted(True)) == walked
    none = insides._replace(ends=token_levels.levels(*np.zeros((3, 0), int)))
    assert contents(lifted(True, none)) != walked
