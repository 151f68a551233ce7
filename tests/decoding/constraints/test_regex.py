"""decoding/constraints/regex.py and the automata it is made of."""

import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Spec, base, transform_chain, tree
from decoding.automata import (
    byte_machine,
    compiled,
    machine,
    regex_syntax,
    token_dfa,
    utf8,
)
from decoding.conformance import kit
from decoding.constraints import regex
from decoding.transforms import ban_tokens, temperature, top_k
from models.errors import ConstraintError
from tests.decoding.automata import regex_oracle
from tests.decoding.automata.regex_oracle import EOS, TOKENS, VOCAB, matches

SAMPLES = list("abZ_09 \n-]^.\\{}") + ["\x7f", "\x80", "é", "ÿ", "\u07ff", "\u0800"]
SAMPLES += ["€", "中", "\ud7ff", "\ue000", "\uffff", "\U00010000", "😀", "\U0010ffff"]


def _random_pattern(rng: random.Random, parts: int) -> str:
    def atom() -> str:
        kind = rng.random()
        if kind < 0.35:
            return re.escape(rng.choice(SAMPLES))
        if kind < 0.5:
            return rng.choice([r"\w", r"\d", r"\s", r"\W", r"\D", r"\S", "."])
        if kind > 0.9:
            return f"(?:{_random_pattern(rng, 1)}|{_random_pattern(rng, 1)})"
        low, high = sorted(rng.sample(SAMPLES, 2))
        range_ = f"{re.escape(low)}-{re.escape(high)}"
        items = [range_, re.escape(rng.choice(SAMPLES)), rng.choice([r"\w", r"\S"])]
        some = rng.sample(items, rng.randint(1, 3))
        return f"[{rng.choice(['', '^'])}{''.join(some)}]"

    repeats = ["", "", "*", "?", "+", "{1,2}", "{2}", "??", "{,2}"]
    return "".join(atom() + rng.choice(repeats) for _ in range(rng.randint(1, parts)))


def _accepts(dfa: token_dfa.ByteDFA, data: bytes) -> bool:
    state = dfa.start
    for byte in data:
        if state == token_dfa.DEAD:
            return False
        state = dfa.next[state, byte]
    return state != token_dfa.DEAD and bool(dfa.accept[state])


def _byte_disagreements(patterns: int) -> int:
    rng, wrong = random.Random(0), 0
    for _ in range(patterns):
        flags = rng.choice(["", "", "(?s)", "(?i)"])
        pattern = flags + _random_pattern(rng, 3)
        dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
        for _ in range(60):
            text = "".join(rng.choices(SAMPLES, k=rng.randint(0, 4)))
            wrong += _accepts(dfa, text.encode()) != matches(pattern, text.encode())
    return wrong


def test_byte_automata_equal_re_on_random_patterns():
    # 60 patterns x 60 strings over ASCII and both ends of every UTF-8 length; seed 0.
    assert _byte_disagreements(60) == 0


def test_fault_states_merged_too_early(monkeypatch):
    def careless(dfa):
        step, accept, start = token_dfa.trim(dfa.next, dfa.accept, dfa.start)
        _, first, block = np.unique(accept, return_index=True, return_inverse=True)
        merged = np.append(block, token_dfa.DEAD)[step[first]]
        return token_dfa.ByteDFA(merged, accept[first], int(block[start]))

    monkeypatch.setattr(token_dfa, "minimise", careless)
    assert _byte_disagreements(20) > 0


