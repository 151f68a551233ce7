"""What heads learn from: kinds of lines, what is held out, and whose tokens count."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.draft_models import fastdraft
from configs.predictors import judge, specee
from models.errors import ConfigError, DataError
from tests.training.data import test_conversations
from tests.training.data.test_conversations import lm  # noqa: F401
from tests.training.runs import test_draft_model_run
from tests.training.small_trainings import recipe, small_target
from training import distill
from training.data import conversations, documents, sources, text_corpus
from training.loop import train_step
from training.runs import draft_head_run, draft_model_run, exit_predictor_run, judge_run
from training.teacher import outputs

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
    lines = [
        TEXT,
        test_conversations.SHARE,
        answer([5, 6, 7], [8, 9]),
        answer([5], [6], False),
    ]
    found = read(lm, test_conversations.write(tmp_path / "a.jsonl", *lines))
    assert found.masks is not None
    raw, talk, ended, cut = zip(*found, strict=True)
    assert lm.tokenizer.decode(raw[0].tolist()) == TEXT["text"] and raw[1].all()
    whole = conversations.render(lm, conversations.messages(test_conversations.SHARE))
    np.testing.assert_array_equal(talk[0], whole.tokens)
    np.testing.assert_array_equal(talk[1], [*whole.mask, False])
    # The separator is the EOS that the text ended with, or is not learned.
    assert ended[0].tolist() == [5, 6, 7, 8, 9]
    assert ended[1].tolist() == [False] * 3 + [True] * 3
    assert cut[0].tolist() == [5, 6] and cut[1].tolist() == [False, True, False]
    alone = read(lm, test_conversations.write(tmp_path / "b.jsonl", TEXT, TEXT))
    assert alone.masks is None and len(alone.tokens) == 2


def test_files_of_a_folder(lm, tmp_path):  # noqa: F811
    """Lines of its JSONL files, other files whole."""
    for split in sources.SPLITS:
        (tmp_path / "d" / split).mkdir(parents=True)
        test_conversations.write(
            tmp_path / "d" / split / "a.jsonl", answer([5], [6]), TEXT
        )
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


@pytest.mark.long
def test_heads_learn_answers_alone(small, tmp_path):
    """The stage on text of the target's own; planted: the questions learned, too."""
    rng = np.random.default_rng(0)

    def lines(seed: int) -> list[dict]:
        """Answers do not depend on the seed."""
        own = np.random.default_rng(seed)
        return [
            answer(own.integers(100, 200, 9).tolist(), [*range(i, i + 20)], i % 2 == 0)
            for i in range(300, 340)
        ]

    test_conversations.write(tmp_path / "a.jsonl", *lines(1))
    c = recipe("medusa", str(tmp_path / "a.jsonl"))
    c.init.heads, c.evaluate.depth, c.tree_nodes = 2, 2, 4
    c.method.topology = {"name": "topologies/chain", "length": 2}
    own = draft_head_run.Training(c, tmp_path / "run", small)
    masks = own.stream.corpus.mask
    assert masks is not None and 0 < masks.mean() < 1
    learned = own.stream.corpus.flat[masks]
    assert not ((learned >= 100) & (learned < 200)).any()  # planted: corpus.flat
    assert ((own.stream.corpus.flat >= 100) & (own.stream.corpus.flat < 200)).any()
    # What heads are asked in the loop is what stands before an answer, whole.
    assert all(len(p) == 9 and max(p) < 200 for p in own.prompts(2, 8))
    found = draft_head_run.run(c, tmp_path / "run", small)
    assert found["steps"] == 8 and found["trained"]["tau"] >= 1

    # The loss reads no label of a question: they may be anything.
    out = own.objective
    target = outputs.teacher(small.model)
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


def test_a_vocabulary_of_what_is_learned(small, tmp_path):
    """EAGLE-3's draft vocabulary has the answers' tokens; others are commoner."""
    lines = [answer([7] * 30, [11, 12, 13], False) for _ in range(20)]
    lines = [{**line, "index": i} for i, line in enumerate(lines)]
    test_conversations.write(tmp_path / "a.jsonl", *lines)
    c = recipe("eagle3", str(tmp_path / "a.jsonl"))
    c.draft_vocab = 3
    own = draft_head_run.Training(c, tmp_path / "run", small)
    assert own.constants["kept"].tolist() == [11, 12, 13]


