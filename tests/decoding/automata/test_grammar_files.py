"""Lifted grammars on disk."""

import numpy as np

from decoding.automata import grammar_files
from decoding.automata.grammar_files import LIFTED
from tests.decoding.automata import machines


def test_round_trip(tmp_path):
    _, lifted = machines.lifted(machines.json_values())
    file = tmp_path / "a" / "b.npz"
    grammar_files.write(file, lifted)
    again = grammar_files.read(file, LIFTED)
    flat = lambda each: [*each.machine, *each.own, *each.code, *each.words]
    assert all(map(np.array_equal, flat(lifted), flat(again)))
    assert type(again.machine.start) is int


def test_missing_and_damaged(tmp_path):
    assert grammar_files.read(None, LIFTED) is None
    assert grammar_files.read(tmp_path / "none.npz", LIFTED) is None
    _, lifted = machines.lifted(machines.even_and_odd())
    file = tmp_path / "x.npz"
    grammar_files.write(file, lifted)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    # Planted: a flipped bit, which the archive's checksum shows.
    assert grammar_files.read(file, LIFTED) is None
