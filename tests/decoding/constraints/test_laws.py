"""The laws of lossless verifiers under grammars, against exact enumeration.

A draft model with other weights drafts for a table model of 8 tokens, some of which
hold several bytes. The joint law of the first 3 tokens (512 cells, texts that end
included) under a schema, a grammar and a regex, at temperature 0.9 alone and with top-p
0.9 behind the grammar, is enumerated in float64 and held against `N` texts by a
chi-square test. The reference reads bytes; the device has masks. One token that cannot
be fails the test. Level 10^-5 (Bonferroni for 100 cases at 10^-3); the planted faults
must be rejected at 10^-6 with the texts of one call.
"""

import types

import numpy as np
import pytest

from decoding import Method, Spec, compose
from decoding.automata import byte_machine, compiled
from decoding.conformance import kit, laws, verifiers
from decoding.tree_building import lookup_or_model
from models.synthetic import toy
from tests.conformance.test_verifiers import EVERY, first

EOS, LENGTH, PROMPT = kit.EOS, 3, [1, 2]
ROWS, CALLS = 16384, 13  # n = 212,992 texts
LEVEL, NUCLEUS = 1e-5, 0.9
LETTERS = [b"a", b"b", b"c", b"d", b"ab", b"bc", b"cab"]
DIGITS = [b"1", b"2", b'"', b"12", b'1"', b'"2', b"21"]
SOURCES = {
    "schema": ({"json_schema": '{"enum": ["1", "21", "12", "2112", "2"]}'}, DIGITS),
    "grammar": ({"gbnf": 'root ::= "a" root "b" | "c" root? | "d" "abc"'}, LETTERS),
    "regex": ({"regex": "(abc|cab|d)*"}, LETTERS),
}
TOP_P = Spec("transforms/top_p", p=NUCLEUS)


class Pieces:
    """A tokenizer of given tokens, and EOS."""

    def __init__(self, tokens):
        self.tokens = tokens

    def token_bytes(self):
        return [*self.tokens, b""]


TOKENIZERS = {id(tokens): Pieces(tokens) for tokens in (LETTERS, DIGITS)}


def lm(source, seed=0):
    """The toy with the tokens of a source."""
    fields = vars(kit.model(seed, -2.0)) | {
        "tokenizer": TOKENIZERS[id(SOURCES[source][1])]
    }
    return types.SimpleNamespace(**fields)


def law(source, is_truncated):
    """Enumerate plain decoding's law, float64[8, 8, 8]; behind EOS stands EOS."""
    grammar, tokens = SOURCES[source]
    machine = compiled.machine(compiled.parse(grammar))

    def warp(logits, context):
        text = context[len(PROMPT) :]
        allowed = np.zeros(len(logits), bool)
        if EOS in text:
            allowed[EOS] = True
        else:
            data = b"".join(tokens[t] for t in text)
            start = byte_machine.Config(machine.start)
            at = byte_machine.read(machine, start, data)
            if at.state == byte_machine.DEAD:
                return logits  # such a text has probability 0
            after = [byte_machine.read(machine, at, token) for token in tokens]
            allowed[:EOS] = [x.state != byte_machine.DEAD for x in after]
            allowed[EOS] = byte_machine.is_final(machine, at) or not allowed.any()
        logits = np.where(allowed, logits, -np.inf) / verifiers.TEMPERATURE
        if not is_truncated:
            return logits
        p = np.exp(logits - logits.max())
        p /= p.sum()
        above = (p * (p > p[:, None])).sum(1)
        return np.where(above < NUCLEUS, logits, -np.inf)

    return toy.sequence_law(lm(source).params, PROMPT, LENGTH, warp)


def run(source, verifier, draw, is_truncated=False, forced=False):
    spec = Spec("constraints/grammar", grammars=(SOURCES[source][0],))
    under = (spec, TOP_P) if is_truncated else (spec,)
    method = verifiers.method(verifier, draw, None, under)
    if forced:
        drafter = Spec("drafters/forced", inner=method.drafter)
        method = Method(
            drafter,
            verifier=method.verifier,
            topology=method.topology,
            transforms=under,
        )
    return composed(method, source)


def composed(method, source):
    """Compose `method` with the toys of a source."""
    made = object.__new__(kit.Run)  # its own parts read the toy's letters
    target, beside = lm(source), {"draft": lm(source, 1)}
    made.parts = compose.compose(method, target, verifiers.TEMPERATURE, beside)
    made.params = compose.params(target, beside)
    return made.alter(chunk=2)


def counts(made, calls=1, rows=ROWS):
    """Count the first tokens of `calls` x `rows` texts, int64[8, 8, 8]."""
    found = np.zeros((8,) * LENGTH, np.int64)
    for seed in range(calls):
        state = made.start([PROMPT], new=LENGTH, n=rows, seed=seed, size=16)
        tokens = np.asarray(made.advance(state).tokens)[:, len(PROMPT) :][:, :LENGTH]
        ended = np.cumsum(tokens == EOS, 1) > 0
        np.add.at(found, tuple(np.where(ended, EOS, tokens).T), 1)
    return found


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("verifier", "draw", "topology"), EVERY)
def test_every_verifier_keeps_the_law(source, verifier, draw, topology):
    """n = 212,992 each; top-p where the verifier's first draw meets a schema or regex,
    no truncation under the grammar and for its other draws."""
    is_truncated = first(verifier, draw) and source != "grammar"
    found = counts(run(source, verifier, draw, is_truncated), CALLS)
    assert laws.chi_square(found, law(source, is_truncated)) > LEVEL


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_forced_text_beside_samples_keeps_the_law(source):
    """Rejection reads the laws of drafts; forced text has one-hot ones."""
    found = counts(run(source, "verifiers/rejection", "iid", forced=True), CALLS)
    assert laws.chi_square(found, law(source, False)) > LEVEL


def test_one_verifier_and_forced_text():
    """Of the above what every run checks, n = 16,384.

    Planted, with `-m long`: texts without the grammar.
    """
    made = run("regex", "verifiers/rejection", "iid", forced=True)
    assert laws.chi_square(counts(made), law("regex", False)) > LEVEL


def test_fault_laws_of_other_drafts(monkeypatch):
    """Planted: forced text is verified by the draft model's laws."""

    def either(copied, copies, grown, depth):
        chosen = real(copied, copies, grown, depth)
        return chosen.replace(logits=grown.logits)

    real = lookup_or_model.either
    monkeypatch.setattr(lookup_or_model, "either", either)
    made = run("regex", "verifiers/rejection", "iid", forced=True)
    assert laws.chi_square(counts(made), law("regex", False)) < 1e-6


@pytest.mark.long
def test_fault_a_law_without_the_grammar():
    """Planted: texts of the temperature alone, or of another grammar."""
    method = verifiers.method("verifiers/rejection", "iid", None, ())
    bare = composed(method, "regex")
    assert laws.chi_square(counts(bare), law("regex", False)) < 1e-6