def test_a_batch_of_questions_alone_teaches_nothing():
    """Sums of no weight are no NaN; planted: the weights' own sum as the divisor."""

    def loss(params, batch, target_out):
        count = jnp.maximum(batch["mask"].sum(), 1)
        return (params["w"] * batch["mask"]).sum() / count, {}

    own = train_step.Objective(loss, lambda batch: batch["mask"].sum())
    step = train_step.make_step(own, optax.sgd(0.1), 1)
    params = {"w": jnp.float32(1.0)}
    state = train_step.TrainState(
        jnp.int32(0), params, optax.sgd(0.1).init(params), None
    )
    for mask, moved in ((jnp.zeros((2, 3)), False), (jnp.ones((2, 3)), True)):
        after, metrics = step(state, {"mask": mask})
        assert jnp.isfinite(metrics["loss"]) and metrics["grad_norm"] >= 0
        assert (after.params["w"] != 1.0) == moved


def test_conversations_are_answered_anew(lm, tmp_path):  # noqa: F811
    """The last answer is dropped, earlier ones stay; other lines are as they were."""
    path = tmp_path / "a.jsonl"
    test_conversations.write(
        path,
        test_conversations.SHARE,
        test_conversations.PLAIN,
        {"prompt": "x = ", "max_new_tokens": 3},
    )
    found = distill.prompts(lm, path, 9)
    said = [lm.tokenizer.decode(p.tokens) for p in found]
    assert said[0].endswith("and sys?\n<assistant>") and "import os<" not in said[1]
    assert said[0].count("import os") == 2 and "import sys" not in said[0]  # planted
    assert said[1].endswith("x\n<assistant>") and said[2] == "x = "
    assert [p.new for p in found] == [9, 9, 3]
    test_conversations.write(
        path, {"messages": [{"role": "assistant", "content": "hi"}]}
    )
    with pytest.raises(DataError, match="no turn before the answer"):
        distill.prompts(lm, path, 9)


def questions(path) -> dict[tuple, list]:
    """Lines whose questions are of tokens 100 to 199, and of 3 to 9 of them: with a
    seed of its own each; question -> line."""
    rng = np.random.default_rng(0)
    rows = [
        answer(rng.integers(100, 200, 3 + i % 7).tolist(), [*range(i, i + 20)])
        for i in range(300, 340)
    ]
    test_conversations.write(path, *rows)
    return {tuple(row["tokens"][: row["prompt_tokens"]]): row for row in rows}


def test_what_a_target_is_asked(small, tmp_path):
    """Questions whole, each once before any again; of raw text pieces of one size."""
    asked = set(questions(tmp_path / "a.jsonl"))
    found = read(small, tmp_path / "a.jsonl")
    rows = documents.requests(small, found, 100, 4, 8, 0)
    once, again = ({tuple(r) for r in rows[i : i + 40]} for i in (0, 40))
    assert once == again == asked and {tuple(r) for r in rows[80:]} < asked
    assert rows[:40] != rows[40:80]
    first = documents.prompts(small, found, 40, 4, 8)
    assert {tuple(row) for row in first} == asked and first == documents.prompts(
        small, found, 40, 9, 8, start=3
    )
    # Planted: pieces of 4 tokens, which is what the same text without masks gives.
    raw = found._replace(masks=None)
    pieces = documents.requests(small, raw, 20, 4, 8, 0)
    assert {len(row) for row in pieces} == {4} < {len(row) for row in rows}
    # From every place of the texts that are long enough, and of one piece.
    text = documents.Documents([np.arange(9), np.arange(2)], None)
    parts = documents.requests(small, text, 50, 4, 8, (0, 0))
    assert {row[0] for row in parts} == set(range(6))
    assert all(row == [*range(row[0], row[0] + 4)] for row in parts)
    with pytest.raises(DataError, match="no document has 10 tokens"):
        documents.requests(small, text, 1, 10, 8, 0)
    second = documents.prompts(small, raw, 3, 4, 8, start=4)
    assert second == [row[4:8].tolist() for row in raw.tokens[:3]]
    # What leaves no room is not taken: of 512 positions 505 are to be written.
    few = documents.requests(small, found, 60, 4, 505, 0)
    assert {len(row) for row in few} == {3, 4, 5, 6, 7}
    with pytest.raises(DataError, match="no document has an answer, and at most 2"):
        documents.requests(small, found, 1, 4, 510, 0)
    with pytest.raises(ConfigError, match=r"have an answer, .* not 41"):
        documents.prompts(small, found, 41, 4, 8)
    with pytest.raises(ConfigError, match="have 504 tokens, not 1"):
        documents.prompts(small, raw, 1, 504, 8)


