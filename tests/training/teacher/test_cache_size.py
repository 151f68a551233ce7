"""What a cache takes: bytes a token, windows shown again, settings, a recipe."""

import json
import types

import numpy as np
import pytest

from experiments.run_folder import RunFolder
from experiments.trainings import cache_features
from models.errors import ConfigError, DataError
from tests.decoding.drafters import agreement
from tests.training import small_trainings
from tests.training.teacher.small_cache import (
    BATCH,
    FLOAT,
    STEPS,
    lesson,
    stream,
)
from training.objectives.heads import medusa
from training.runs import draft_head_run
from training.teacher import feature_cache, sources


def test_the_size_is_said_first_and_refused(tmp_path, monkeypatch):
    told = []
    folder = tmp_path / "there"
    cache = sources.build(lesson(folder, say=told.append))
    written = sum(p.stat().st_size for p in folder.glob("*.array_record"))
    assert written <= cache.bytes(range(cache.shards)) < 2 * written
    assert "16 windows of 13 tokens, 389 bytes a token" in told[0]
    assert feature_cache.gb(cache.bytes(range(cache.shards))) in told[0]
    full = types.SimpleNamespace(free=1000)
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda path: full)
    sources.build(lesson(folder, say=told.append))  # nothing to write
    for kind in ("offline", "hybrid"):
        with pytest.raises(DataError, match=r"more, and its disk has 1 kB free: use"):
            sources.source(kind, lesson(tmp_path / "none", say=told.append))
    assert told[-1].startswith(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    sources.source("hybrid", lesson(tmp_path / "x", FLOAT._replace(keep="delete")))


def test_bytes_a_token():
    """The table of the docstring, at the width of Llama-3-8B."""
    config = types.SimpleNamespace(vocab_size=128_256, d_model=4096, n_layers=32)

    def size(taps, **settings):
        chosen = sources.Settings(**settings)
        kept = sources.layout(config, 2047, False, taps, chosen)
        return kept.size / 2048 - 4

    three = (2, 16, 29)
    assert size(("norm",)) == 8192
    assert size(three) == 32_768
    assert size(three, dtype="float32") == 65_536
    assert size(three, topk=64) == 25_096
    assert size((), topk=64) == 520
    assert size(tuple(range(32))) == 270_336


def test_bad_settings(tmp_path):
    for settings, match in (
        (FLOAT._replace(dtype="float16"), "dtype='float16'"),
        (FLOAT._replace(keep="all"), "keep='all'"),
        (FLOAT._replace(topk=agreement.VOCAB), "topk=48"),
        (FLOAT._replace(taps=("mid",)), r"taps names \['mid'\]"),
        (FLOAT._replace(shard_rows=-1), "shard_rows=-1"),
    ):
        with pytest.raises(ConfigError, match=match):
            sources.source("offline", lesson(tmp_path, settings))
    with pytest.raises(ConfigError, match="teacher='disk'"):
        sources.source("disk", lesson(tmp_path))
    lm = agreement.target()
    reads = medusa.objective(lm.model).taps
    with pytest.raises(ConfigError, match="the head makes every logit"):
        sources.source("offline", lesson(tmp_path, FLOAT._replace(topk=4), taps=reads))


def test_windows_shown_again_are_kept_once(tmp_path):
    """Four epochs of a text: its windows are those of the first, in other orders."""
    text = stream(epochs=4, recut=False)
    count = text.distinct
    assert count < STEPS * BATCH / 3
    seen = [text.numbers(step) for step in range(STEPS)]
    shown = [n for numbers in seen for n in numbers]
    assert sorted(set(shown)) == list(range(count)) == shown[:count]
    assert shown[count : 2 * count] != shown[:count]
    for step, numbers in enumerate(seen):
        batch, again = text.batch(step), text.windows(numbers)
        np.testing.assert_array_equal(batch["tokens"], again["tokens"])
        np.testing.assert_array_equal(batch["loss_mask"], again["loss_mask"])
    cut = stream(epochs=4)
    assert cut.distinct == STEPS * BATCH and cut.fingerprint != text.fingerprint
    np.testing.assert_array_equal(
        np.concatenate([text.batch(0)["tokens"], text.batch(1)["tokens"]])[:count],
        np.concatenate([cut.batch(0)["tokens"], cut.batch(1)["tokens"]])[:count],
    )
    cache = sources.open_cache(lesson(tmp_path, text=text))
    assert cache.rows == count


def curve(workdir) -> np.ndarray:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


@pytest.mark.long
def test_a_recipe_trains_from_a_cache(small, corpus, tmp_path, capsys):
    """The stage makes what `heads.Training` reads; the losses are the online ones."""
    c = small_trainings.recipe("eagle3", corpus)
    c.draft_vocab, c.objective.steps, c.train.evaluate_every = 64, 1, 0
    online = tmp_path / "online"
    draft_head_run.Training(c, online, small).fit()
    assert not (online / "features").exists()
    c.teacher, c.features.dtype, c.features.shard_rows = "offline", "float32", 5
    cache_features.run(c, RunFolder(tmp_path), small)
    assert "16 windows of 17 tokens" in capsys.readouterr().out
    folder, told = tmp_path / "heads" / "eagle3-s0", []
    times = {p.name: p.stat().st_mtime_ns for p in (folder / "features").iterdir()}
    assert len(times) == 1 + 4
    draft_head_run.Training(c, folder, small).fit(told.append)
    assert "; 0 B to be written" in told[0]
    for path in (folder / "features").iterdir():
        assert path.stat().st_mtime_ns == times[path.name]
    assert len(curve(online)) == 8
    np.testing.assert_allclose(curve(folder), curve(online), rtol=1e-6)
