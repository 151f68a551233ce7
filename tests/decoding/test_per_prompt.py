"""Settings for each prompt: the texts of calls of one prompt, by one program."""

import functools

import jax
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.automata.mass_trie import MassTrie
from decoding.conformance import kit
from decoding.loops import initial_state
from decoding.serving import requests
from models.errors import MethodError, PromptError
from tests.decoding import test_interface

SETTINGS = {
    "temperature": [0.0, 0.8, 1.3, 0.0],
    "top_p": [0.9, None, 0.7, 0.5],
    "repetition_penalty": [None, 1.2, None, 1.5],
    "stop": [None, ["fb"], ["cd", "bc"], "bd"],
    "stop_token_ids": [[6], None, [6, 2], []],
    "seed": [5, 6, 7, 8],
    "max_new_tokens": [12, 30, 17, 40],
}
OTHER = {
    "temperature": [0.5, 0.0, 0.9, 2.0],
    "top_p": [0.4, 0.3, None, 0.99],
    "repetition_penalty": [1.1, 1.3, 0.9, None],
    "stop": [["aa", "cab"], None, None, ["d"]],
    "stop_token_ids": [None, [1, 2, 3], [4], [0]],
    "seed": [1, 2, 3, 4],
    "max_new_tokens": [40, 3, 9, 20],
}
LONG = pytest.mark.long
MODEL = kit.spec("drafters/model")
METHODS = {
    "plain": Method(),
    "lookup": Method(kit.spec("drafters/prompt_lookup")),
    "model": Method(MODEL, topology=kit.spec("topologies/chain")),
    "tree": Method(MODEL, topology=kit.spec("topologies/static")),
}


def results(out: decoding.Output) -> list[tuple]:
    """The texts of a call: a tuple a prompt."""
    return list(zip(out.tokens, out.texts, out.finish_reason))


def alone(method: Method, settings: dict) -> list[tuple]:
    """Texts of calls of one prompt; a greedy one is called as one."""
    texts = []
    for i, prompt in enumerate(kit.PROMPTS):
        single = {k: v[i : i + 1] for k, v in settings.items()}
        single["temperature"] = settings["temperature"][i]
        texts += results(kit.generate(method, prompts=[prompt], **single))
    return texts


@functools.cache
def plain_alone() -> list[tuple]:
    return alone(Method(), SETTINGS)


def compilations(call) -> int:
    """Count the compiled programs and single operations of a call."""
    count = 0

    def listen(event: str, *_, **__) -> None:
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        call()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=LONG if n == "model" else ()) for n in METHODS]
)
def test_texts_are_those_of_calls_of_one_prompt(name):
    """Greedy and sampled rows, transforms and ends of their own, with any drafter."""
    out = kit.generate(METHODS[name], **SETTINGS)
    assert results(out) == plain_alone()
    assert out.guarantee == "LAW"
    reasons = dict(zip(out.finish_reason, map(len, out.tokens)))
    assert set(reasons) == {"length", "stop"}  # both happen


@pytest.mark.long
@pytest.mark.parametrize("settings", [SETTINGS, OTHER], ids=["one", "other"])
@pytest.mark.parametrize("name", METHODS)
def test_calls_of_one_prompt_with_the_same_method(name, settings):
    out = kit.generate(METHODS[name], **settings)
    assert results(out) == alone(METHODS[name], settings)


@pytest.mark.long
@pytest.mark.parametrize("name", kit.drafters())
def test_every_lossless_drafter(name):
    """Its texts are plain decoding's, all rows together."""
    for method in kit.cases_of(name).values():
        out = kit.generate(method, **SETTINGS)
        if out.guarantee == "LAW":
            bare = Method(transforms=method.transforms)
            assert results(out) == results(kit.generate(bare, **SETTINGS)), method


def test_fault_settings_of_another_row(monkeypatch):
    """Planted: every row begins with the settings of the next one."""
    sound = initial_state.rows_settings

    def turned(*arguments):
        first, *rest = sound(*arguments)
        return [*rest, first]

    monkeypatch.setattr(initial_state, "rows_settings", turned)
    wrong = results(kit.generate(Method(), **SETTINGS))
    assert sum(a != b for a, b in zip(wrong, plain_alone())) >= 3


