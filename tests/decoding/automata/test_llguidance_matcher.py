"""Grammars by llguidance; skipped where it is not installed."""

import pytest

import decoding
from decoding.automata import compiled, llguidance_matcher
from decoding.conformance import kit
from models.errors import ConstraintError

MODEL = kit.model(0, -2.0)
# One token of each byte: no spelling is canonical, so both engines have one language.
SOURCES = [
    {"gbnf": 'root ::= "a" root? "b" | "c"'},
    {"regex": "(ab|c)*d"},
    {"lark": 'start: "a" start "b" | "c" start? | "d"'},
    None,
]
AMBIGUOUS = {"gbnf": 'root ::= root "a" root | "b"'}


def matcher(source):
    grammar = compiled.parse(source)
    return llguidance_matcher.matcher(grammar, MODEL.tokenizer, (kit.EOS,), kit.VOCAB)


def call(source, **fields):
    fields = {"max_new_tokens": 16, "temperature": 0.8, "width": "paper", **fields}
    return decoding.generate(MODEL, kit.PROMPTS, constraint=source, **fields)


def test_absent(monkeypatch):
    """Without it the device's refusal is what a user reads first."""
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ConstraintError, match=r"decodax\[constraints\]"):
        llguidance_matcher.LLGuidance(
            compiled.parse({"regex": "a"}), MODEL.tokenizer, (kit.EOS,), kit.VOCAB
        )
    llguidance_matcher.matcher.cache_clear()
    with pytest.raises(ConstraintError, match=r"byte 'a' .* on the host: llguidance"):
        call(AMBIGUOUS)
    with pytest.raises(ConstraintError, match=r"one byte must tell them apart$"):
        call(AMBIGUOUS, engine="device")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_the_device_s(temperature):
    """Planted: another grammar in the first row."""
    pytest.importorskip("llguidance")
    device = call(SOURCES, temperature=temperature)
    out = call(SOURCES, temperature=temperature, engine="host")
    assert out.engine == ["host", "host", "host", None]
    assert out.tokens == device.tokens and out.accepted == device.accepted
    assert out.stats.host_syncs > 0 == device.stats.host_syncs
    other = call([{"regex": "[ab]*"}, *SOURCES[1:]], engine="host")
    assert other.tokens != device.tokens


def test_what_the_device_refuses():
    pytest.importorskip("llguidance")
    out = call([AMBIGUOUS, SOURCES[1], None, AMBIGUOUS])
    assert out.engine == ["host", "device", None, "host"]
    for text in (out.texts[0], out.texts[3]):
        assert set(text) <= {"a", "b"} and "bb" not in text and "aa" not in text
    assert matcher(AMBIGUOUS).accepts([1, 0, 1]) and not matcher(AMBIGUOUS).accepts(
        [1, 0]
    )


REFUSED = [
    ({"ebnf": "root ::= 'a'"}, "needs the device: llguidance has no EBNF"),
    ({"regex": "a", "after": "b"}, "after='b' needs the device"),
    ({"lark": 'x: "a"', "start": "x"}, "start='x' needs the device"),
    ({"regex": "h"}, "no token of this model begins a text"),
    ({"lark": "start: y"}, "llguidance refuses"),
]


@pytest.mark.parametrize(("source", "words"), REFUSED, ids=lambda x: str(x)[:24])
def test_refused(source, words):
    pytest.importorskip("llguidance")
    with pytest.raises(ConstraintError, match=words):
        matcher(source)
