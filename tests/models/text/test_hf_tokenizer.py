"""Tokenizers: HF's ids, the bytes of each id, streaming, chat templates."""

import json
import pathlib

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models as kinds

from models import errors, packaged
from models.text import chat_template, hf_tokenizer

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "models"
NAMES = ["llama2", "llama3"]  # byte-fallback and byte-level BPE


def make(name):
    expected = json.loads((GOLDEN / f"{name}_tokenizer.json").read_text())
    return hf_tokenizer.load(GOLDEN / name, (2,)), expected


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_text(name):
    tok, expected = make(name)
    assert [tok.encode(text) for text in expected["texts"]] == expected["ids"]
    for text, ids in zip(expected["texts"], expected["ids"]):
        assert tok.encode(text, add_special=False) == ids[1:]
        assert tok.decode(ids) == text
        assert tok.decode(np.array(ids)) == text


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_every_id(name):
    tok, expected = make(name)
    table = tok.token_bytes()
    assert len(table) == tok.vocab_size
    assert tok.specials == {0, 1, 2, 3, 4}
    assert all(table[i] == b"" for i in tok.specials)
    for text, ids in zip(expected["texts"], expected["ids"]):
        joined = b"".join(table[i] for i in ids)
        assert joined.removeprefix(b" " if name == "llama2" else b"") == text.encode()
    assert {bytes([i]) for i in range(256)} <= set(table)
    assert len(tok.token_bytes(400)) == 400 and tok.token_bytes(400)[-1] == b""


@pytest.mark.parametrize("name", NAMES)
def test_stream_never_splits_a_character(name):
    tok, expected = make(name)
    for text, ids in zip(expected["texts"], expected["ids"]):
        stream = tok.stream()
        parts = [stream.push(i) for i in ids]
        assert "".join(parts) + stream.flush() == text
        assert "�" not in "".join(parts)
        assert "" in parts[1:] or name == "llama3" or text.isascii()
    # An unfinished character is held back, and is U+FFFD at the end.
    ids = tok.encode("é🙂", add_special=False)
    stream = tok.stream()
    text = "".join(stream.push(i) for i in ids[:-1])
    assert text == "é" and stream.flush() == "�"


def test_random_ids_stream_as_they_decode():
    tok, _ = make("llama3")
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.integers(0, tok.vocab_size, 60)
        stream = tok.stream()
        text = "".join(stream.push(i) for i in ids) + stream.flush()
        assert text == tok.decode(ids)


def test_ids_past_the_tokenizer_are_silent():
    tok, _ = make("llama2")
    assert tok.stream().push(tok.vocab_size + 5) == ""


def test_unknown_kinds_of_tokenizer_are_named():
    inner = tokenizers.Tokenizer(kinds.WordLevel({"a": 0}, unk_token="a"))
    inner.decoder = decoders.WordPiece()
    with pytest.raises(errors.CheckpointError, match="WordPiece"):
        hf_tokenizer.Tokenizer(inner).token_bytes()


def words(*spelled: str, unknown: str = "?"):
    """A tokenizer whose token i is the i-th word."""
    vocabulary = {word: i for i, word in enumerate(spelled)}
    return hf_tokenizer.Tokenizer(
        tokenizers.Tokenizer(kinds.WordLevel(vocabulary, unk_token=unknown))
    )


def refused(draft, target, **more) -> str:
    try:
        hf_tokenizer.check_same("draft", draft, target, **more)
    except errors.DecodaxError as error:
        return str(error)
    return ""


def test_a_draft_s_tokens_must_be_the_target_s(monkeypatch):
    """By every token's id: sizes may be equal. An error names how many, and one."""
    target = words("?", "a", "b", "c", "d")
    assert not refused(target, target) and not refused(None, target)
    assert not refused(words("?", "a", "b", "c", "d"), target)
    swapped = words("?", "a", "c", "b", "d")
    assert "2 tokens do not" in refused(swapped, target)
    assert "'b' for one (id 3 there, 2 in the target's)" in refused(swapped, target)
    spelled = words("?", "a", "b", "c", "e")
    assert "2 tokens do not" in refused(spelled, target)
    assert "'d' for one (id none there, 4 in" in refused(spelled, target)
    added = words("?", "a", "b", "c", "d")
    added.inner.add_special_tokens(["<|end|>"])
    assert not refused(added, target)  # families rename such tokens
    with pytest.raises(errors.MethodError):
        hf_tokenizer.check_same("draft", swapped, target, errors.MethodError)
    by_size = property(lambda own: str(own.inner.get_vocab_size()))
    monkeypatch.setattr(
        hf_tokenizer.Tokenizer, "digest", by_size
    )  # planted: sizes alone
    assert not refused(swapped, target) and not refused(spelled, target)