def test_other_numbers_compile_nothing():
    """Nor a single operation; planted: a number that is a constant of a program."""
    kit.generate(Method(), **SETTINGS)
    engines = len(kit.engines._ENGINES)
    assert compilations(lambda: kit.generate(Method(), **OTHER)) == 0
    assert len(kit.engines._ENGINES) == engines
    heat = OTHER["temperature"][0]
    assert compilations(lambda: jax.jit(lambda x: x / heat)(jax.numpy.ones(3))) > 0


def test_streams_take_the_same_settings():
    """Planted: pieces of the texts without their stops."""
    whole = kit.generate(Method(), lm=test_interface.LM, **SETTINGS)
    texts, reasons = [""] * 4, [None] * 4
    for piece in decoding.stream(test_interface.LM, kit.PROMPTS, **SETTINGS):
        texts[piece.prompt] += piece.text
        reasons[piece.prompt] = piece.finish_reason
    assert texts == whole.texts and reasons == whole.finish_reason
    spelt = [kit.TARGET.tokenizer.decode(tokens) for tokens in whole.tokens]
    assert texts != spelt


@pytest.mark.long
def test_samples_have_the_settings_of_their_prompt():
    """Sample 0 is the text of n = 1; planted: other samples of sampled prompts."""
    out = kit.generate(Method(), n=2, **SETTINGS)
    assert [texts[0] for texts in out.tokens] == [t[0] for t in plain_alone()]
    assert [a == b for a, b in out.tokens] == [True, False, False, True]


def visited() -> MassTrie:
    """The bounds behind one text."""
    trie = MassTrie()
    trie.add(0, [0, 1], np.log([0.5, 0.5]), np.log([0.9, 0.9]))
    return trie


# Their rows hold the number of a matcher, another one in each composition:
# test_host.py compares rows of several matchers by their texts.
ON_HOST = ("constraints/host", "constraints/monitor")
NAMES = [spec.name for spec in kit.transforms() if spec.name not in ON_HOST]


@pytest.mark.parametrize("name", NAMES)
def test_every_transform_differs_by_prompt_or_refuses(name, monkeypatch):
    """The states of rows equal those of the row's own transform, bit for bit.

    Planted: all rows begin as the first.
    """
    spec = kit.spec(name)
    names = spec.card.data
    values = {
        "transforms/logit_bias": {"bias": ((3, 1.5),)},
        "transforms/min_new_tokens": {"count": 9},
        "transforms/top_k": {"k": 2},
        "transforms/no_repeat_ngram": {"n": 2},
        "transforms/momentum": {"alpha": 0.7, "k": 2},
        "transforms/dry": {"multiplier": 0.7, "allowed_length": 3, "window": 9},
        "transforms/key_cluster": {"clusters": tuple(range(8))},
        "constraints/regex": {"pattern": "(a|b)*"},
        "constraints/grammar": {"index": 1},
        "constraints/diffusion_cfg": {"grammar": 'root ::= "a" "b"'},
        "constraints/ctgs": {"filters": {"banned": ("a",)}},
        "constraints/asap": {"memory": visited()},
        "transforms/rpg": {"decay": 0.7},
    }
    other = values.get(name, dict.fromkeys(names, 0.7))
    specs = [spec, kit.spec(name, **other), spec, kit.spec(name, **other)]
    if not names:
        with pytest.raises(MethodError, match="in more than numbers"):
            Method(transforms=([spec, kit.spec(name, bans=(1,))],))
        return
    method = Method(transforms=(specs,))
    run = kit.Run(method)
    if name in (
        *("constraints/regex", "constraints/diffusion_cfg", "constraints/asap"),
        "transforms/key_cluster",
    ):
        with pytest.raises(MethodError, match="calls of their own"):
            run.start()
        return
    monkeypatch.setattr(kit.engines.Engine, "_call", lambda *a: a[5])
    row = run.start().transform.row

    def differences(specs) -> list[bool]:
        wanted = [kit.Run(Method(transforms=(s,))).start() for s in specs]
        pick = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
        pairs = enumerate(wanted)
        return [not kit.same(pick(row, i), pick(w.transform.row, i)) for i, w in pairs]

    assert differences(specs) == [False] * 4
    assert differences([spec] * 4) == [False, True, False, True]


