"""The host form: the device's texts, in trees and searches, with one call a round."""

import numpy as np
import pytest

import decoding
from decoding import Method, Spec, compose
from decoding.automata import byte_machine, compiled, matchers
from decoding.conformance import kit
from decoding.constraints import host
from decoding.loops import engines, host_words
from models.errors import ConstraintError, MethodError

GRAMMARS = [
    {"gbnf": 'root ::= "a" root? "b" | "c"'},
    {"regex": "(ab|c)*d"},
    {"gbnf": 'root ::= item ("e" item)*\nitem ::= [ab]+ | "c" root "d"'},
    None,
]
MODEL = kit.model(0, -2.0)
TREE = Method(Spec("drafters/model"), topology=kit.spec("topologies/specinfer"))
CHAIN = Method(kit.spec("drafters/prompt_lookup"))
DRAFTS = {"draft": MODEL}  # its drafts are masked nowhere, and often accepted


class Bytes(matchers.Matcher[byte_machine.Config]):
    """A grammar by its machine over bytes, token by token: the reference."""

    def __init__(self, lm, grammar):
        config = lm.model.config
        super().__init__(config.vocab_size, config.eos)
        compiler = compiled.compiler(lm.tokenizer, config.eos, config.vocab_size)
        self.machine = compiler.lifted(compiled.parse(grammar)).machine
        self.tokens = compiler.vocabulary.tokens

    def begin(self, prompt):
        return byte_machine.Config(self.machine.start)

    def step(self, state, token):
        if token >= len(self.tokens) or not self.tokens[token]:
            return None
        after = byte_machine.read(self.machine, state, self.tokens[token])
        return None if after.state == byte_machine.DEAD else after

    def allowed(self, state):
        each = [self.step(state, token) for token in range(self.vocab_size)]
        mask = np.array([after is not None for after in each])
        mask[list(self.eos)] = self.is_over(state)
        return mask

    def is_over(self, state):
        return bool(byte_machine.is_final(self.machine, state))


def by_host() -> list:
    return [None if g is None else Bytes(MODEL, g) for g in GRAMMARS]


def call(constraint, method=None, temperature=0.8, **fields):
    fields = {"seed": [0, 1, 2, 3], "max_new_tokens": 24, "width": "paper", **fields}
    return decoding.generate(
        MODEL,
        kit.PROMPTS,
        method,
        constraint=constraint,
        temperature=temperature,
        drafts=DRAFTS if method is TREE else None,
        **fields,
    )


@pytest.fixture
def asked(monkeypatch):
    """Count the calls of the host."""
    calls = []

    def answer(width, *rows, honest=matchers.answer):
        calls.append(rows)
        return honest(width, *rows)

    monkeypatch.setattr(matchers, "answer", answer)
    return calls


@pytest.mark.parametrize(
    "temperature", [0.8, pytest.param(0.0, marks=pytest.mark.long)]
)
def test_texts_are_the_device_s(temperature, asked):
    """Plainly, in a tree and in a chain, each prompt under another grammar."""
    device = call(GRAMMARS, temperature=temperature)
    assert device.engine == ["device", "device", "device", None]
    assert device.stats.host_syncs == 0 and not asked
    for method in (None, TREE, CHAIN):
        asked.clear()
        out = call(by_host(), method, temperature)
        assert out.engine == ["host", "host", "host", None]
        assert out.tokens == device.tokens
        assert out.accepted == device.accepted
        assert out.stats.host_syncs == len(asked) > 0
        assert method is not TREE or out.stats.tokens_per_call > 1.2


@pytest.mark.parametrize("fault", ["root", "late", "prompt"])
def test_fault_a_mask_of_another_text(fault, monkeypatch):
    """Planted: all nodes have the root's mask; a text lacks its end, or its start."""
    honest = host_words.of_tree

    def wrong(program, state, nodes):
        texts = honest(program, state, nodes)
        if texts is None:
            return None
        if fault == "root":
            return texts._replace(at=texts.at * 0)
        if fault == "late":
            return texts._replace(length=texts.length - 1)
        numbers = {
            name: value + np.array([0, 1]) for name, value in texts.numbers.items()
        }
        return texts._replace(numbers=numbers)

    monkeypatch.setattr(host_words, "of_tree", wrong)
    with engines.apart():
        out = call(by_host(), TREE)
    assert out.tokens != call(GRAMMARS).tokens


def test_rows_on_the_device_and_on_the_host():
    """Of one call; and their order changes no text."""
    device = call(GRAMMARS)
    mixed = [GRAMMARS[0], *by_host()[1:3], None]
    out = call(mixed)
    assert out.engine == ["device", "host", "host", None]
    assert out.tokens == device.tokens and out.accepted == device.accepted
    assert call(mixed, TREE).tokens == device.tokens


