"""Machines over bytes: which texts they read."""

import pytest

from decoding.automata import byte_machine, token_trie
from decoding.automata.byte_machine import Config, accepts
from models.errors import ConstraintError
from tests.decoding.automata import machines

GOOD = [b'{"a":[1,"x",{}],"b":true}', b"12", b'""', '"\\u00e9é\\ud83d\\ude00"'.encode()]
BAD = [b"[1,]", b'{"a"}', b"", b'"\xc3"', b'"\\ud83d"', b'"\x1f"', b"[", b"]", b'"\\x"']


@pytest.mark.parametrize("text", GOOD)
def test_accepts(text):
    built = machines.json_values()
    assert accepts(built, text)
    assert not accepts(built, text + b"]")


@pytest.mark.parametrize("text", BAD)
def test_refuses(text):
    assert not accepts(machines.json_values(), text)


def test_characters_are_counted():
    built = machines.json_values((1, 2))
    for text in ('"é\\u00e9"', '"\\ud83d\\ude00a"', '"a"', '["ab"]'):
        assert accepts(built, text.encode())
    for text in ('""', '"abc"', '["a",""]', '"\\n\\n\\n"'):
        assert not accepts(built, text.encode())
    # Keys have no bounds.
    assert accepts(built, b'{"":{"abcd":"a"}}')


def test_ends_within_a_callers_text():
    built = machines.json_values()
    at = byte_machine.read(built, Config(built.start), b'{"a":12')
    assert at.stack and not byte_machine.is_final(built, at)
    assert byte_machine.is_final(built, byte_machine.read(built, at, b"}"))


def test_vocabulary_must_spell_every_byte():
    built = machines.even_and_odd()
    every = token_trie.bytes_of(token_trie.trie([b"(", b")", b"x", b"e", b"o"]))
    byte_machine.check_spelled(built, every, "it")
    some = token_trie.bytes_of(token_trie.trie([b"(", b"e", b"o", b")x"]))
    with pytest.raises(ConstraintError, match="the bytes 0x29, 0x78 that it reads"):
        byte_machine.check_spelled(built, some, "it")
