"""Offline and hybrid teachers: the online losses, and nobody else's cache."""

import json
import shutil
import signal
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.errors import ConfigError, DataError
from models.heads import eagle3 as layer
from tests.decoding.drafters import agreement
from tests.training.teacher.small_cache import (
    AT_ONCE,
    BATCH,
    FLOAT,
    STEPS,
    WINDOW,
    lesson,
    stream,
)
from training import losses
from training.data import text_corpus
from training.loop import train_step
from training.objectives.heads import eagle3
from training.objectives.language_models import draft_model
from training.teacher import feature_cache, outputs, sources


@pytest.fixture(scope="module")
def trainer():
    """`curve(kind, lesson, params=None) -> losses` of EAGLE-3 over the whole stream.

    One program for the online teacher, and one for all caches of a dtype.
    """
    lm = agreement.target()
    own = eagle3.objective(lm.model, steps=2)
    optimizer = optax.adam(0.01)
    first = eagle3.init(jax.random.key(0), lm.model, lm.params)
    programs = {}

    def curve(kind, lesson, frozen=None):
        rows, target = sources.source(kind, lesson)
        key = (kind == sources.ONLINE, lesson.settings.topk)
        if key not in programs:
            step = train_step.make_step(own, optimizer, AT_ONCE, target=target)
            programs[key] = jax.jit(step)
        state = train_step.TrainState(jnp.int32(0), first, optimizer.init(first), None)
        found = []
        for _ in range(STEPS):
            state, metrics = programs[key](state, next(rows), frozen or lm.params)
            found.append(float(metrics["loss"]))
        return np.array(found)

    return curve


