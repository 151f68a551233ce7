"""`decoding.generate` from outside: ends, samples, late requests, bad input."""

import dataclasses
import types

import jax
import numpy as np
import pytest
import tokenizers

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.loops import commit, engines
from models.errors import ConstraintError, DecodaxError, MethodError, PromptError
from models.text import hf_tokenizer

SELF = Method(Spec("drafters/oracle"), topology=kit.spec("topologies/chain"))


def letters(tokens: list[int]) -> str:
    return kit.Letters().decode(tokens)


def some_stops() -> list[str]:
    """Two letters each, taken from plain texts so that every one of them is met."""
    texts = [letters(t) for t in kit.generate(Method(), 0.8).tokens]
    return sorted({text[i : i + 2] for text in texts for i in (3, 10)})[:4]


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
@pytest.mark.parametrize("method", [Method(), SELF], ids=["plain", "self"])
def test_a_stop_string_ends_a_text_where_it_begins(method, temperature):
    """Wherever it falls inside an accepted path, and in each row by itself."""
    whole = [letters(t) for t in kit.generate(Method(), temperature).tokens]
    met = 0
    for stop in some_stops():
        out = kit.generate(method, temperature, stop=stop)
        met += sum(stop in text for text in whole)
        assert out.texts == [text.split(stop)[0] for text in whole]
        for text, tokens in zip(whole, out.tokens):
            end = text.find(stop) + len(stop) if stop in text else len(text)
            assert letters(tokens) == text[:end]
    assert met >= 3


@pytest.mark.long
def test_of_several_stop_strings_the_first_to_end_counts():
    whole = [letters(t) for t in kit.generate(Method(), 0.8).tokens]
    stops = some_stops()[:3]
    wanted = []
    for text in whole:
        ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
        wanted.append(text[: min(ends)[1]] if ends else text)
    assert kit.generate(SELF, 0.8, stop=stops).texts == wanted


def test_fault_a_stop_string_sought_within_one_token(monkeypatch):
    """Planted: the automaton starts anew at every round."""
    sound = commit.cut

    def forgetful(program, state, cache, tokens, count):
        new, _, ended = sound(program, state, cache, tokens, count)
        return new, state.stop, ended

    stops = some_stops()
    good = [kit.generate(Method(), 0.8, stop=s).tokens for s in stops]
    monkeypatch.setattr(commit, "cut", forgetful)
    monkeypatch.setattr(engines, "_ENGINES", {})
    assert good != [kit.generate(Method(), 0.8, stop=s).tokens for s in stops]


def test_programs_are_let_go_before_there_are_too_many(monkeypatch):
    """Of five compositions, where mappings run out, the three asked for last stay; of
    one, the later half of its functions and the one that is compiled then.

    Planted: as long as there is room, none is let go.
    """
    monkeypatch.setattr(engines, "_ENGINES", {})
    program = types.SimpleNamespace(model=types.SimpleNamespace(plan=None))
    parts = [types.SimpleNamespace(key=i, program=program) for i in range(5)]
    made = [engines.engine(one) for one in parts]
    assert engines.engine(parts[0]) is made[0]  # the latest now

    def call(width: int) -> list[int]:
        """The widths whose functions are there, after a call with one."""
        made[0]._call("add", lambda _, x: x + 1, (), np.zeros(width))
        return [shapes[0][0][0] for _, _, shapes in made[0]._compiled]

    assert call(1) == [1] and len(engines._ENGINES) == 5
    monkeypatch.setattr(engines, "mappings", lambda: engines.MOST + 1)
    assert call(1) == [1] and len(engines._ENGINES) == 5
    assert call(2) == [1, 2] and list(engines._ENGINES) == [3, 4, 0]
    monkeypatch.setattr(engines, "_ENGINES", {0: made[0]})
    assert call(3) == [2, 3] and call(4) == [3, 4]


@pytest.mark.parametrize(
    "method",
    [Method(), pytest.param(SELF, marks=pytest.mark.long)],
    ids=["plain", "self"],
)
def test_samples_of_a_prompt(method):
    """Sample 0 is the text of n = 1; a sample does not depend on how many there are."""
    one = kit.generate(method, 0.8)
    three = kit.generate(method, 0.8, n=3)
    two = kit.generate(method, 0.8, n=2)
    assert [len(group) for group in three.tokens] == [3] * len(kit.PROMPTS)
    assert [group[0] for group in three.tokens] == one.tokens
    assert [group[:2] for group in three.tokens] == two.tokens
    assert all(len({tuple(t) for t in group}) == 3 for group in three.tokens)
    for name in ("texts", "logprobs", "origin"):
        assert [len(group) for group in getattr(three, name)] == [3] * 4
    assert three.stats.new_tokens.shape == (12,)


def test_greedy_samples_are_one_text():
    out = kit.generate(Method(), 0.0, n=2)
    assert all(a == b for a, b in out.tokens)


