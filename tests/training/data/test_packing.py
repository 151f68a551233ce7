"""Packed documents kept apart: every head learns what separate batches teach it."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.heads import eagle as eagle_layer
from tests.decoding.drafters import agreement
from tests.training import small_trainings
from training.data import text_corpus
from training.objectives.heads import eagle
from training.objectives.predictors import specee
from training.runs import draft_head_run
from training.teacher import outputs, sources

KEY = jax.random.key(0)
LENGTH, DEPTH, FIRST = 13, 3, 6
ALONE = ("medusa",)  # it reads one state of the target, and no text


def target() -> types.SimpleNamespace:
    """A random transformer with learned positions: all it says shows who is where."""
    config = dataclasses.replace(
        agreement.target().config, position="learned", ropes=()
    )
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(3))
    return types.SimpleNamespace(model=model, params=agreement.stirred(params))


def texts(packed: bool, first: int = 0) -> dict:
    """Two documents side by side, or as two rows; none of their `first` may be
    predicted."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, agreement.VOCAB, (2, LENGTH)).astype(np.int32)
    mask = np.broadcast_to(np.arange(LENGTH) >= first, tokens.shape)
    batch = {"tokens": tokens, "loss_mask": mask}
    if packed:
        batch = {name: x.reshape(1, -1) for name, x in batch.items()}
        batch["segments"] = np.repeat(np.int32([[0, 1]]), LENGTH, 1)
    # The second batch of a stream: Falcon's blocks begin elsewhere than in the first.
    rows = len(batch["tokens"])
    return {**batch, "row": np.arange(rows, 2 * rows, dtype=np.int32)}


# One of each way to look along a text: layers of its own, a prefix, nodes in the
# target's block, and no look at all. The others run with -m long.
USUAL = ("eagle", "hydra", "medusa", "ppd")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.long)
        for name in draft_head_run.names()
    ],
)
def test_packing_equals_separate_batches(name):
    """The loss, its gradient, and the laws along a text, to rounding.

    Planted: a head that overlooks `segments`, where masks and target do not. It is
    graded where a mask of tokens alone says the same as the documents do.
    """
    lm, kind = target(), draft_head_run.module(name)
    own = kind.objective(lm.model, **kind.EXAMPLE["objective"])
    first = kind.init(KEY, lm.model, lm.params, **kind.EXAMPLE["init"])
    params = agreement.stirred(first, 0.1)
    read = jax.jit(outputs.teacher(lm.model, own.taps))

    @jax.jit
    def learned(params, batch, teacher):
        grade = jax.value_and_grad(lambda p: own.loss(p, batch, teacher)[0])
        its = params.get("heads", params)
        found = kind.guesses(its, lm.model, batch, teacher, DEPTH)
        # Where something is guessed that exists, and of the same document.
        laws = [
            jnp.where(outputs.predicted(batch, 2 + i)[..., None] > 0, draft(x), 0.0)
            for i, (x, draft) in enumerate(found)
        ]
        return grade(params), [law.reshape(2, LENGTH, -1) for law in laws]

    def close(one, other, rate=1e-4) -> bool:
        each = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        return all(np.allclose(a, b, rate, 1e-5) for a, b in each)

    separate, packed = texts(packed=False), texts(packed=True)
    wanted = learned(params, separate, read(lm.params, separate))
    found = learned(params, packed, read(lm.params, packed))
    assert close(found, wanted)

    masked = texts(packed=True, first=FIRST)
    teacher = read(lm.params, masked)
    overlooked = {n: x for n, x in masked.items() if n != "segments"}
    planted = learned(params, overlooked, teacher)
    expected = learned(params, masked, teacher)
    assert close(planted[0], expected[0]) == (name in ALONE)


def conversations() -> list[np.ndarray]:
    """Two of two turns each; a turn ends in 0, which also separates documents."""
    rng = np.random.default_rng(1)
    each = rng.integers(1, agreement.VOCAB, (2, LENGTH - 1))
    each[:, 5] = 0
    return list(each)


def packed_conversations() -> dict:
    """Cut a row of a stream: the first conversation whole, the second to its last."""
    masks = [np.arange(LENGTH) % 6 > 1] * 2  # answers and the tokens that end them
    corpus = text_corpus.Corpus(conversations(), 0, masks)
    stages = (text_corpus.Stage(steps=1, batch=1, window=2 * LENGTH - 2),)
    firsts = [document[:3].tolist() for document in conversations()]
    for seed in range(20):
        stream = text_corpus.Stream(corpus, stages, seed, segments=True, numbered=True)
        row = stream.batch(0)
        if row["tokens"][0, :3].tolist() in firsts:
            return row
    raise AssertionError("no seed cuts a row from a document's beginning")


