"""`generate` and `stream` as people call them: settings per prompt, pieces, names."""

import dataclasses
import inspect
import types

import numpy as np
import pytest

import decoding
import models
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.serving import requests, streaming
from models.errors import MethodError, PromptError

LOOKUP = Method(kit.spec("drafters/prompt_lookup"))
SHORT = [3, 40, 17, 9]


@pytest.mark.long
def test_lengths_per_prompt_are_those_of_calls_of_one_prompt():
    """Under drafts, at a seed a prompt; planted: another order of the lengths."""
    seeds = [5, 6, 7, 8]
    together = kit.generate(LOOKUP, 0.8, max_new_tokens=SHORT, seed=seeds).tokens
    for i, prompt in enumerate(kit.PROMPTS):
        (alone,) = kit.generate(
            LOOKUP, 0.8, prompts=[prompt], max_new_tokens=SHORT[i], seed=seeds[i]
        ).tokens
        assert together[i] == alone and len(alone) == SHORT[i]
    turned = kit.generate(LOOKUP, 0.8, max_new_tokens=SHORT[::-1], seed=seeds)
    assert turned.tokens != together


def test_finish_reasons():
    """EOS, a stop string, or the limit, whichever ended the text."""
    ending = kit.generate(LOOKUP, 0.8, lm=kit.model(10, 0.0), max_new_tokens=4)
    for text, reason in zip(ending.tokens, ending.finish_reason):
        assert reason == ("eos" if text[-1] == kit.EOS else "length")
    assert len(set(ending.finish_reason)) == 2  # planted: one reason for all
    stopped = kit.generate(LOOKUP, 0.8, stop="ab", n=2)
    for texts, whole, reasons in zip(
        stopped.texts, stopped.tokens, stopped.finish_reason
    ):
        for text, tokens, reason in zip(texts, whole, reasons):
            spelt = kit.TARGET.tokenizer.decode(tokens)
            assert reason == ("stop" if "ab" in spelt else "length")
            assert "ab" not in text


def test_sampling_keywords_are_transforms():
    """In HF's order, before and after the temperature; planted: another k."""
    values = {"repetition_penalty": 1.3, "top_k": 4, "top_p": 0.8, "min_p": 0.05}
    specs = (
        Spec("transforms/repetition_penalty", penalty=1.3),
        Spec("transforms/top_k", k=4),
        Spec("transforms/top_p", p=0.8),
        Spec("transforms/min_p", p=0.05),
    )
    assert tuple(requests.sampling(**values)) == specs
    short = kit.generate(LOOKUP, 0.8, **values)
    assert short.tokens == kit.generate(LOOKUP, 0.8, transforms=specs).tokens
    assert kit.generate(LOOKUP, 0.8, **{**values, "top_k": 1}).tokens != short.tokens


def undocumented(doc: str, names) -> list[str]:
    """Names that have no entry of their own in a docstring."""
    entries = inspect.cleandoc(doc)  # Python 3.13 compiles the margin away
    return [name for name in names if f"\n    {name}: " not in entries]


def test_help_documents_every_argument_and_field():
    """And `stream` takes what `generate` takes; planted: an entry that is left out."""
    arguments = inspect.signature(decoding.generate).parameters
    doc = decoding.generate.__doc__
    assert not undocumented(doc, arguments)
    assert undocumented(doc.replace("  stop_token_ids: ", ""), arguments)
    fields = [field.name for field in dataclasses.fields(decoding.Output)]
    assert not undocumented(decoding.Output.__doc__, fields)
    streamed = inspect.signature(decoding.stream).parameters
    assert all(arguments[name] == streamed[name] for name in streamed)
    whole_texts = {"loop", "top_logprobs", "prompt_logprobs", "echo", "reward"}
    assert set(arguments) - set(streamed) == whole_texts
    settings = {f.name: f.default for f in dataclasses.fields(requests.Settings)}
    assert set(settings) == set(arguments) - {"lm", "loop"}
    for name in set(settings) - {"prompts"}:
        assert settings[name] == arguments[name].default


class Streaming(kit.Letters):
    """The kit's tokenizer, with the decoder that streams need."""

    def stream(self):
        return types.SimpleNamespace(
            push=lambda token: self.decode([token]), flush=lambda: ""
        )


LM = types.SimpleNamespace(**{**vars(kit.TARGET), "tokenizer": Streaming()})