def test_windows_carry_their_masks(small, tmp_path):
    questions(tmp_path / "a.jsonl")
    found = read(small, tmp_path / "a.jsonl")
    batches = documents.windows(found, 200, 16)
    assert len(batches) == 12
    for batch in batches:
        assert {x.shape for x in batch.values()} == {(1, 16)}
        said = (batch["tokens"] >= 100) & (batch["tokens"] < 200)
        np.testing.assert_array_equal(batch["loss_mask"], ~said)
    assert list(documents.windows(found._replace(masks=None), 32, 16)[0]) == ["tokens"]
    with pytest.raises(ConfigError, match="not a window of 16"):
        documents.windows(found, 15, 16)


@pytest.mark.long
def test_a_draft_learns_answers_to_questions(small, tmp_path):
    """The target answers the questions, and pre-training reads answers alone."""
    asked = set(questions(tmp_path / "a.jsonl"))
    c = test_draft_model_run.recipe(fastdraft, str(tmp_path / "a.jsonl"))
    c.variants = {"ce": c.variants.ce.to_dict()}
    c.distill.update(held=1, temperatures=(1.0,))
    c.evaluate.prompts = 1
    c.distill.prompts = 60  # more than there are questions
    seen = []

    class Training(draft_model_run.Training):
        def _fit(self, name, params, own, train, tokens, **more):
            seen.append(text_corpus.Corpus(train.tokens, 0, train.masks))
            return super()._fit(name, params, own, train, tokens, **more)

    own = Training(c, tmp_path / "run", small)
    written = draft_model_run.write(
        small, own.documents, c.distill, tmp_path / "written", 0
    )
    for text in written.train:
        assert tuple(text.tokens[: text.mask.argmax()].tolist()) in asked
    texts = {tuple(text.tokens.tolist()) for text in written.train}
    assert len(texts) > len(asked)  # the second answer to a question is another
    start = own.pretrained()
    own.aligned("ce", start, written)
    for text in seen:
        learned, rest = text.flat[text.mask], text.flat[~text.mask]
        assert 0 < len(learned) < len(text.flat)  # planted: all of it
        assert ((rest >= 100) & (rest < 200)).mean() > 0.7 and len(rest) > 100
    assert own.measured(start, written.held)["tau"] >= 1
    c.evaluate.prompts = 41  # there are two held out: said before anything is trained
    with pytest.raises(ConfigError, match="not 41"):
        draft_model_run.run(c, tmp_path / "few", small)
    assert not (tmp_path / "few" / "pretraining").exists()


def test_predictors_learn_of_answers(small, tmp_path, monkeypatch):
    """Exits are learned where something was said, mismatches sought after questions."""
    asked = set(questions(tmp_path / "a.jsonl"))
    seen = {}

    def caught(name, place):
        def stop(*given, **_):
            seen[name] = given[place]
            raise InterruptedError

        return stop

    c = specee.get_config()
    c.data.update(source=str(tmp_path / "a.jsonl"), tokens=64, batch=2, window=16)
    monkeypatch.setattr(exit_predictor_run.Training, "_draft", lambda self: tmp_path)
    monkeypatch.setattr(exit_predictor_run.native, "load", lambda *_: None)
    monkeypatch.setattr(exit_predictor_run.fit, "fit", caught("batches", 3))
    monkeypatch.setattr(
        exit_predictor_run.lossy_quality, "compared", caught("asked", 1)
    )
    own = exit_predictor_run.Training(c, tmp_path / "exits", small_target(2))
    with pytest.raises(InterruptedError):
        own.fit()
    batch = next(seen["batches"])
    said = (batch["tokens"] >= 100) & (batch["tokens"] < 200)
    np.testing.assert_array_equal(batch["loss_mask"] & said, np.zeros_like(said))
    assert batch["loss_mask"].any() and said.any()
    with pytest.raises(InterruptedError):
        own.decoded(None, (0,))
    assert {tuple(row) for row in seen["asked"]} <= asked
    c = judge.get_config()
    c.data.source = str(tmp_path / "a.jsonl")
    monkeypatch.setattr(judge_run.judge, "cases", caught("judged", 2))
    with pytest.raises(InterruptedError):
        judge_run.run(c, tmp_path / "judge", small, small)
    assert {tuple(row) for row in seen["judged"]} <= asked
