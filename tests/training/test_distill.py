"""Text of the target: its order, its bytes after a kill, and what it depends on."""

import json

import numpy as np
import pytest

import decoding
from decoding import Method
from decoding.conformance import kit
from decoding.loops import engines
from models.errors import DataError
from training import distill
from training.data import text_corpus

SETTINGS = distill.Settings(max_new_tokens=10, temperature=0.8, seed=3)
PROMPTS = [*kit.PROMPTS, [5, 5], [6], [4, 3, 2]]
LM = kit.model(0, -1.0)  # whose texts end now and then


def write(path, **fields):
    return distill.distill(LM, PROMPTS, path, SETTINGS, **{"batch": 2, **fields})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "text.jsonl"
    assert write(path) == len(PROMPTS)
    return path.read_bytes()


def test_texts_are_the_target_s_in_order(whole):
    rows = [json.loads(line) for line in whole.splitlines()]
    out = decoding.generate(LM, PROMPTS, "plain", 10, temperature=0.8, seed=3)
    for i, (row, prompt) in enumerate(zip(rows, PROMPTS)):
        assert row["index"] == i and row["prompt_tokens"] == len(prompt)
        assert row["tokens"] == [*prompt, *out.tokens[i]]
        assert row["ended"] == (out.tokens[i][-1] == kit.EOS)
    assert {row["ended"] for row in rows} == {True, False}


def test_a_killed_run_goes_on_with_the_same_bytes(whole, tmp_path, monkeypatch):
    """Killed when some texts are there, and in the middle of a line."""
    path = tmp_path / "text.jsonl"
    sound = engines.Engine.advance
    calls = []

    def advance(self, *arguments, **fields):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return sound(self, *arguments, **fields)

    monkeypatch.setattr(engines.Engine, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    monkeypatch.setattr(engines.Engine, "advance", sound)
    done = len(path.read_bytes().splitlines())
    assert path.read_bytes() == b"".join(whole.splitlines(True)[:done])
    assert 0 < done < len(PROMPTS) - 1
    with path.open("ab") as file:
        file.write(whole.splitlines()[done][:9])
    assert write(path) == len(PROMPTS) - done
    assert path.read_bytes() == whole
    assert write(path) == 0


@pytest.mark.long
def test_bytes_depend_on_neither_batch_nor_method(whole, tmp_path):
    assert write(tmp_path / "a.jsonl", batch=4) == len(PROMPTS)
    assert (tmp_path / "a.jsonl").read_bytes() == whole
    chain = Method(
        decoding.Spec("drafters/model"), topology=kit.spec("topologies/chain")
    )
    write(tmp_path / "b.jsonl", method=chain, drafts={"draft": kit.DRAFT})
    assert (tmp_path / "b.jsonl").read_bytes() == whole


def test_fault_keys_of_the_batch_s_rows(whole, tmp_path, monkeypatch):
    """Planted: a text takes the key of its row, so that the batch's size shows."""
    sound = engines.request_keys

    def keys(seed, prompts, n):
        first = sound(seed, 2, n)
        return first[np.arange(prompts) % 2]

    monkeypatch.setattr(engines, "request_keys", keys)
    write(tmp_path / "text.jsonl")
    assert (tmp_path / "text.jsonl").read_bytes() != whole


def test_another_text_is_refused(whole, tmp_path):
    path = tmp_path / "text.jsonl"
    write(path)
    with pytest.raises(DataError, match="seed: 3 there, 4 here"):
        distill.distill(LM, PROMPTS, path, SETTINGS._replace(seed=4))
    with pytest.raises(DataError, match="target"):
        distill.distill(kit.DRAFT, PROMPTS, path, SETTINGS)
    with pytest.raises(DataError, match="count"):
        distill.distill(LM, PROMPTS[:-1], path, SETTINGS)
    with pytest.raises(DataError, match="outside the vocabulary"):
        distill.distill(LM, [[8]], tmp_path / "other.jsonl", SETTINGS)
    with pytest.raises(DataError, match="batch=0"):
        distill.distill(LM, PROMPTS, path, SETTINGS, batch=0)


def test_what_training_reads(whole, tmp_path):
    """The answer and the EOS that ended it may be predicted, the prompt may not."""
    path = tmp_path / "text.jsonl"
    path.write_bytes(whole)
    found = distill.read(path)
    for text, row, prompt in zip(found, map(json.loads, whole.splitlines()), PROMPTS):
        assert len(text.mask) == len(text.tokens) + 1
        assert not text.mask[: len(prompt)].any() and text.mask[len(prompt) : -1].all()
        assert text.mask[-1] == row["ended"]
        end = [kit.EOS] if row["ended"] else []
        assert [*text.tokens, *end] == row["tokens"]
    corpus = text_corpus.Corpus(
        [t.tokens for t in found], kit.EOS, [t.mask for t in found]
    )
    stream = text_corpus.Stream(corpus, (text_corpus.Stage(3, 2, 8),), seed=1)
    marked = corpus.flat * np.where(corpus.mask, 1, -1)
    other = text_corpus.Corpus([t.tokens for t in found], kit.EOS)
    other.flat = marked
    signed = text_corpus.Stream(other, (text_corpus.Stage(3, 2, 8),), seed=1)
    for i in range(3):
        batch, both = stream.batch(i), signed.batch(i)["tokens"]
        np.testing.assert_array_equal(batch["tokens"], np.abs(both))
        inside = both != 0  # of token 0 the sign does not show
        np.testing.assert_array_equal(batch["loss_mask"][inside], (both > 0)[inside])
    with pytest.raises(DataError, match="all zero"):
        none = [np.zeros_like(t.mask) for t in found]
        text_corpus.Corpus([t.tokens for t in found], kit.EOS, none)


def test_the_command(tmp_path, monkeypatch):
    """Prompts of both forms; a line without any is named."""
    monkeypatch.setattr(distill.models, "load", lambda name, mesh: LM)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "abc"}\n\n{"tokens": [4]}\n')
    flags = [f"--prompts={prompts}", f"--out={out}", "--max_new_tokens=4"]
    assert distill.main(["--model=toy", *flags, "--batch=2"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["tokens"][: row["prompt_tokens"]] for row in rows] == [[0, 1, 2], [4]]
    prompts.write_text('{"text": "abc"}\n')
    assert distill.main(["--model=toy", *flags]) == 2