def test_bytes_of_any_are_exactly_utf8():
    dfa = utf8.byte_automaton(regex_syntax.automaton("(?s)."))
    for point in [*range(0, 0x110000, 251), 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10FFFF]:
        if not 0xD800 <= point < 0xE000:
            assert _accepts(dfa, chr(point).encode())
    # overlong, surrogate, beyond the last code point, cut short, a bare continuation
    for data in (b"\xc0\x80", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xed\xa0\x80"):
        assert not _accepts(dfa, data)
    for data in (b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80", b""):
        assert not _accepts(dfa, data)


def test_minimal_sizes():
    def size(pattern):
        return len(utf8.byte_automaton(regex_syntax.automaton(pattern)).accept)

    # a{,2} needs three states although all of them accept.
    assert [size(p) for p in ("", "a", "a{,2}", "a*", "(a|b)*a", "x(a|b)|y(a|b)")] == [
        1,
        2,
        3,
        1,
        2,
        3,
    ]


def _begin(made, rows: int) -> base.State:
    return jax.vmap(made.init, out_axes=base.ROWS)(
        jnp.zeros((rows, 3), jnp.int32), jnp.ones(rows, jnp.int32)
    )


def test_random_walks_match(tokenizer):
    pattern = "(é|ab|1(2|-)?){1,3}(bca)?"
    made = transform_chain.chain(
        regex.transform(pattern, tokenizer(TOKENS), EOS, VOCAB),
        temperature.transform(1),
    )
    rows, steps = 200, 24

    def step(state, key):
        logits = jax.random.normal(key, (rows, VOCAB))
        read = lambda state, logits: made.apply(state, logits, {})
        masked = jax.vmap(read, in_axes=(base.ROWS, 0))(state, logits)
        token = masked.argmax(-1).astype(jnp.int32)
        return tree.over_rows(made.advance, 3)(state, token, logits, {}), token

    keys = jax.random.split(jax.random.key(0), steps)
    _, tokens = jax.jit(lambda s: jax.lax.scan(step, s, keys))(_begin(made, rows))
    texts = set()
    for row in np.asarray(tokens).T.tolist():
        assert EOS[0] in row and max(row) < len(TOKENS)
        end = row.index(EOS[0])
        assert set(row[end:]) == set(EOS)  # nothing follows the end
        text = b"".join(TOKENS[token] for token in row[:end])
        assert matches(pattern, text)
        texts.add(text)
    assert len(texts) > 40
    assert not all(matches("(é|ab|1(2|-)?){1,3}", text) for text in texts)


def test_state_at_a_node_is_the_replayed_state(tokenizer):
    made = regex.transform("(ab|ba){1,2}", tokenizer(TOKENS), EOS, VOCAB)
    rng = np.random.default_rng(0)
    parents = np.array([-1] + [rng.integers(0, i) for i in range(1, 14)], np.int32)
    tokens = rng.integers(0, VOCAB, (4, 14)).astype(np.int32)
    tokens[:, 1:] = rng.choice([1, 2, 3, 4], (4, 13))
    tokens[0, 5] = 0
    grown = base.TokenTree(
        jnp.asarray(tokens), jnp.tile(parents, (4, 1)), jnp.ones((4, 14)), depth=13
    )
    states = jax.jit(lambda *a: tree.node_states(made, *a, {}))(
        _begin(made, 4), grown, jnp.zeros((4, 14, VOCAB))
    )
    tables, start = regex_oracle.placed("(ab|ba){1,2}")
    want = np.zeros((4, 14), np.int64)
    for b in range(4):
        rows = [machine.init(start, 0, 1, False)]
        for parent, token in zip(parents[1:], tokens[b, 1:]):
            rows.append(regex_oracle.advance(tables, rows[parent], token))
        want[b] = [row.state for row in rows]
    np.testing.assert_array_equal(states.row.state, want)
    assert (want == machine.DEAD).any() and (want > 0).any()
    # A dead node, which cannot be reached, reads the logits as they are.
    logits = jax.random.normal(jax.random.key(0), (4, 14, VOCAB))
    read = lambda state, logits: made.apply(state, logits, {})
    axes = (base.ROWS, 0)
    masked = jax.vmap(jax.vmap(read, in_axes=axes), in_axes=axes)(states, logits)
    dead = want == machine.DEAD
    np.testing.assert_array_equal(masked[dead], logits[dead])
    assert np.isfinite(np.asarray(masked).max(-1)).all() and not np.isnan(masked).any()


def test_the_pattern_wins_over_bans_and_survives_truncation(tokenizer):
    only_a = regex.transform("a", tokenizer(TOKENS), EOS, VOCAB)
    logits = jnp.arange(float(VOCAB))
    for parts in (
        (ban_tokens.transform([1], VOCAB), only_a),
        (only_a, ban_tokens.transform([1], VOCAB)),
        (only_a, top_k.transform(1)),
    ):
        made = transform_chain.chain(*parts)
        state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
        out = jax.jit(made.apply)(state, logits, {})
        np.testing.assert_array_equal(np.flatnonzero(np.isfinite(out)), [1])


def test_the_mass_that_a_pattern_leaves(tokenizer):
    """Of the law that it receives; none where earlier transforms forbade all of it."""
    only_a = regex.transform("a", tokenizer(TOKENS), EOS, VOCAB)
    state = only_a.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    logits = jnp.arange(float(VOCAB)) / VOCAB
    mass = transform_chain.mass(only_a, state, logits, {})
    p = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(mass, np.log(p[1]), rtol=1e-5)
    dead = base.State(state.row._replace(state=jnp.int32(-1)), state.shared)
    assert transform_chain.mass(only_a, dead, logits, {}) == 0
    banned = transform_chain.chain(ban_tokens.transform([1], VOCAB), only_a)
    state = banned.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    lost = transform_chain.mass(banned, state, logits, {})
    assert np.isfinite(lost) and np.exp(lost) == 0
    assert lost != mass  # planted: the pattern's tokens count as if they were allowed


def test_patterns_of_like_size_share_a_program(tokenizer):
    made = [
        regex.transform(pattern, tokenizer(TOKENS), EOS, VOCAB)
        for pattern in ("(ab|ba)1", "(aa|ab)2?1")
    ]
    program = jax.jit(lambda state, logits: made[0].apply(state, logits, {}))
    masks = []
    for one in made:
        state = one.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
        got = program(state, jnp.zeros(VOCAB))
        np.testing.assert_array_equal(got, one.apply(state, jnp.zeros(VOCAB), {}))
        masks.append(np.isfinite(got))
    assert program._cache_size() == 1 and (masks[0] != masks[1]).any()
    # Planted: a pattern of more states than the tables of a small one hold.
    large = regex.transform("(ab){300}", tokenizer(TOKENS), EOS, VOCAB)
    program(large.init(jnp.zeros(1, jnp.int32), jnp.int32(1)), jnp.zeros(VOCAB))
    assert program._cache_size() == 2


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "is invalid"),
        (r"\p{L}", "is invalid"),
        (r"a(?=b)", "assert"),
        (r"(a)\1", "groupref"),
        (r"\bfoo", "uses at"),
        (r"(?>a)b", "atomic"),
        ("a*+b", "possessive"),
        (r"[^\s\S]", "matches no text"),
        ("[cd]", "no sequence of this tokenizer"),
        ("(.{9999}){9999}", "too large"),
        ("(a|b)*a(a|b){20}", "more than 20000 states"),
    ],
)
def test_refuses(tokenizer, pattern, words):
    with pytest.raises(ConstraintError, match=words):
        regex.transform(pattern, tokenizer(TOKENS), EOS, VOCAB)