def test_fault_one_key_for_all_samples(monkeypatch):
    good = engines.request_keys

    def forgetful(seed, prompts, n):
        return jax.numpy.repeat(good(seed, prompts, 1), n)

    monkeypatch.setattr(engines, "request_keys", forgetful)
    group = kit.generate(Method(), 0.8, n=3).tokens[0]
    assert len({tuple(t) for t in group}) == 1


def test_a_seed_for_every_prompt():
    """A prompt's text is that of a call of it alone; planted: another seed."""
    out = kit.generate(Method(), 0.8, seed=[5, 6, 7, 8], n=2)
    for prompt, seed, texts in zip(kit.PROMPTS, (5, 6, 7, 8), out.tokens):
        alone = kit.generate(Method(), 0.8, seed=seed, prompts=[prompt], n=2)
        assert alone.tokens == [texts]
    assert kit.generate(Method(), 0.8, seed=6, n=2).tokens[0] != out.tokens[0]


LATE = [5, 4, 3, 5, 4, 3, 5]


def admitted(method: Method, forget: bool = False):
    """The texts after row 1's request, done after 4 tokens, makes room for `LATE`."""
    run = kit.Run(method, 0.8)
    limits = [len(p) + (4 if i == 1 else kit.NEW) for i, p in enumerate(kit.PROMPTS)]
    keys = engines.request_keys(0, 5, 1)
    state = run.engine.start(
        run.params, run.parts, kit.PROMPTS, limits, keys[:4], kit.SIZE
    )
    state = run.engine.advance(run.params, state, free=1)
    assert np.asarray(state.done).tolist() == [False, True, False, False]
    first = kit.texts(state)[1]
    fresh = run.engine.start(
        run.params, run.parts, [LATE], [len(LATE) + 30], keys[4:], kit.SIZE
    )
    if forget:
        fresh = fresh.replace(caches=jax.tree.map(jax.numpy.zeros_like, fresh.caches))
    state = run.engine.admit(state, 1, fresh)
    state = run.advance(state)
    prompts = [p if i != 1 else LATE for i, p in enumerate(kit.PROMPTS)]
    return first, kit.texts(state, prompts)


def expected(method: Method) -> tuple[list[int], list[list[int]]]:
    bare = Method(transforms=method.transforms)
    together = kit.generate(bare, 0.8, prompts=[*kit.PROMPTS, LATE]).tokens
    texts = [*together[:1], together[4][:30], *together[2:4]]
    return together[1][:4], texts


@pytest.mark.parametrize(
    "name",
    [
        *[pytest.param(n, marks=pytest.mark.long) for n in ("plain", "oracle-chain")],
        "token_recycling",
    ],
)
def test_a_request_admitted_late_gets_its_own_text(name):
    """Penalties, draft tables and noise are the request's; other rows go on unmoved."""
    method = kit.cases()[name]
    assert admitted(method) == expected(method)


def test_fault_a_request_admitted_without_its_cache():
    method = kit.cases()["plain"]
    assert admitted(method, forget=True) != expected(method)


def test_a_host_loop_gives_the_same_text():
    def drive(step, state):
        rounds = 0
        while not bool(state.done.all()):
            state, outcome = step(state)
            rounds += 1
            assert outcome.verdict.token.shape == (4,)
        assert rounds > 3
        return state

    device = kit.generate(SELF, 0.8)
    host = kit.generate(SELF, 0.8, loop=drive)
    assert host.tokens == device.tokens and host.logprobs == device.logprobs


def test_logprobs_are_the_raw_models():
    out = kit.generate(Method(transforms=kit.COMMON), 0.8)
    for prompt, tokens, given in zip(kit.PROMPTS, out.tokens, out.logprobs):
        text = list(prompt)
        for token, value in zip(tokens, given, strict=True):
            raw = jax.nn.log_softmax(kit.toy.logits(kit.TARGET.params, text))
            assert abs(float(raw[token]) - value) < 1e-5
            text.append(token)


def other(vocab: int):
    return kit.model(3, vocab=vocab)


MUTE = types.SimpleNamespace(
    model=kit.TARGET.model, params=kit.TARGET.params, tokenizer=None, config=None
)


def spelled(lm, letters: str):
    """The model with a tokenizer whose token i is the i-th of `letters`."""
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token=letters[0])
    )
    own = {**vars(lm), "tokenizer": hf_tokenizer.Tokenizer(inner)}
    return types.SimpleNamespace(**own)


SPELLED = spelled(kit.TARGET, "abcdefgh")
SHORT_CONFIG = dataclasses.replace(kit.TARGET.config, max_positions=64)
SHORT = types.SimpleNamespace(
    model=kit.TARGET.model._replace(config=SHORT_CONFIG),
    params=kit.TARGET.params,
    tokenizer=kit.Letters(),
    config=SHORT_CONFIG,
)

