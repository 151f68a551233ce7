"""Monitors: states, masks, incremental text, and identifiers of a stub alone."""

import numpy as np
import pytest

import decoding
from decoding import Method, Spec, vocab
from decoding.conformance import kit
from decoding.constraints import monitor
from models.errors import ConstraintError

TOKENS = [
    *(b"", b".", b"a", b"ab", b"abc", b"abcd", b"abc(", b"abc.", b"abd;", b"b"),
    *(b"c", b"d", b"(", b"(x.", b" ", b".ab", b"\xc3", b"\xa9", b"abc\xc3", b"x"),
]
EOS, V = 0, len(TOKENS) + 2
IDS = {token: i for i, token in enumerate(TOKENS)}


def watch(*offered: str, **fields) -> monitor.Monitor:
    provider = fields.pop("provider", lambda text: list(offered))
    return monitor.Monitor(provider, TOKENS, [EOS], V, **fields)


def ids(*tokens: bytes) -> np.ndarray:
    return np.array([IDS[token] for token in tokens], np.int32)


def allowed(held: monitor.Monitor, text=(), prompt=(b"x", b".")) -> set[bytes] | None:
    """The tokens that may follow, or None: no mask."""
    root = np.zeros(1, np.int32)
    words = held.words(ids(*text), root, root - 1, root, ids(*prompt))
    bits = np.asarray(vocab.members(words[0], V))
    if bits.all():
        return None
    assert not bits[len(TOKENS) :].any()
    return {TOKENS[i] for i in np.flatnonzero(bits)}


def test_prefixes_and_tokens_that_span_the_end():
    held = watch("abc", "abd")
    spans = {b"abc(", b"abc.", b"abd;"}
    assert allowed(held) == {b"a", b"ab", b"abc"} | spans
    assert allowed(held, [b"a"]) == {b"b"}
    assert allowed(held, [b"ab"]) == {b"c", b"d"}


def test_behind_a_whole_identifier():
    """What breaks, what goes on, and the end; planted: letters that break nothing."""
    breaks = {b".", b"(", b"(x.", b" ", b".ab", b""}
    assert allowed(watch("abc"), [b"abc"]) == breaks
    assert allowed(watch("abc", "abcd"), [b"abc"]) == breaks | {b"d"}
    assert allowed(watch("ab"), [b"ab"], (b"x", b".")) == breaks
    wide = watch("abc", letters=monitor.LETTERS + "( ")
    assert allowed(wide, [b"abc"]) == {b".", b".ab", b""}


def test_a_break_ends_the_mask_and_a_trigger_asks_anew():
    held = watch("abc")
    assert allowed(held, [b"abc", b"("]) is None
    assert allowed(held, [b"abc("]) is None
    assert allowed(held, [b"abc."]) == allowed(held)
    assert allowed(held, [b"abc", b"(x."]) == allowed(held)
    assert allowed(held, [b"abc", b" ", b"x", b"."]) == allowed(held)
    assert allowed(held, [], [b"x"]) is None
    # As in the paper, a token of S0 that goes on behind a trigger is not watched.
    assert allowed(held, [b"abc(", b".ab"]) is None


def test_empty_completions_never_mask():
    assert allowed(watch()) is None
    assert allowed(watch("")) is None


def test_forbidden_and_unspelled_identifiers():
    assert allowed(watch("abc"), [b"b"]) is None  # no target reaches this text
    assert allowed(watch("zzz")) == {b""}  # no token spells it: the text ends


def test_characters_in_halves():
    """A token may hold half a character, which breaks no identifier."""
    held = watch("abc", "abcé")
    assert b"\xc3" in allowed(held, [b"abc"])
    assert allowed(held, [b"abc\xc3"]) == {b"\xa9"}
    assert b"." in allowed(held, [b"abc\xc3", b"\xa9"])


@pytest.mark.parametrize("fault", [False, True])
def test_incremental_text_is_the_whole_text(fault):
    """Token by token as in one replay, over random texts of allowed tokens.

    Planted: a monitor that loses the text before the token.
    """

    class Short(monitor.Monitor):
        def _asked(self, text):
            return super()._asked(text[-1:])

    def provider(text):
        seen = text.count("a") + text.count(".")
        return [["abc", "abd"], ["ab", "x"], []][seen % 3]

    rng, same = np.random.default_rng(3), True
    for _ in range(30):
        kind = Short if fault else monitor.Monitor
        held = kind(provider, TOKENS, [EOS], V)
        text: list[bytes] = []
        for _ in range(12):
            choice = allowed(held, text)
            several = (set(TOKENS) if choice is None else choice) - {b""}
            fresh = monitor.Monitor(provider, TOKENS, [EOS], V)
            same &= choice == allowed(fresh, text)
            if not several:
                break
            text.append(sorted(several)[rng.integers(len(several))])
    assert same != fault


def test_the_provider_is_asked_at_triggers_alone():
    texts = []

    def provider(text):
        texts.append(text)
        return ["abc"]

    held = watch(provider=provider, triggers=(".", "(x"))
    prompt = [b"x", b".", b"a", b" ", b"x", b"."]
    for size in range(5):
        allowed(held, [b"abc", b"(", b"x", b"abc"][:size], prompt)
    assert texts == ["x.a x.", "x.a x.abc(x"]
    assert held.accepts(ids(b"abc"), ids(*prompt))
    assert not held.accepts(ids(b"ab"), ids(*prompt))


NAMES = ("abc", "abd", "cc")
TREE = Method(Spec("drafters/model"), topology=kit.spec("topologies/specinfer"))
MODEL = kit.model(0)


def offer(text: str) -> list[str]:
    return [] if text.endswith("ff") else [*NAMES]


def offer_one(text: str) -> list[str]:
    return ["cc"]


def call(provider, method=None, temperature=0.8, of=MODEL):
    spec = Spec(
        "constraints/monitor", provider=provider, triggers=("f",), letters="abcde"
    )
    return decoding.generate(
        of,
        kit.PROMPTS,
        method,
        max_new_tokens=40,
        temperature=temperature,
        transforms=[spec] if provider else [],
        drafts={"draft": MODEL} if method else None,
        width="paper",
    )


def dereferences(texts: list[str]) -> list[str]:
    """What follows each trigger, less identifiers that a limit may have cut."""
    return [part.split("g")[0] for t in texts for part in f"{t}g".split("f")[1:-1]]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_only_identifiers_of_the_stub(temperature):
    """In rows of a batch and in a draft tree; planted: no monitor, another stub."""
    out = call(offer, None, temperature)
    names = dereferences(out.texts)
    assert set(names) <= {*NAMES, ""}
    assert call(offer, TREE, temperature).tokens == out.tokens
    assert out.stats.host_syncs == 40
    if temperature:
        assert set(names) & {*NAMES}
        assert not set(dereferences(call(None).texts)) <= {*NAMES, ""}
        assert call(offer_one).tokens != out.tokens


def test_refused():
    for triggers in ((), (".", "")):
        with pytest.raises(ConstraintError, match="triggers="):
            watch("abc", triggers=triggers)