def alone(row: dict) -> dict:
    """The same conversations in a row each; what the row lacks is filled, unlearned."""
    short = 2 * LENGTH - row["tokens"].size
    fields = {name: row[name] for name in ("tokens", "loss_mask")}
    rows = {
        name: np.pad(x, ((0, 0), (0, short))).reshape(2, -1)
        for name, x in fields.items()
    }
    return {**rows, "row": np.arange(2, dtype=np.int32)}


# Hydra without its prefix attention and Hydra++ whole: {name: fields of `init`}.
FORMS = {
    "hydra_alone": {"heads": 3},
    "hydra_pp": {"heads": 3, "prefix": True, "deep": True},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.long)
        for name in (*draft_head_run.names(), *FORMS)
    ],
)
def test_heads_train_as_they_decode(name):
    """Loss and hits of a conversation beside another are those of it alone, to 1e-5.

    Planted: documents told apart by the separator, so that a second turn forgets the
    first.
    """
    lm = target()
    kind = draft_head_run.module("hydra" if name in FORMS else name)
    init = FORMS.get(name, kind.EXAMPLE["init"])
    own = kind.objective(lm.model, **kind.EXAMPLE["objective"])
    first = kind.init(KEY, lm.model, lm.params, **init)
    params = agreement.stirred(first, 0.1)
    read = outputs.teacher(lm.model, own.taps)

    @jax.jit
    def run(params, frozen, batch):
        return own.loss(params, batch, read(frozen, batch))

    graded = functools.partial(run, params, lm.params)
    row = packed_conversations()
    assert (row["tokens"] == 0).sum() > row["segments"].max() == 1
    wanted, found = graded(alone(row)), graded(row)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    ended = np.pad(row["tokens"][:, :-1] == 0, ((0, 0), (1, 0)))
    planted = graded({**row, "segments": ended.cumsum(1, dtype=np.int32)})
    assert abs(planted[0] - wanted[0]) > 1e-3


def test_exits_know_the_document(monkeypatch):
    """What SpecEE's predictors learn from, where it counts, to rounding."""
    lm = target()
    frozen = {"target": lm.params, "heads": eagle.init(KEY, lm.model, lm.params)}

    def answers(batch: dict) -> list:
        found = jax.jit(specee.answers(lm.model))(frozen, batch)
        parts = (found.features, found.candidates, found.right, found.expected)
        there = np.asarray(found.weights).reshape(2, LENGTH) > 0
        flat = [np.asarray(x).reshape(2, LENGTH, -1)[there] for x in parts]
        return [there, *flat]

    wanted, found = answers(texts(packed=False)), answers(texts(packed=True))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    own = eagle_layer.sequence
    overlooks = lambda *fields: own(*fields[:4])  # planted: a layer that sees all
    monkeypatch.setattr(eagle_layer, "sequence", overlooks)
    planted = answers(texts(packed=True))
    assert not np.allclose(planted[1], wanted[1], rtol=1e-4, atol=1e-5)


def test_a_cache_knows_the_documents(tmp_path):
    """What an offline teacher says of packed documents is what the target says."""
    lm, taps = agreement.target(), (1,)
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, agreement.VOCAB, 9) for _ in range(20)]
    stages = (text_corpus.Stage(steps=3, batch=4, window=12),)
    stream = text_corpus.Stream(text_corpus.Corpus(documents, 0), stages, segments=True)
    settings = sources.Settings(dtype="float32")
    rows = text_corpus.DataIterator(stream)
    lesson = sources.TeacherRequest(lm, rows, taps, settings, tmp_path)
    cached, told = sources.source(sources.OFFLINE, lesson)
    read = jax.jit(outputs.teacher(lm.model, taps))
    for _ in range(stream.steps):
        batch = next(cached)
        teacher, online = told(lm.params, batch), read(lm.params, batch)
        np.testing.assert_array_equal(teacher.segments, batch["segments"])
        for tap in (1, outputs.NORM):
            np.testing.assert_allclose(
                teacher.hidden[tap], online.hidden[tap], rtol=1e-5, atol=1e-6
            )
        planted = read(lm.params, {"tokens": batch["tokens"]})  # documents together
        assert np.abs(planted.hidden[1] - online.hidden[1]).max() > 0.1


def test_a_recipe_keeps_documents_apart(small, corpus, tmp_path):
    """`config.data.segments` numbers the documents; without it nothing is said."""
    found = {}
    for segments in (False, True):
        c = small_trainings.recipe("eagle", corpus)
        c.data.segments = segments
        stream = draft_head_run.Training(c, tmp_path, small).stream
        found[segments] = [stream.batch(i) for i in range(stream.steps)]
    for plain, packed in zip(found[False], found[True], strict=True):
        numbers = packed.pop("segments")
        ended = packed["tokens"][:, :-1] == small.config.eos[0]
        np.testing.assert_array_equal(np.diff(numbers, axis=1), ended)
        assert set(plain) == set(packed) and "segments" not in plain
        for name in plain:
            np.testing.assert_array_equal(plain[name], packed[name])