@pytest.mark.parametrize("stop", [None, "ab", ("abc", "cd")])
def test_pieces_make_up_the_texts(stop):
    """Of each row, in order, no piece with a part of a stop string."""
    settings = {"method": LOOKUP, "max_new_tokens": SHORT, "temperature": 0.8}
    settings |= {"n": 2, "seed": 3, "stop": stop}
    whole = decoding.generate(LM, kit.PROMPTS, **settings)
    texts = [["", ""] for _ in kit.PROMPTS]
    tokens = [[[], []] for _ in kit.PROMPTS]
    reasons = [[None, None] for _ in kit.PROMPTS]
    pieces = list(decoding.stream(LM, kit.PROMPTS, **settings))
    for piece in pieces:
        assert reasons[piece.prompt][piece.sample] is None, "a piece after the last"
        texts[piece.prompt][piece.sample] += piece.text
        tokens[piece.prompt][piece.sample] += piece.tokens
        reasons[piece.prompt][piece.sample] = piece.finish_reason
    assert texts == whole.texts and tokens == whole.tokens
    assert reasons == whole.finish_reason
    assert len(pieces) > 2 * len(kit.PROMPTS)  # planted: one piece at the end


def test_fault_pieces_that_hold_nothing_back(monkeypatch):
    monkeypatch.setattr(streaming, "undecided", lambda text, stops: 0)
    settings = {"method": LOOKUP, "temperature": 0.8, "stop": ("ab", "cd", "ed")}
    texts = [""] * len(kit.PROMPTS)
    for piece in decoding.stream(LM, kit.PROMPTS, **settings):
        texts[piece.prompt] += piece.text
    assert texts != decoding.generate(LM, kit.PROMPTS, **settings).texts


@pytest.mark.parametrize(
    ("text", "stops", "size"),
    [
        ("xyab", ("abc",), 2),
        ("xyab", ("bcd", "abc"), 2),
        ("xaba", ("abab",), 3),
        ("xyz", ("abc",), 0),
        ("ab", (), 0),
        ("", ("a",), 0),
    ],
)
def test_what_may_become_a_stop_string(text, stops, size):
    assert streaming.undecided(text, stops) == size


def test_a_model_by_name_with_heads(monkeypatch):
    """The method follows the heads; `plain` can still be asked for."""
    loaded = types.SimpleNamespace(
        **vars(kit.TARGET),
        heads=types.SimpleNamespace(folder="f", params=kit.heads("drafters/medusa")),
    )
    config = Method(
        kit.spec("drafters/medusa"), topology=kit.spec("topologies/static")
    ).to_config()
    monkeypatch.setattr(requests.native, "method", lambda folder: config)
    monkeypatch.setattr(requests.models, "load", lambda name: loaded)
    requests.named.cache_clear()
    out = decoding.generate("some", kit.PROMPTS, max_new_tokens=8)
    assert out.stats.candidates > 0
    plain = decoding.generate("some", kit.PROMPTS, "plain", max_new_tokens=8)
    assert plain.stats.candidates == 0 and plain.tokens == out.tokens
    requests.named.cache_clear()


def test_models_generate_and_print_a_line():
    lm = models.load("tiny")
    assert repr(lm) == "Loaded(llama, 5.5M params, float32, 4096 tokens)"
    heads = dataclasses.replace(lm, heads=models.io.Heads("folder", {}))
    assert repr(heads).endswith("heads folder)")
    out = kit.generate(Method(), 0.0, max_new_tokens=4)
    assert repr(out) == "Output(4 prompts, 16 tokens, 1.00 a call, ARGMAX)"
    assert "\n" not in repr(LOOKUP.drafter)


def test_conversations_are_prompts():
    """By the chat template of the model."""
    spelt = [1, 2, 3]
    lm = types.SimpleNamespace(**vars(kit.TARGET), chat=lambda messages: spelt)
    messages = [{"role": "user", "content": "?"}]
    both = requests.encode(lm, [messages, [4, 5], np.array([6])])
    assert both == [spelt, [4, 5], [6]]
    with pytest.raises(PromptError, match=r"pass \[messages\]"):
        requests.encode(lm, messages)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"max_new_tokens": [3, 4]}, PromptError, "2 entries for 4 prompts"),
        ({"max_new_tokens": [3, 4, 0, 2]}, PromptError, "max_new_tokens=0"),
        ({"method": "token_recycle"}, MethodError, "mean 'token_recycling'"),
        ({"transforms": [Spec("transforms/top_p", pp=1)]}, MethodError, "mean 'p'"),
        ({"transforms": [Spec("transforms/topp")]}, MethodError, "transforms/top_p'"),
        ({"top_k": 0}, MethodError, "leave top_k out"),
    ],
)
def test_bad_settings(fields, error, words):
    with pytest.raises(error, match=words):
        decoding.generate(kit.TARGET, kit.PROMPTS, **fields)
    with pytest.raises(error, match=words):
        decoding.stream(kit.TARGET, kit.PROMPTS, **fields)  # before the first piece