BAD = [
    ({"prompts": []}, PromptError, "prompts is empty"),
    ({"prompts": "abc"}, PromptError, r"pass \[text\]"),
    ({"prompts": [[1], []]}, PromptError, "prompt 1 is empty"),
    ({"prompts": ["a", ""]}, PromptError, "prompt 1 is empty"),
    ({"prompts": [[1, 8]]}, PromptError, "token 8, outside the vocabulary of 8"),
    ({"prompts": [[1, -1]]}, PromptError, "token -1, outside"),
    ({"lm": SHORT, "prompts": [[1] * 65]}, PromptError, "prompt 0 has 65 tokens"),
    ({"lm": SHORT, "max_new_tokens": 64}, PromptError, "never cut silently"),
    ({"max_new_tokens": 0}, PromptError, "max_new_tokens=0"),
    ({"n": 0}, PromptError, "n=0"),
    ({"seed": [1, 2]}, PromptError, "2 entries for 4 prompts"),
    ({"stop": ""}, PromptError, "empty"),
    ({"stop": ["a", ""]}, PromptError, "empty"),
    ({"temperature": -0.5}, MethodError, "temperature=-0.5"),
    ({"temperature": float("nan")}, MethodError, "temperature=nan"),
    ({"method": "token_recyling"}, MethodError, "token_recycling"),
    ({"method": Method(Spec("drafters/copyspek"))}, MethodError, "copyspec"),
    ({"method": Method(Spec("drafters/copyspec", gama=3))}, MethodError, "gama"),
    ({"transforms": [Spec("transforms/top_p", p=0.0)]}, MethodError, r"\(0, 1\]"),
    ({"transforms": [Spec("transforms/top_p", p=1.5)]}, MethodError, r"\(0, 1\]"),
    ({"transforms": [Spec("transforms/top_k", k=0)]}, MethodError, "top_k 0 is not"),
    (
        {"transforms": [Spec("transforms/temperature", temperature=0.5)]},
        MethodError,
        "give one",
    ),
    (
        {"method": Method(Spec("drafters/model")), "drafts": {"draft": other(12)}},
        MethodError,
        "vocabulary of 12, the target one of 8",
    ),
    (
        {
            "lm": SPELLED,
            "method": Method(Spec("drafters/model")),
            "drafts": {"draft": spelled(kit.DRAFT, "abdcefgh")},
        },
        MethodError,
        r"drafts\['draft'\] has another tokenizer: 2 tokens .* 'c' for one \(id 3",
    ),
    ({"method": Method(Spec("drafters/model"))}, MethodError, "draft"),
    (
        {"method": Method(topology=Spec("topologies/chain"))},
        MethodError,
        "no use for topology",
    ),
    (
        {"method": Method(verifier=Spec("verifiers/greedy"))},
        MethodError,
        "greedy ignores temperature",
    ),
    (
        {"transforms": [Spec("constraints/regex", pattern="[0-9]+")]},
        ConstraintError,
        "no sequence of",
    ),
    (
        {"transforms": [Spec("constraints/regex", pattern="(a")]},
        ConstraintError,
        r"\(a",
    ),
    ({"memory": {"of": np.zeros(3)}}, PromptError, "memory"),
    ({"lm": MUTE, "prompts": ["ab"]}, PromptError, "no tokenizer"),
    ({"lm": MUTE, "stop": "ab"}, MethodError, "needs a tokenizer"),
    (
        {"streams": {"amateur": decoding.Stream(kit.TARGET.model, "small")}},
        MethodError,
        "reads params 'small'",
    ),
    ({"drafts": {"draught": kit.DRAFT}}, MethodError, "no part .* mean 'draft'"),
]


@pytest.mark.parametrize("fields,error,words", BAD, ids=range(len(BAD)))
def test_bad_input_is_refused_before_compilation(fields, error, words, monkeypatch):
    def compiled(*_):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(engines.Engine, "_call", compiled)
    given = {"lm": kit.TARGET, "prompts": kit.PROMPTS, "temperature": 0.8, **fields}
    with pytest.raises(error, match=words) as caught:
        decoding.generate(**given)
    assert isinstance(caught.value, DecodaxError) and str(caught.value)


def test_fault_vocabularies_compared_by_their_sizes(monkeypatch):
    """Planted: a draft of as many tokens is taken. One of the same tokens is, too."""
    method = Method(Spec("drafters/model"), topology=kit.spec("topologies/chain"))

    def composed(letters: str):
        drafts = {"draft": spelled(kit.DRAFT, letters)}
        return decoding.compose.compose(method, SPELLED, 0.0, drafts)

    assert composed("abcdefgh")
    with pytest.raises(MethodError, match="another tokenizer"):
        composed("abdcefgh")
    by_size = property(lambda own: str(own.vocab_size))
    monkeypatch.setattr(hf_tokenizer.Tokenizer, "digest", by_size)
    assert composed("abdcefgh")


def test_fault_a_check_that_comes_too_late(monkeypatch):
    """The trap above is sprung by any request that gets as far as a program."""

    def compiled(*_):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(engines.Engine, "_call", compiled)
    with pytest.raises(AssertionError, match="compiled"):
        decoding.generate(kit.TARGET, kit.PROMPTS)