REJECTION = Method(
    MODEL,
    topology=kit.spec("topologies/chain"),
    verifier=Spec("verifiers/rejection"),
)


@pytest.mark.long
def test_verifiers_with_coins_of_their_own():
    """Greedy rows have the greedy text; planted: `rejection` in all rows."""
    out = results(kit.generate(REJECTION, **SETTINGS))
    assert out == alone(REJECTION, SETTINGS)
    assert out[0] == plain_alone()[0] and out[3] == plain_alone()[3]
    with pytest.MonkeyPatch.context() as patch, kit.engines.apart():
        patch.setattr(decoding.compose.greedy, "in_rows", lambda verifier: verifier)
        assert results(kit.generate(REJECTION, **SETTINGS))[3] != out[3]


def test_none_in_a_list_is_the_identity():
    """The neutral number of every keyword; planted: another one."""
    logits = jax.random.normal(jax.random.key(0), (kit.VOCAB,))
    for keyword in requests.SAMPLING:
        for value, is_same in ((None, True), (0.6 if keyword != "top_k" else 2, False)):
            (part,) = requests.sampling(1, **{keyword: [value]})
            transform = part.build(kit.PARTS)
            state = transform.init(jax.numpy.arange(8), jax.numpy.int32(8))
            got = transform.apply(state, logits, {})
            assert bool((got == logits).all()) == is_same, keyword


TOP_K = "transforms/top_k"
BAD = [
    ({"temperature": [0.5, 0.8]}, PromptError, "temperature has 2 entries for 4"),
    ({"temperature": [0.5, -1.0, 0, 0]}, MethodError, "-1.0 of prompt 1: use a number"),
    ({"temperature": [0.5, None, 0, 0]}, MethodError, "temperature=None of prompt 1"),
    ({"top_p": [0.9, 0.5]}, PromptError, "top_p has 2 entries for 4 prompts"),
    ({"top_p": [0.9, 0.5, 1.2, None]}, MethodError, r"top_p 1.2 is outside \(0, 1\]"),
    ({"top_k": [3, 0, 2, 2]}, MethodError, "top_k 0 is not"),
    ({"stop": [["a"], None]}, PromptError, "stop has lists for 2 of 4 prompts"),
    ({"stop": [["a"], [""], [], []]}, PromptError, "stop string is empty"),
    ({"stop": [["a"], [3], [], []]}, PromptError, "stop has 3: give str"),
    ({"stop_token_ids": [3, 8]}, PromptError, "token 8, outside the vocabulary of 8"),
    ({"stop_token_ids": [[1], [-1], [], []]}, PromptError, "of prompt 1 has token -1"),
    ({"stop_token_ids": [[1]]}, PromptError, "lists for 1 of 4 prompts"),
    ({"stop_token_ids": 1.5}, PromptError, "stop_token_ids has 1.5: give int"),
    (
        {"transforms": [[Spec("transforms/top_p", p=0.5)] * 3]},
        PromptError,
        "a list in transforms has 3 entries for 4 prompts",
    ),
    (
        {"transforms": [[*[Spec("transforms/top_p", p=0.5)] * 3, Spec(TOP_K, k=2)]]},
        MethodError,
        r"in more than numbers: of transforms/top_p only \['p'\]",
    ),
    ({"transforms": [[lambda *a: a[0]]]}, PromptError, "1 entries for 4"),
    ({"transforms": [[max] * 4]}, MethodError, "holds one Spec a prompt"),
]


@pytest.mark.parametrize(("fields", "error", "words"), BAD, ids=range(len(BAD)))
def test_bad_settings_are_refused_before_compilation(fields, error, words, monkeypatch):
    def compiled(*_):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(kit.engines.Engine, "_call", compiled)
    for call in (decoding.generate, decoding.stream):
        with pytest.raises(error, match=words):
            call(kit.TARGET, kit.PROMPTS, **fields)
