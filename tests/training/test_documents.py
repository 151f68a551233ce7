"""What heads learn from: kinds of lines, what is held out, and whose tokens count."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.errors import DataError
from tests.training import test_conversations as talks
from tests.training.test_conversations import lm  # noqa: F401
from tests.training.test_heads import corpus, recipe, small, small_target  # noqa: F401
from training import conversations, distill, documents, fit, heads, sources
from training import teacher as teachers

TEXT = {"text": "import os\n"}


def answer(prompt: list[int], said: list[int], ended: bool = True) -> dict:
    """A line of `training.distill`, by its form."""
    tokens = [*prompt, *said, *([0] if ended else [])]
    about = {"prompt_tokens": len(prompt), "ended": ended, "text": "not read"}
    return {"index": 0, "tokens": tokens, **about}


def read(lm, path, split=sources.EVERY):  # noqa: F811
    return documents.read(lm, str(path), split, path.parent, path.parent)


def test_every_kind_of_line(lm, tmp_path):  # noqa: F811
    """Raw text has no masks by itself, and is learned whole beside answers."""
    lines = [TEXT, talks.SHARE, answer([5, 6, 7], [8, 9]), answer([5], [6], False)]
    found = read(lm, talks.write(tmp_path / "a.jsonl", *lines))
    assert found.masks is not None
    raw, talk, ended, cut = zip(*found, strict=True)
    assert lm.tokenizer.decode(raw[0].tolist()) == TEXT["text"] and raw[1].all()
    whole = conversations.render(lm, conversations.messages(talks.SHARE))
    np.testing.assert_array_equal(talk[0], whole.tokens)
    np.testing.assert_array_equal(talk[1], [*whole.mask, False])
    # The separator is the EOS that the text ended with, or is not learned.
    assert ended[0].tolist() == [5, 6, 7, 8, 9]
    assert ended[1].tolist() == [False] * 3 + [True] * 3
    assert cut[0].tolist() == [5, 6] and cut[1].tolist() == [False, True, False]
    alone = read(lm, talks.write(tmp_path / "b.jsonl", TEXT, TEXT))
    assert alone.masks is None and len(alone.tokens) == 2


def test_files_of_a_folder(lm, tmp_path):  # noqa: F811
    """Lines of its JSONL files, other files whole."""
    for split in sources.SPLITS:
        (tmp_path / "d" / split).mkdir(parents=True)
        talks.write(tmp_path / "d" / split / "a.jsonl", answer([5], [6]), TEXT)
        (tmp_path / "d" / split / "b.py").write_text(split)
    found = read(lm, tmp_path / "d", "validation")
    assert [m.sum() for m in found.masks] == [
        2,
        len(found.masks[1]),
        len(found.masks[2]),
    ]
    assert lm.tokenizer.decode(found.tokens[2].tolist()) == "validation"
    (tmp_path / "d" / "train" / "a.jsonl").unlink()
    assert read(lm, tmp_path / "d", "train").masks is None


def test_lines_are_held_out_by_themselves(tmp_path):
    """About one in twenty, whatever stands around them; no line in both splits."""
    lines = [json.dumps({"text": f"text {i}"}) for i in range(2000)]
    path = tmp_path / "a.jsonl"

    def held(kept) -> set[str]:
        path.write_text("\n".join(kept))
        train, out = (sources.texts(str(path), split, "") for split in sources.SPLITS)
        assert not {*train} & {*out} and len(train) + len(out) == len(kept)
        return {*out}

    whole = held(lines)
    # 5 % of 2,000 within 4 standard errors of a binomial: 100 ± 39.
    assert abs(len(whole) - 100) < 39
    assert held(lines[::-2]) == {t for t in whole if int(t.split()[1]) % 2}
    assert len(held(lines[:2])) == 1
    path.write_text(lines[0])
    with pytest.raises(DataError, match="of 1 lines none is left for train"):
        sources.texts(str(path), "train", "")
    (tmp_path / "a.txt").write_text("one text")
    with pytest.raises(DataError, match="nothing can be held out"):
        sources.texts(str(tmp_path / "a.txt"), "train", "")
    assert sources.texts(str(tmp_path / "a.txt"), sources.EVERY, "") == ["one text"]


def test_heads_learn_answers_alone(small, tmp_path):  # noqa: F811
    """The stage on text of the target's own; planted: the questions learned, too."""
    rng = np.random.default_rng(0)

    def lines(seed: int) -> list[dict]:
        """Answers do not depend on the seed."""
        own = np.random.default_rng(seed)
        return [
            answer(own.integers(100, 200, 9).tolist(), [*range(i, i + 20)], i % 2 == 0)
            for i in range(300, 340)
        ]

    talks.write(tmp_path / "a.jsonl", *lines(1))
    c = recipe("medusa", str(tmp_path / "a.jsonl"))
    c.init.heads, c.evaluate.depth, c.tree_nodes = 2, 2, 4
    c.method.topology = {"name": "topologies/chain", "length": 2}
    own = heads.Training(c, tmp_path / "run", small)
    masks = own.stream.corpus.mask
    assert masks is not None and 0 < masks.mean() < 1
    learned = own.stream.corpus.flat[masks]
    assert not ((learned >= 100) & (learned < 200)).any()  # planted: corpus.flat
    assert ((own.stream.corpus.flat >= 100) & (own.stream.corpus.flat < 200)).any()
    # What heads are asked in the loop is what stands before an answer, whole.
    assert all(len(p) == 9 and max(p) < 200 for p in own.prompts(2, 8))
    found = heads.run(c, tmp_path / "run", small)
    assert found["steps"] == 8 and found["trained"]["tau"] >= 1

    # The loss reads no label of a question: they may be anything.
    out = own.objective
    target = teachers.teacher(small.model)
    batch = {n: jnp.asarray(x) for n, x in own.stream.batch(0).items()}
    loss = jax.jit(lambda b: out.loss(own.params, b, target(small.params, batch))[0])
    other = jnp.where(
        batch["loss_mask"],
        batch["tokens"],
        jnp.asarray(rng.integers(0, 4096, batch["tokens"].shape), jnp.int32),
    )
    assert loss({**batch, "tokens": other}) == loss(batch)
    every = {**batch, "loss_mask": jnp.ones_like(batch["loss_mask"])}
    assert loss({**every, "tokens": other}) != loss(every)