def test_other_matchers_compile_nothing():
    call(by_host())
    out = call([*by_host()[1:], Bytes(MODEL, {"regex": "[abc]{2,5}"})])
    assert out.stats.compile_seconds == 0


@pytest.mark.long
def test_a_beam_asks_once_a_round(asked):
    """A search's lanes, whose tokens lie in no row; planted: roots alone are read."""
    beam = Method(search=Spec("search/beam"))
    fields = {"n": 2, "temperature": 0.0, "max_new_tokens": 12}
    device = call(GRAMMARS, beam, **fields)
    asked.clear()
    out = call(by_host(), beam, **fields)
    assert out.tokens == device.tokens
    assert out.stats.host_syncs == len(asked) == out.stats.rounds
    deepest = max(at.max() for *_, at in asked)
    assert deepest > 0


@pytest.mark.long
def test_smc_weighs_by_the_mass():
    """Particles of both forms have the same weights, and so the same texts."""
    smc = Method(search=kit.spec("search/smc"))
    device = call([GRAMMARS[0]] * 4, smc, n=2)
    out = call([by_host()[0]] * 4, smc, n=2)
    assert out.tokens == device.tokens
    np.testing.assert_allclose(out.scores, device.scores, rtol=1e-5)


def even(tokens):
    """At most three letters b, and the end only behind an even number of tokens."""
    letters = [0, 1, 2] if (tokens == 1).sum() < 3 else [0, 2]
    return letters if len(tokens) % 2 else [*letters, kit.EOS]


def test_predicates():
    """Planted: the predicate left out."""
    out = call(even, TREE)
    assert out.engine == ["host"] * 4 and out.accepted == [
        len(text) % 2 == 1 or (text[-1] != kit.EOS and len(text) % 2 == 0)
        for text in out.tokens
    ]
    for text, free in zip(out.tokens, call(None).tokens):
        text = [t for t in text if t != kit.EOS]
        assert set(text) <= {0, 1, 2} and text.count(1) <= 3
        assert not set(free) <= {0, 1, 2, kit.EOS}


def test_where_nothing_is_allowed_the_text_ends():
    out = call(lambda tokens: [0] if len(tokens) < 3 else [])
    assert out.tokens == [[0, 0, 0, kit.EOS]] * 4


def test_the_matcher_wins_over_a_ban():
    """As a grammar does; a truncation behind it keeps allowed tokens."""
    ban = Spec("transforms/ban_tokens", bans=((0,),))
    out = call(lambda tokens: [0], transforms=[ban], top_k=1, max_new_tokens=4)
    assert out.tokens == [[0] * 4] * 4


def test_two_masks_of_a_method():
    """Both hold; planted: one name for both."""
    odd = Spec("constraints/host", of=(lambda tokens: [0, 1, 3, 5],), stream="odd")
    low = Spec("constraints/host", of=(lambda tokens: [0, 1, 2],))
    out = call(None, transforms=[odd, low])
    assert {t for text in out.tokens for t in text} == {0, 1}
    assert out.stats.host_syncs == 2 * int(out.stats.target_calls.max())
    twin = Spec("constraints/host", of=(even,))
    with pytest.raises(MethodError, match="two constraints have the masks"):
        call(None, transforms=[twin, low])


def test_refused(monkeypatch):
    with pytest.raises(ConstraintError, match="a matcher of 9 tokens and a model of 8"):
        call(matchers.Predicate(even, 9))
    with pytest.raises(ConstraintError, match="of has 3: give a Matcher"):
        call(None, transforms=[Spec("constraints/host", of=(3,))])
    for fields in ({"engine": "device"}, {"finish": True}):
        with pytest.raises(ConstraintError, match="which runs on the host"):
            call(even, **fields)
    monkeypatch.setattr(host.jax, "process_count", lambda: 2)
    with pytest.raises(MethodError, match="2 processes: use constraints/grammar"):
        call(even)


def test_drafts_are_unmasked():
    transform = Spec("constraints/host", of=(even,)).build(kit.PARTS)
    state = transform.init(np.zeros(4, np.int32), np.int32(2))
    logits = np.arange(8.0)
    assert (transform.apply(state, logits, {}) == logits).all()
    words = {"host/mask": matchers.pack(np.arange(8) < 2)}
    left = np.asarray(transform.apply(state, logits, words))
    assert np.isfinite(left).tolist() == (np.arange(8) < 2).tolist()


def test_programs_know_their_masks():
    method = Method(transforms=(Spec("constraints/host", of=(even,)),))
    parts = compose.compose(method, MODEL, 0.8)
    assert parts.program.streams == {"host/mask": matchers.Matched(1)}
    assert parts.guarantee == "LAW"