@pytest.fixture(scope="module")
def online(trainer):
    return trainer("online", lesson("nowhere"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A whole float32 cache; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("features") / "cache"
    sources.build(lesson(folder))
    return folder


def copied(built, tmp_path):
    return shutil.copytree(built, tmp_path / "copy")


def test_offline_and_hybrid_losses_are_the_online_ones(
    trainer, online, built, tmp_path
):
    """To 1e-6 in float32 and 1e-3 in bfloat16, over four updates."""
    assert len(set(online)) == STEPS
    kept, dropped = (tmp_path / name for name in ("kept", "dropped"))
    other = FLOAT._replace(keep="delete")
    for kind, one in (
        ("offline", lesson(built)),
        ("hybrid", lesson(kept)),  # from nothing, a shard at a time
        ("hybrid", lesson(dropped, other)),
    ):
        np.testing.assert_allclose(trainer(kind, one), online, rtol=1e-6)
    assert not dropped.exists()
    names = [p.name for p in sorted(built.iterdir())]
    assert names == [p.name for p in sorted(kept.iterdir())]
    # What one hybrid run kept is there for the next, and whole for an offline one.
    assert sources.open_cache(lesson(kept)).there.all()
    half = copied(built, tmp_path)
    (half / "000001.array_record").unlink()
    np.testing.assert_allclose(trainer("hybrid", lesson(half, other)), online, 1e-6)
    assert not (half / "000001.array_record").exists()
    rounded = lesson(tmp_path / "bf16", FLOAT._replace(dtype="bfloat16"))
    found = trainer("offline", rounded)
    np.testing.assert_allclose(found, online, rtol=1e-3)
    assert np.abs(found / online - 1).max() > 1e-6


def altered(built, tmp_path, change):
    """The cache with every state changed, as a wrong writer would have left it."""
    whole = sources.open_cache(lesson(built))
    other = tmp_path / "altered"
    cache = feature_cache.Cache(other, whole.about, whole.layout, whole.rows, 3)
    for shard in range(whole.shards):
        rows = []
        for number in whole.numbers(shard):
            tokens = stream().windows([number])["tokens"][0]
            said = whole.read(number, tokens)
            mask = np.ones(len(tokens), bool)
            said = {name: change(x) for name, x in said.items()}
            rows.append({"tokens": tokens, "loss_mask": mask, **said})
        cache.write(shard, rows)
    return other


def test_the_comparison_sees_states_that_are_not_these(
    trainer, online, built, tmp_path
):
    """Planted: a cache one position late, and one of a target a hundredth away."""
    same = altered(built, tmp_path / "same", lambda x: x)
    np.testing.assert_allclose(trainer("offline", lesson(same)), online, rtol=1e-6)
    late = altered(built, tmp_path, lambda x: np.roll(x, 1, 0))
    off = np.abs(trainer("offline", lesson(late)) / online - 1)
    assert off.max() > 1e-5
    near = agreement.target()
    near = types.SimpleNamespace(**vars(near))
    near.params = agreement.stirred(near.params, 0.01)
    other = tmp_path / "other"
    sources.build(lesson(other, lm=near))
    told = json.loads((built / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(told))  # past the fingerprint
    off = np.abs(trainer("offline", lesson(other)) / online - 1)
    assert off.max() > 1e-5


def test_the_step_runs_no_layer_of_the_target(trainer, online, built):
    """With layers of NaN: offline reads embedding and head alone, online does not."""
    lm = agreement.target()
    broken = {
        name: jax.tree.map(lambda x: x * np.nan, x) if "layer" in name else x
        for name, x in lm.params.items()
    }
    assert any("layer" in name for name in broken)
    found = trainer("offline", lesson(built), broken)
    np.testing.assert_allclose(found, online, rtol=1e-6)
    found = trainer("online", lesson(built), broken)
    assert not np.isclose(found, online).any()  # planted


def test_an_objective_cannot_tell(built):
    """The teacher of a cache is the online one, leaf by leaf and in its structure."""
    lm = agreement.target()
    taps = layer.taps(lm.config)
    rows, target = sources.source("offline", lesson(built))
    batch = next(rows)
    there = jax.jit(outputs.teacher(lm.model, taps))(lm.params, batch)
    here = target(lm.params, batch)
    assert jax.tree.structure(there) == jax.tree.structure(here)
    for a, b in zip(jax.tree.leaves(there), jax.tree.leaves(here)):
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert a.dtype == b.dtype


class Killed(BaseException):
    pass


def test_a_killed_build_goes_on(built, tmp_path, monkeypatch):
    """Ended within the third shard: those before are kept, the rest has the bytes of a
    build that went through."""
    folder = tmp_path / "cut"
    whole, calls = sources.FeatureWriter.read, []

    def read(self, numbers):
        calls.append(numbers)
        if len(calls) == 3:
            raise Killed
        return whole(self, numbers)

    monkeypatch.setattr(sources.FeatureWriter, "read", read)
    with pytest.raises(Killed):
        sources.build(lesson(folder))
    first = (folder / "000000.array_record").stat()
    shards = sorted(p.name for p in folder.glob("*.array_record"))
    assert shards == ["000000.array_record", "000001.array_record"]
    (folder / ".000002.array_record.1.part").write_bytes(b"what SIGKILL leaves")
    sources.build(lesson(folder))
    assert (folder / "000000.array_record").stat().st_mtime_ns == first.st_mtime_ns
    for path in built.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert len(list(folder.iterdir())) == len(list(built.iterdir()))
    assert sources.open_cache(lesson(folder)).layout.size == 13 * (4 + 1 + 3 * 32 * 4)


@pytest.mark.long
def test_sigkill(built, tmp_path):
    """A process that ends itself within the fourth shard, and the command again."""
    code = f"""
import os, signal, jax
from tests.training.teacher.small_cache import lesson
from training.teacher import sources
whole, calls = sources.FeatureWriter.read, []
def read(self, numbers):
    calls.append(numbers)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, numbers)
sources.FeatureWriter.read = read
sources.build(lesson({str(tmp_path)!r}))
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (
        sorted(sources.open_cache(lesson(tmp_path)).missing())
        == [False] * 3 + [True] * 3
    )
    sources.build(lesson(tmp_path))
    for path in built.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_damaged_shards_are_found(built, tmp_path):
    """A cut one is made anew; a turned bit is seen when read, and by the stage."""
    folder = copied(built, tmp_path)
    cut, turned = (folder / f"00000{i}.array_record" for i in (1, 2))
    good = cut.read_bytes(), turned.read_bytes()
    cut.write_bytes(good[0][: len(good[0]) // 2])
    cache = sources.open_cache(lesson(folder))
    assert cache.missing().tolist() == [i == 1 for i in range(cache.shards)]
    wrong = bytearray(good[1])
    wrong[5000] ^= 1
    turned.write_bytes(wrong)
    numbers = sources.open_cache(lesson(folder)).numbers(2)
    with pytest.raises(DataError, match=r"000002\.array_record is damaged"):
        for number in numbers:
            tokens = stream().windows([number])["tokens"][0]
            sources.open_cache(lesson(folder)).read(number, tokens)
    told = []
    sources.build(lesson(folder, say=told.append))
    assert "made anew: shards [2]" in told[0]
    assert (cut.read_bytes(), turned.read_bytes()) == good
    with pytest.raises(DataError, match="another text than window 0"):
        sources.open_cache(lesson(folder)).read(0, np.zeros(WINDOW + 1, np.int32))


def test_another_cache_is_refused(built, tmp_path):
    """Both fingerprints are named; more states than needed are welcome."""
    lm = agreement.target()
    other = types.SimpleNamespace(**vars(lm))
    other.params = agreement.stirred(lm.params)
    words = types.SimpleNamespace(inner=types.SimpleNamespace(to_str=lambda: "{}"))
    spoken = types.SimpleNamespace(**{**vars(lm), "tokenizer": words})
    own = sources.fingerprint(lm)
    for wrong, match in (
        (
            lesson(built, lm=other),
            f"target: {own} there, {sources.fingerprint(other)}",
        ),
        (lesson(built, lm=spoken), "tokenizer: [0-9a-f]{16} there, [0-9a-f]{16} here"),
        (lesson(built, text=stream(1)), "text: .*/seed=0.* there, .*/seed=1"),
        (lesson(built, FLOAT._replace(dtype="bfloat16")), "dtype: float32 there"),
        (lesson(built, FLOAT._replace(topk=4)), "topk: 0 there, 4 here"),
        (
            lesson(built, FLOAT._replace(taps=(0,))),
            r"taps: \[1, 2, 'norm'\] there, \[0, 1, 2, 'norm'\] here",
        ),
    ):
        with pytest.raises(DataError, match=match):
            sources.open_cache(wrong)
    fewer = sources.open_cache(lesson(built, taps=()))
    assert fewer.there.all()
    rows, _ = sources.source("offline", lesson(built, taps=()))
    assert [n for n in next(rows) if "/" in n] == ["hidden/norm"]
    folder = copied(built, tmp_path)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is no manifest"):
        sources.open_cache(lesson(folder))
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"has shards and no manifest\.json"):
        sources.open_cache(lesson(folder))


@pytest.mark.long
def test_the_likeliest_tokens_and_all_others(trainer, online, tmp_path):
    """All but one token: the law itself. Four: the mass of the others is one outcome.

    Planted: a law renormalised on its four likeliest tokens.
    """
    most = FLOAT._replace(topk=agreement.VOCAB - 1)
    found = trainer("offline", lesson(tmp_path / "most", most))
    np.testing.assert_allclose(found, online, rtol=1e-5)
    assert sources.open_cache(lesson(tmp_path / "most", most)).layout.taps == tuple(
        sorted(set(layer.taps(agreement.target().config)), key=str)
    )
    few = FLOAT._replace(topk=4)
    lm = agreement.target()
    rows, target = sources.source("offline", lesson(tmp_path / "few", few, taps=()))
    batch = next(rows)
    q = 2 * jax.random.normal(jax.random.key(5), (BATCH, WINDOW + 1, agreement.VOCAB))

    @jax.jit
    def laws(params, batch, q):
        told, whole = target(params, batch), outputs.teacher(lm.model)(params, batch)
        both = told.compared(told.law, q), whole.compared(whole.law, q)
        graded = [(losses.kl(p, q), losses.alpha(p, q)) for p, q, *_ in both]
        laws = [jax.nn.softmax(x) for x in (*both[0][:2], *both[1][:2])]
        return laws, [x[2] for x in both], both[0][3], graded

    found = jax.tree.map(np.asarray, laws(lm.params, batch, q))
    (p, coarse, full, whole), (same, wanted), inside, (few, every) = found
    np.testing.assert_array_equal(same, wanted)
    assert inside.all() and p.shape[-1] == 5
    top = np.sort(full.astype(np.float64), -1)[..., ::-1][..., :4]
    np.testing.assert_allclose(p[..., :4], top, rtol=1e-5)
    np.testing.assert_allclose(p[..., 4], 1 - top.sum(-1), rtol=1e-4)
    renormalised = top / top.sum(-1, keepdims=True)
    assert np.abs(p[..., :4] - renormalised).max() > 0.1  # planted
    kept = np.take_along_axis(whole.astype(np.float64), batch["t_topk_ids"], -1)
    np.testing.assert_allclose(coarse[..., :4], kept, rtol=1e-4)
    np.testing.assert_allclose(coarse[..., 4], 1 - kept.sum(-1), rtol=1e-4)
    # Coarser laws are nearer to each other.
    assert (few[0] <= every[0] + 1e-5).all() and few[0].mean() < every[0].mean() / 2
    assert (few[1] >= every[1] - 1e-5).all() and few[1].mean() > every[1].mean()
    with pytest.raises(ConfigError, match="a draft vocabulary needs"):
        told = target(lm.params, batch)
        told.compared(told.law, q, np.arange(3))
    own = draft_model.objective(lm.model, "kl")
    value = jax.jit(lambda p, b: own.loss(p, b, target(p, b))[0])(lm.params, batch)
    assert abs(float(value)) < 1e-5  # a draft that is its target


def test_every_process_reads_its_rows(built):
    """Two shares of a batch side by side are the batch, in states as in tokens."""
    whole, _ = sources.source("offline", lesson(built))
    parts = []
    for process in range(2):
        one = lesson(built)._replace(
            rows=text_corpus.DataIterator(stream(), process, 2)
        )
        parts.append(sources.source("offline", one)[0])
    for _ in range(2):
        batch, shares = next(whole), [next(part) for part in parts]
        for name, x in batch.items():
            both = np.concatenate([share[name] for share in shares])
            np.testing.assert_array_equal(x, both)
    again, _ = sources.source("offline", lesson(built))
    again.restore(whole.state())
    a, b = next(again), next(whole)
    assert all(np.array_equal(a[name], b[name]) for name in b)