def test_a_vocabulary_of_what_is_learned(small, tmp_path):  # noqa: F811
    """EAGLE-3's draft vocabulary has the answers' tokens; others are commoner."""
    lines = [answer([7] * 30, [11, 12, 13], False) for _ in range(20)]
    lines = [{**line, "index": i} for i, line in enumerate(lines)]
    talks.write(tmp_path / "a.jsonl", *lines)
    c = recipe("eagle3", str(tmp_path / "a.jsonl"))
    c.draft_vocab = 3
    own = heads.Training(c, tmp_path / "run", small)
    assert own.kept.tolist() == [11, 12, 13]


def test_a_batch_of_questions_alone_teaches_nothing():
    """Sums of no weight are no NaN; planted: the weights' own sum as the divisor."""

    def loss(params, batch, target_out):
        count = jnp.maximum(batch["mask"].sum(), 1)
        return (params["w"] * batch["mask"]).sum() / count, {}

    own = fit.Objective(loss, lambda batch: batch["mask"].sum())
    step = fit.make_step(own, optax.sgd(0.1), 1)
    params = {"w": jnp.float32(1.0)}
    state = fit.TrainState(jnp.int32(0), params, optax.sgd(0.1).init(params), None)
    for mask, moved in ((jnp.zeros((2, 3)), False), (jnp.ones((2, 3)), True)):
        after, metrics = step(state, {"mask": mask})
        assert jnp.isfinite(metrics["loss"]) and metrics["grad_norm"] >= 0
        assert (after.params["w"] != 1.0) == moved


def test_conversations_are_answered_anew(lm, tmp_path):  # noqa: F811
    """The last answer is dropped, earlier ones stay; other lines are as they were."""
    path = tmp_path / "a.jsonl"
    talks.write(path, talks.SHARE, talks.PLAIN, {"prompt": "x = ", "max_new_tokens": 3})
    found = distill.prompts(lm, path, 9)
    said = [lm.tokenizer.decode(p.tokens) for p in found]
    assert said[0].endswith("and sys?\n<assistant>") and "import os<" not in said[1]
    assert said[0].count("import os") == 2 and "import sys" not in said[0]  # planted
    assert said[1].endswith("x\n<assistant>") and said[2] == "x = "
    assert [p.new for p in found] == [9, 9, 3]
    talks.write(path, {"messages": [{"role": "assistant", "content": "hi"}]})
    with pytest.raises(DataError, match="nobody asks"):
        distill.prompts(lm, path, 9)
