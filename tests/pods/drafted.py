"""What drafts and acceptance heads learn on 8 virtual devices; run by test_meshes.py.

Usage: drafted.py FOLDER. Prints one JSON object: {part: {mesh: losses}}. The mesh "one"
is a single device; "fault ..." is a planted fault.
"""

import dataclasses
import json
import pathlib
import sys

import jax
import numpy as np

import models
from configs.draft_models import fastdraft
from configs.predictors import specdec_pp
from models import io, transformer
from tests.pods import meshes
from training import distill
from training.runs import acceptance_run, draft_model_run

CONFIG = dataclasses.replace(meshes.CONFIG, vocab_size=4096, tied=True, eos=(0,))
MESH = "2x2x2"


def target() -> models.Loaded:
    """With the tokenizer that reads the corpus."""
    lm = transformer.transformer(CONFIG)
    params = jax.jit(lm.init)(jax.random.key(0))
    return models.Loaded(lm, params, models.load("tiny").tokenizer)


def corpus(folder: pathlib.Path) -> str:
    """Documents enough for the prompts that a run holds out."""
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True)
        for name in "abcd":
            lines = (f"def {name}{j}(x):\n    return {split}\n" for j in range(60))
            (folder / split / f"{name}.py").write_text("".join(lines))
    return str(folder)


def written(*_) -> draft_model_run.Written:
    """Texts as if the target had written them."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, CONFIG.vocab_size, 24).astype(np.int32) for _ in range(16)]
    texts = [distill.Text(row, np.arange(25) >= 4) for row in rows]
    return draft_model_run.Written(texts[:12], texts[12:])


def recipe(module, source: str):
    """Two steps of eight rows, four at once."""
    c = module.get_config()
    c.data.update(source=source, tokens=2 * 8 * 16, batch=8, window=16)
    c.train.update(warmup=1, rows_at_once=4, log_every=1)
    return c


def losses(folder: pathlib.Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def drafts_of(lm, source: str, folder: pathlib.Path) -> draft_model_run.Training:
    c = recipe(fastdraft, source)
    c.draft.update(d_model=16, n_layers=1, n_heads=4, n_kv_heads=2, d_ff=16)
    c.data.pretraining_tokens = c.data.tokens
    c.train.evaluate_every = 0
    return draft_model_run.Training(c, folder, lm)


def aligned(training: draft_model_run.Training, start) -> list[float]:
    """On the target's text and its laws."""
    training.aligned("half_kl", start, written())
    return losses(training.workdir / "half_kl")


def accepted(lm, source: str, folder: pathlib.Path) -> list[float]:
    """A head for the target and a draft that is as wide."""
    draft = transformer.transformer(dataclasses.replace(CONFIG, n_layers=1))
    own = models.Loaded(draft, jax.jit(draft.init)(jax.random.key(9)))
    acceptance_run.Training(recipe(specdec_pp, source), folder, lm, own).fit()
    return losses(folder)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    source, lm = corpus(folder / "corpus"), target()
    acceptance_run.draft_model_run.write = written
    plan = meshes.plan_of(meshes.MESHES[MESH])
    found: dict[str, dict[str, list[float]]] = {
        "raw text": {},
        "half_kl": {},
        "acceptance": {},
    }
    for name, own in (("one", lm), (MESH, io.placed(lm, plan))):
        training = drafts_of(own, source, folder / name)
        start = training.pretrained()
        found["raw text"][name] = losses(folder / name / "pretraining")
        found["half_kl"][name] = aligned(training, start)
        found["acceptance"][name] = accepted(own, source, folder / f"{name}-head")
    wrong = meshes.neighbours(lm, plan)
    wrong = dataclasses.replace(wrong, tokenizer=lm.tokenizer)
    fault = aligned(drafts_of(wrong, source, folder / "fault"), start)
    found["half_kl"]["fault neighbours"] = fault
    print(json.dumps(found))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    main()