def test_vocabularies_are_read_once(monkeypatch):
    """However often a target meets a draft; and not at all where they share one."""
    target, draft = words("?", "a", "b"), words("?", "a", "b")
    sound, read = hf_tokenizer.Tokenizer.words, []

    def words_of(own):
        read.append(own)
        return sound(own)

    monkeypatch.setattr(hf_tokenizer.Tokenizer, "words", words_of)
    assert not refused(target, target) and not read
    for _ in range(5):
        assert not refused(draft, target)
    assert read == [draft, target]


def test_chat_equals_transformers():
    tok, expected = make("llama3")
    assert tok.chat(expected["chat"]) == expected["chat_ids"]


def test_chat_without_template_or_with_wrong_roles():
    tok, expected = make("llama2")
    with pytest.raises(errors.PromptError, match="no chat template"):
        tok.chat(expected["chat"])
    tok, _ = make("llama3")
    with pytest.raises(errors.PromptError, match="unknown role judge"):
        tok.chat([{"role": "judge", "content": "?"}])


def test_the_template_of_tiny(tmp_path):
    """Comments, then code; what has been said stays as it is, and is saved.

    Planted: a role that the template would pass over.
    """
    folder = packaged.folder("tiny")
    tok = hf_tokenizer.load(folder, (0,))
    said = [
        {"role": "system", "content": "Python only.\n\nNo tests."},
        {"role": "user", "content": " Add two numbers\n"},
        {"role": "assistant", "content": "def add(a, b):\n    return a + b"},
        {"role": "user", "content": "And 'subtract' <them>."},
    ]
    text = tok.chat_text(said)
    assert text == (
        "# Python only.\n#\n# No tests.\n# Add two numbers\n"
        "def add(a, b):\n    return a + b\n\n# And 'subtract' <them>.\n"
    )
    assert tok.decode(tok.chat(said)) == text
    for i in range(1, 4):  # training's masks need beginnings that stay
        assert text.startswith(tok.chat_text(said[:i]))
    tok.save(tmp_path)
    assert hf_tokenizer.load(tmp_path, (0,)).chat(said) == tok.chat(said)
    with pytest.raises(errors.PromptError, match="unknown role tool"):
        tok.chat([*said, {"role": "tool", "content": "3"}])


def test_template_spellings(tmp_path):
    tok, _ = make("llama3")
    tok.inner.save(str(tmp_path / "tokenizer.json"))
    named = [
        {"name": "tool_use", "template": "x"},
        {"name": "default", "template": "y"},
    ]
    settings = {"chat_template": named, "bos_token": {"content": "<s>"}}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(settings))
    assert hf_tokenizer.load(tmp_path, ()).template == "y"
    path.write_text(json.dumps({**settings, "chat_template": "{{ bos_token }}"}))
    assert hf_tokenizer.load(tmp_path, ()).chat([]) == [1]


def test_template_features():
    """What published templates use."""
    text = chat_template.render(
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}",
        [{"a": "é<"}, {"b": 1}],
        {},
    )
    assert text == '{"a": "é<"}4True'


HARMONY = """
{%- macro kind(spec) -%}
    {%- if spec.type == "array" -%}{{- kind(spec['items']) + "[]" }}
    {%- else -%}{{- spec.type }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Reasoning: " }}
{{- reasoning_effort if reasoning_effort is defined else "medium" }}{{ "<|end|>" }}
{%- for tool in tools or [] -%}
    {{- tool.name + "(" + kind(tool.parameters) + ")" }}
{%- endfor -%}
{%- set last = namespace(name=none) -%}
{%- for message in messages -%}
    {%- if message.role == "tool" -%}
        {%- if last.name is none -%}{{- raise_exception("no call") }}{%- endif -%}
        {{- "<|start|>functions." + last.name + "<|message|>" }}
        {{- message.content|tojson + "<|end|>" }}
    {%- elif "tool_calls" in message -%}
        {%- if "thinking" in message -%}{{- message.thinking }}{%- endif -%}
        {%- set last.name = message.tool_calls[0].function.name -%}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
    {%- for later in messages[loop.index:] -%}{{- "." }}{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" }}{%- endif -%}
"""


def test_constructs_of_gpt_oss_s_harmony():
    """Recursive macros, a namespace over a loop, slices, fields that may be missing."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    said = [{"role": "user", "content": "1?"}, call, {"role": "tool", "content": "<3>"}]
    grid = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    tools = [{"name": "f", "parameters": grid}]
    variables = {"tools": tools, "reasoning_effort": "high"}
    assert chat_template.render(HARMONY, said, variables) == (
        "<|start|>system<|message|>Reasoning: high<|end|>f(number[][])"
        '<|start|>user<|message|>1?<|end|>...<|start|>functions.f<|message|>"<3>"<|end|>'
        "<|start|>assistant"
    )
    assert "Reasoning: medium" in chat_template.render(HARMONY, said[:1], {})
    with pytest.raises(errors.PromptError, match="no call"):
        chat_template.render(HARMONY, said[2:], {})


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% if %}",
        "{{ 10 ** 10 ** messages }}",
    ],
)
def test_templates_are_sandboxed(template):
    with pytest.raises(errors.PromptError):
        chat_template.render(template, [{"role": "user", "content": ""}], {})
