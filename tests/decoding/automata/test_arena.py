"""Many grammars in one set of tables."""

import numpy as np

from decoding.automata import arena, machine
from decoding.automata.byte_machine import STRING
from tests.decoding.automata import machines


def arrays(tables):
    return {name: getattr(tables, name) for name in ("row", "fixed", "moves", "code")}


def test_each_grammar_has_its_own_states():
    """Planted: a start of another grammar."""
    strings, json = machines.lifted(machines.json_values())
    parity = machines.lifted(machines.even_and_odd())[1]
    held = arena.Arena(machines.VOCABULARY, strings)
    starts = [held.add(each) for each in (parity, json, parity)]
    assert len(set(starts)) == 3 and min(starts) >= arena.BASE
    tables = held.tables()
    for start in (starts[0], starts[2]):
        assert machines.differing(tables, machines.even_and_odd(), start, 0) == 0
    assert machines.differing(tables, machines.even_and_odd(), starts[1], 0) > 0


def test_lengths_grow_together():
    """Planted: lengths that grow each by itself, of which one differs."""
    strings, json = machines.lifted(machines.json_values())
    held = arena.Arena(machines.VOCABULARY, strings)
    held.add(json)
    one = held.tables()
    least = {"row": arena.STATES, "fixed": arena.WORDS, "moves": arena.MOVES}
    least |= {"code": arena.CODES}
    times = {len(values) / least[name] for name, values in arrays(one).items()}
    assert len(times) == 1
    alone = {
        arena.room(int(values.any(-1).sum()), 1)
        for values in (one.moves[:, None], one.fixed)
    }
    assert len(alone) > 1
    held.add(machines.lifted(machines.even_and_odd())[1])
    two = held.tables()
    # A small grammar more: the same program.
    assert {n: v.shape for n, v in arrays(one).items()} == {
        n: v.shape for n, v in arrays(two).items()
    }
    assert not np.array_equal(one.moves, two.moves)


def test_states_of_strings_are_common():
    strings, json = machines.lifted(machines.json_values())
    held = arena.Arena(machines.VOCABULARY, strings)
    for _ in range(2):
        held.add(json)
    moves = [slab.moves(json.machine.moves[:STRING]) for slab in held.slabs]
    assert np.array_equal(*moves)
    reached = np.unique(moves[0][moves[0] >= 0])
    assert reached.max() < machine.FIRST + STRING
