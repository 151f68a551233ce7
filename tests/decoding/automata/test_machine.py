"""Masks and steps of pushdown machines on the device, against runs of bytes."""

import random

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.automata import arena, byte_machine, machine, rests
from decoding.automata.byte_machine import DEAD, Config
from decoding.automata.pushdown import Builder
from tests.decoding.automata import machines
from tests.decoding.automata.machines import EOS, TOKENS


def placed(*built):
    """Tables of several machines, and where each begins."""
    parts = [machines.lifted(each) for each in built]
    held = arena.Arena(machines.VOCABULARY, parts[0][0])
    starts = [held.add(lifted) for _, lifted in parts]
    return held.tables(), starts


@pytest.fixture(scope="module")
def json():
    built = machines.json_values()
    tables, (start,) = placed(built)
    return built, tables, start


def test_mask_equals_bytes(json):
    built, tables, start = json
    for seed in range(12):
        assert machines.differing(tables, built, start, seed) == 0


def test_bounds_of_lengths_equal_bytes():
    built = machines.json_values((2, 4))
    tables, (start,) = placed(built)
    for seed in range(12):
        assert machines.differing(tables, built, start, seed) == 0


def test_labels_equal_bytes():
    built = machines.even_and_odd()
    assert byte_machine.accepts(built, b"(xx(x))o")
    assert not byte_machine.accepts(built, b"(xx(x))e")
    tables, (start,) = placed(built)
    for seed in range(6):
        assert machines.differing(tables, built, start, seed) == 0


def test_fault_rest_by_the_wrong_label(monkeypatch):
    """Planted: rests behind odd values are read as those behind even ones."""
    built = machines.even_and_odd()
    strings, lifted = machines.lifted(built)
    values = lifted.pairs.values & (1 << rests.SHIFT) - 1
    wrong = lifted._replace(pairs=lifted.pairs._replace(values=values))
    held = arena.Arena(machines.VOCABULARY, strings)
    start = held.add(wrong)
    found = [machines.differing(held.tables(), built, start, seed) for seed in range(6)]
    assert max(found) > 0


def test_grammars_side_by_side(json):
    """A grammar's masks do not depend on the others in its tables."""
    built, _, _ = json
    other = machines.even_and_odd()
    tables, starts = placed(other, built, other)
    for seed in range(3):
        assert machines.differing(tables, built, starts[1], seed) == 0
        assert machines.differing(tables, other, starts[2], seed) == 0


def test_strings_that_nothing_called():
    """A string as the text itself: no calling state bounds it."""
    built = Builder()
    start = built.state()
    built.read(start, b"a", byte_machine.BODY)
    whole = built.machine(start)
    assert byte_machine.accepts(whole, b'abc"')
    tables, (begin,) = placed(whole)
    for seed in range(3):
        assert machines.differing(tables, whole, begin, seed) == 0


def text_of(json, depth, limit, seed):
    """A random text that likes to open values; whether it ended."""
    _, tables, start = json
    choose, text = random.Random(seed), b""
    row = machine.init(jnp.int32(start), limit, depth, limit > 0)
    for _ in range(limit or 40):
        tokens = np.flatnonzero(np.asarray(machines.allowed(tables, row))).tolist()
        opening = [i for i in tokens if TOKENS[i][:1] in (b"[", b"{") and TOKENS[i]]
        token = choose.choice(opening if opening and choose.random() < 0.8 else tokens)
        if token in EOS:
            return text, True
        text += TOKENS[token]
        row = machines.advance(tables, row, jnp.int32(token))
        assert int(row.state) >= 0
    return text, False


def nested(least: int):
    """Values [ … ] nested at least so deep, or 1 at once."""
    built = Builder()
    start, over = built.state(), built.state(ends=0)
    built.read(start, b"1", over)
    outer = start
    for _ in range(least):
        inner, close = built.state(), built.state()
        opened = built.state()
        built.read(outer, b"[", opened)
        built.read(opened, b"[1", byte_machine.CALL + inner)
        built.back[opened] = {0: close}
        built.read(close, b"]", over)
        outer = inner
    built.read(outer, b"1", over)
    return built.machine(start)


def test_stack_is_never_too_small(json):
    for seed in range(6):
        text, _ = text_of(json, 4, 0, seed)
        assert byte_machine.read(json[0], Config(json[0].start), text).state != DEAD


def stuck(built, depth):
    """Whether some random text ends before it is one of the machine's."""
    tables, (start,) = placed(built)
    texts = [text_of((built, tables, start), depth, 0, seed)[0] for seed in range(6)]
    return not all(byte_machine.accepts(built, text) for text in texts)


def test_fault_no_need():
    """Planted: states need nothing of the stack, so a text opens more than it may."""
    built = nested(3)  # [[[1]]] or 1
    assert not stuck(built, 3)
    assert not stuck(built, 2)
    assert stuck(built._replace(need=np.zeros_like(built.need)), 2)


@pytest.mark.parametrize("limit", [2, 3, 4, 6, 9, 14, 30])
def test_texts_end_within_their_limit(json, limit):
    for seed in range(4):
        text, is_over = text_of(json, 32, limit, seed)
        assert is_over and byte_machine.accepts(json[0], text)


def test_fault_no_growth(json):
    """Planted: tokens add nothing to what finishing takes."""
    built, tables, start = json
    blind = tables.replace(grow=np.zeros_like(tables.grow))
    ends = [text_of((built, blind, start), 32, 6, seed)[1] for seed in range(8)]
    assert not all(ends)


def test_free_rows_read_everything(json):
    _, tables, _ = json
    row = machine.init(jnp.int32(machine.FREE), 0, 32, False)
    for token in (TOKENS.index(b"}}"), EOS[0], len(TOKENS) + 1):
        assert np.asarray(machines.allowed(tables, row)).all()
        row = machines.advance(tables, row, jnp.int32(token))


def test_nothing_follows_the_end(json):
    _, tables, start = json
    row = machine.init(jnp.int32(start), 0, 32, False)
    row = machines.advance(tables, row, jnp.int32(TOKENS.index(b"true")))
    row = machines.advance(tables, row, jnp.int32(EOS[0]))
    mask = np.asarray(machines.allowed(tables, row))
    assert np.flatnonzero(mask).tolist() == list(EOS)
