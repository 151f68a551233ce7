"""The command that makes a datastore of states."""

import json

import numpy as np
import pytest

import decoding
import models
from decoding import Spec
from decoding.text_lookup import key_store
from experiments import knn_datastore as command
from models import base
from models.errors import MethodError
from tests.models.small import CONFIG, LM, PARAMS, random_tokens


def places(length: int, size: int) -> list[tuple[int, int]]:
    """(place, tokens read before it) of the entries of a text 0, 1, 2, ..."""
    found = []
    for tokens, begin, after in command.windows([range(length)], size):
        assert len(tokens) <= size
        for at, following in enumerate(after, begin):
            assert following == tokens[at] + 1
            found.append((tokens[at], at))
    return found


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8, 9, 12, 31])
def test_windows(length, size):
    """Every token but the last has one entry, half a window or the text behind it."""
    found = places(length, size)
    assert [place for place, _ in found] == list(range(length - 1))
    assert all(before >= min(place, size // 2) for place, before in found)


def test_as_many_entries_as_asked():
    texts = [[1] * 5, [2], [3] * 4, [4] * 9]
    assert command.taken(texts, 0) == texts
    for most in (1, 4, 5, 7, 8, 100):
        cut = command.taken(texts, most)
        assert sum(len(text) - 1 for text in cut) == min(most, 15)


def test_keys_are_the_states_of_decoding():
    """Of the block that decoding runs; planted: those of the token before."""
    lm = models.Loaded(LM, PARAMS)
    texts = random_tokens(3, 2, 12).tolist() + [[7]]
    keys, values = command.entries(lm, texts, 16)
    assert (keys.dtype, values.dtype) == (np.float16, np.int32)
    assert values.tolist() == [t for text in texts for t in text[1:]]
    tokens = np.asarray(texts[:2], np.int32)
    cache, counts = LM.init_cache(2, 16), np.asarray([12, 12], np.int32)
    block = base.causal_block(tokens, cache.length, counts, 16)
    hidden = LM(PARAMS, cache, block, (base.FFN_INPUT,))[0].hidden[base.FFN_INPUT]
    want = np.asarray(hidden)[:, :-1].reshape(-1, CONFIG.d_model)
    np.testing.assert_allclose(keys, want, rtol=2e-3, atol=2e-3)
    assert np.abs(keys[1:] - want[:-1]).max() > 0.1


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("def main():\n    return 0\n" * 9)
    out = tmp_path / "store"
    flags = [f"--data={tmp_path}", f"--out={out}", "--window=32"]
    assert command.main([*flags, "--max_tokens=40"]) == 0
    assert "40 entries" in capsys.readouterr().out
    about = json.loads((out / "meta.json").read_text())
    assert (about["model"], about["tokens"], about["dtype"]) == ("tiny", 40, "float32")
    lm = models.load("tiny")
    store = key_store.load(out, lm)
    said = decoding.generate(
        lm,
        ["def main():\n    return"],
        max_new_tokens=8,
        transforms=[Spec("transforms/knn_lm", weight=0.99)],
        drafts=store.drafts,
        streams=store.streams,
        width="paper",
    )
    assert said.texts[0].startswith(" 0\ndef main")
    with pytest.raises(MethodError, match="'tiny' in float32"):
        key_store.load(out, models.load("tiny-draft"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no data"),
        (["--data=none"], "--data=none does not exist"),
        (["--data=README.md", "--window=1"], "--window=1"),
        (["--data=README.md", "--max_tokens=-1"], "--max_tokens=-1"),
        (["--data=README.md", "--windows=8"], "--window"),
    ],
)
def test_mistakes(flags, words, tmp_path, capsys):
    assert command.main([*flags, f"--out={tmp_path}/store"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_text_of_one_token(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a")
    flags = [f"--data={tmp_path}/a.txt", f"--out={tmp_path}/store"]
    assert command.main(flags) == 2
    assert "would be empty" in capsys.readouterr().err
