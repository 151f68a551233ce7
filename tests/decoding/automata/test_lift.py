"""The lift to tokens; masks as a whole are tested in test_machine.py."""

import numpy as np

from decoding.automata import lift, rests
from tests.decoding.automata import machines
from tests.decoding.automata.machines import VOCAB


def test_pack_and_lists():
    allowed = np.zeros((2, VOCAB), bool)
    allowed[1, [0, 31, 32, VOCAB - 1]] = True
    words = lift.pack(allowed)
    assert words.shape == (2, -(-VOCAB // 32)) and words.dtype == np.uint32
    assert words[1, 0] == 1 | 1 << 31 and words[1, 1] == 1
    values = np.array([[5], [6], [5], [6], [7]], np.int32)
    lists = lift._lists(4, np.array([0, 0, 2, 2, 3]), values)
    assert lists.at.tolist() == [[0, 2], [0, 0], [0, 2], [2, 1]]
    assert lists.values[:, 0].tolist() == [5, 6, 7]


def test_fault_few_and_many_tokens_agree(monkeypatch):
    """Planted: a row of words that lost a token; both forms hold the same tokens."""
    built = machines.json_values()
    _, few = machines.lifted(built)
    monkeypatch.setattr(lift, "FEW", 2)
    _, many = machines.lifted(built)
    assert many.row.max() > few.row.max()

    def tokens(lifted, state):
        first, count = lifted.own.at[state]
        listed = set(lifted.own.values[first : first + count, 0].tolist())
        bits = np.unpackbits(lifted.words[lifted.row[state]].view(np.uint8), -1)
        order = bits.reshape(-1, 8)[:, ::-1].reshape(-1)
        return listed | set(np.flatnonzero(order).tolist())

    states = rests.origins(built).tolist()
    assert all(tokens(few, q) == tokens(many, q) for q in states)
    lost = many._replace(words=many.words & ~np.uint32(1 << 17))
    assert any(tokens(few, q) != tokens(lost, q) for q in states)
