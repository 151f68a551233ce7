"""Grammars by source: what is kept, and what is refused."""

import jax
import numpy as np
import pytest

from decoding.automata import byte_machine, compiled
from models.errors import ConstraintError
from tests.decoding.automata.machines import EOS, TOKENS, VOCAB

SCHEMA = {"json_schema": {"enum": ["a", 12, {"b": None}]}, "whitespace": "compact"}


def compiler():
    return compiled.Compiler(TOKENS, EOS, VOCAB)


def test_kinds():
    texts = {
        "json_schema": ({"const": [1]}, b"[1]", b"[2]"),
        "gbnf": ('root ::= "a"+', b"aa", b"b"),
        "lark": ('start: "a" start?', b"aa", b"b"),
        "ebnf": ('root ::= "a" | "b"', b"b", b"ab"),
        "regex": ("a|bb", b"bb", b"b"),
    }
    assert set(texts) == set(compiled.KINDS)
    for kind, (source, good, bad) in texts.items():
        built = compiled.machine(compiled.parse({kind: source}))
        assert byte_machine.accepts(built, good), kind
        assert not byte_machine.accepts(built, bad), kind


def test_kept_on_disk(tmp_path, monkeypatch):
    """Planted: a damaged file is compiled anew, one of other tokens is not read."""
    monkeypatch.setenv("DECODAX_CACHE", str(tmp_path))
    grammar = compiled.parse(SCHEMA)
    first = compiler().lifted(grammar)
    files = sorted(tmp_path.rglob("grammars/*.npz"))
    assert len(files) == 4  # the trie, strings, their insides, and the schema
    with monkeypatch.context() as patch:
        patch.setattr(compiled.json_schema, "compile_schema", None)
        patch.setattr(compiled.token_trie, "trie", None)
        again = compiler()
        insides = (jax.tree.leaves(x._insides) for x in (again, compiler()))
        for a, b in zip(*insides):
            assert np.array_equal(a, b)
        assert again.trie.strings == TOKENS
        patch.setattr(compiled.Compiler, "_compile", None)
        for a, b in zip(again.lifted(grammar), first):
            if isinstance(b, np.ndarray):
                assert np.array_equal(a, b)
        assert again.strings.width.shape[1] == VOCAB
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    assert np.array_equal(compiler().lifted(grammar).words, first.words)
    other = compiled.Compiler([*TOKENS[:-1], b"zz"], EOS, VOCAB)
    assert not other._file(repr(grammar)).exists()


def test_no_cache(monkeypatch):
    monkeypatch.setenv("DECODAX_CACHE", "off")
    assert compiler()._file("x") is None
    assert compiler().lifted(compiled.parse({"regex": "ab"})).words.shape[0] >= 1


REFUSED = [
    ((TOKENS, (), VOCAB), "needs an end-of-sequence token"),
    ((TOKENS, EOS, 10), "the tokenizer has [0-9]+ tokens and the model 10"),
    (([b"", b"x" * 2000], EOS, VOCAB), "a token has 2000 bytes"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda x: "")
def test_refused_vocabularies(arguments, words):
    with pytest.raises(ConstraintError, match=words):
        compiled.Compiler(*arguments)


def test_unspelled_bytes_are_named():
    few = compiled.Compiler([b"", b"a", b"b"], EOS, 3)
    with pytest.raises(ConstraintError, match="no token for the bytes 0x63 that"):
        few.lifted(compiled.parse({"gbnf": 'root ::= "a" | "bc"'}))


def test_unspelled_ways_of_regexes_are_pruned():
    """Planted: a pattern that only "c" ends."""
    few = compiled.Compiler([b"", b"a", b"b"], EOS, 3)
    lifted = few.lifted(compiled.parse({"regex": "a|bc"}))
    assert lifted.own.values[:, 0].tolist() == [1]
    with pytest.raises(ConstraintError, match="no sequence of this tokenizer's tokens"):
        few.lifted(compiled.parse({"regex": "bc"}))