def test_refuses_vocabularies_that_do_not_fit(tokenizer):
    for eos in ((), (20,)):
        with pytest.raises(ConstraintError, match="end-of-sequence"):
            regex.transform("a", tokenizer(TOKENS), eos, VOCAB)
    with pytest.raises(ConstraintError, match="tokenizer of this model"):
        regex.transform("a", tokenizer(TOKENS), EOS, 5)


def test_outer_anchors_say_nothing(tokenizer):
    for pattern in ("^ab$", r"\Aab\Z", "^ab"):
        built = compiled.machine(compiled.parse({"regex": pattern}))
        texts = [b"", b"a", b"ab", b"abab", b"ba", b"^ab"]
        assert [byte_machine.accepts(built, text) for text in texts] == [
            text == b"ab" for text in texts
        ]


PROMPTS = [[1], [2, 3, 4], [5]]
EACH = ("(ab|c)*d", "[abc]{2,5}", "g(a|b)?")


def _call(transform):
    fields = {"seed": [0, 1, 2], "temperature": 0.8, "max_new_tokens": 12}
    lm = kit.model(0, -2.0)
    return decoding.generate(lm, PROMPTS, transforms=[transform], **fields)


@pytest.fixture(scope="module")
def together():
    return _call([Spec("constraints/regex", pattern=EACH, index=i) for i in range(3)])


def test_each_prompt_has_its_pattern(together):
    """Rows equal those of a call in which all have the pattern.

    Planted: another row's pattern.
    """
    calls = [_call(Spec("constraints/regex", pattern=pattern)) for pattern in EACH]
    for i, tokens in enumerate(together.tokens):
        rows = [out.tokens[i] == tokens for out in calls]
        assert rows == [i == j for j in range(3)]
    # Another pattern of like size compiles nothing, in a batch of one or of several.
    assert [out.stats.compile_seconds for out in calls] == [0, 0, 0]


def test_texts_match(together):
    texts = zip(EACH, together.tokens, together.finish_reason)
    ended = [(pattern, tokens) for pattern, tokens, why in texts if why == "eos"]
    assert len(ended) > 1
    for pattern, tokens in ended:
        text = "".join(chr(97 + token) for token in tokens if token != kit.EOS)
        assert re.fullmatch(pattern, text)
