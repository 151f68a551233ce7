"""Run a recipe on shrunk widths: two steps of its trainings, and a decoding with each.

A compiler traces a program once and runs nothing. A loss that leaks a tracer, divides
by zero or trains nothing compiles, and ends a run on a slice at its first step. So the
recipe is run first, on the CPU: its own code, objective, parts, rows, draft vocabulary,
optimiser, accumulation and dtypes. Only widths are others: of the target (random
weights), of rows and batches, and the number of documents, which are made up.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import models
from experiments import stage
from experiments.preflight import programs
from models import checkpoints, io, transformer
from models.checkpoints import hub, tensors
from models.errors import DecodaxError, TrainingError
from training.loop import metrics_writer

STEPS = 2
ROWS, WINDOW = 2, 63  # of a batch; a row has WINDOW + 1 tokens
LAYERS, DRAFT_LAYERS = 2, 3  # S2D's draft exits after one layer and after two
HEADS, WIDTH, FF = 2, 32, 48  # HEADS of each kind, as wide as they are
EXPERTS = 4  # of a group
SURE = 4.0  # norm of the target's embeddings, at which a token's own logit leads
REPEATED = " x" * 24
TOKENIZER = "tiny"  # the shipped model whose tokenizer reads the documents
SMALL: dict[str, dict[str, Any]] = {  # group -> fields, set where a recipe has them
    "data": {
        "batch": ROWS,
        "window": WINDOW,
        "tokens": STEPS * ROWS * WINDOW,
        # A judge's: the target's own texts after so many prompts.
        "prompts": 4,
        "held": 2,
        "prompt_tokens": 8,
        "new_tokens": 12,
        "horizon": 4,
        "most": 3,
    },
    "distill": {
        "prompts": 8,
        "held": 4,
        "prompt_tokens": 8,
        "new_tokens": 12,
        "batch": 4,
    },
    # The schedule would cut the warm-up to a quarter of the steps, with a warning.
    "train": {"warmup": 0, "evaluate_every": 0},
    "evaluate": {
        "tokens": 1024,
        "window": WINDOW + 1,
        "prompts": 2,
        "prompt_tokens": 8,
        "new_tokens": 8,
        "lengths": (),
        "confidences": (),
        "divergences": (),
        "most": 3,
    },
    "features": {"directory": ""},
}


def run(config: ConfigDict) -> float | None:
    """Take the first steps of a recipe's trainings, and decode with what they trained.

    Returns:
        The seconds, or None where the recipe's stage trains nothing.

    Raises:
        TrainingError: names the recipe, the training and its stage. Other errors than
            the project's get them as a note.
    """
    trials = stage.find(config.get("stage", "evaluate")).trials
    if trials is None:
        return None
    began = time.monotonic()
    cpu = jax.local_devices(backend="cpu")[0]
    with tempfile.TemporaryDirectory() as name, jax.default_device(cpu):
        folder = pathlib.Path(name)
        with _during(config.name, "before the first step"):
            small = shrunk(config, folder)
            lm, draft = repeating(random_model(programs.shape_of(config), LAYERS)), None
            if isinstance(small.get("draft"), str):
                draft = random_model(programs.shape_at(small.draft), LAYERS, 1)
            each = trials(small, folder / "run", lm, draft)
        while True:
            with _during(config.name, "before the first step"):
                trial = next(each, None)
            if trial is None:
                break
            with _during(config.name, f"the first {STEPS} steps ({trial.name})"):
                trained = trial.train()
                _check(trial, trained)
            with _during(config.name, f"decoding after them ({trial.name})"):
                trial.decode(trained)
    return time.monotonic() - began


@contextlib.contextmanager
def _during(name: str, what: str) -> Iterator[None]:
    """Add the recipe's name and the stage to whatever goes wrong."""
    where = f"{name}, {what}, on shrunk widths"
    try:
        yield
    except DecodaxError as error:
        raise TrainingError(f"{where}: {type(error).__name__}: {error}") from error
    except Exception as error:  # a fault of the code: its class and traceback stay
        error.add_note(where)
        raise


def _check(trial: stage.Trial, trained: Any) -> None:
    """Raise TrainingError unless losses and params are finite, and params changed."""
    losses = [row["loss"] for row in metrics_writer.rows(trial.folder, "metrics")]
    if trial.optimised and len(losses) != STEPS:
        raise TrainingError(f"{len(losses)} steps were taken, not {STEPS}")
    if not np.isfinite(losses).all():
        raise TrainingError(f"losses {losses}: not finite")
    before, after = jax.tree.leaves(trial.params), jax.tree.leaves(trained)
    if not all(np.isfinite(np.asarray(x, np.float32)).all() for x in after):
        raise TrainingError("trained params are not finite")
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        raise TrainingError("no param changed: the loss has no gradient")


def shrunk(config: ConfigDict, folder: pathlib.Path) -> ConfigDict:
    """Copy a recipe with small sizes; its documents are written into `folder`."""
    c = copy.deepcopy(config)
    vocabulary = programs.shape_of(config).vocab_size
    _shrink(c, vocabulary)
    if "eagle" in c:  # SpecEE's candidates, from a head that is trained first
        _shrink(c.eagle, vocabulary)
        c.heads, c.static = "", min(c.static, LAYERS - 1)
    c.data.source = documents(folder / "documents", c.data.get("whole", False))
    if isinstance(c.get("draft"), ConfigDict):
        d = c.draft
        d.start = _start(d.start, folder / "start") if d.start else ""
        _set(d, d_model=16, n_heads=2, n_kv_heads=1, d_ff=24)
        d.n_layers = min(d.n_layers, DRAFT_LAYERS)
    return c


def _shrink(c: ConfigDict, vocabulary: int) -> None:
    """Shrink the sizes of a recipe in place; parts of a row stay parts of it."""
    rows, window = c.data.get("batch", 0), c.data.get("window", 0)
    for name, fields in SMALL.items():
        if name in c:
            _set(c[name], **fields)
    for group in (c.get("objective", {}), c.get("train", {})):
        if group.get("part", 0):
            group.part = max(1, group.part * WINDOW // window)
    if "train" in c:
        at_once = c.train.rows_at_once
        c.train.rows_at_once = 1 if 0 < at_once < rows else 0
    if c.data.get("pretraining_tokens", 0):
        c.data.pretraining_tokens = c.data.tokens
    if c.get("draft_vocab", 0):
        size = _like().config.vocab_size
        c.draft_vocab = max(1, c.draft_vocab * size // vocabulary)
    if "thresholds" in c.get("evaluate", {}):
        c.evaluate.thresholds = c.evaluate.thresholds[:1]


def _set(group: ConfigDict, **fields: Any) -> None:
    """Set the fields that a group has."""
    group.update({name: x for name, x in fields.items() if name in group})


def small_shape(shape: transformer.Config, layers: int) -> transformer.Config:
    """Shrink a model's widths; its variants stay, and its vocabulary is TOKENIZER's."""
    like = _like().config
    layers, groups = min(shape.n_layers, layers), min(shape.n_kv_heads, HEADS)
    is_diffusion = shape.mask_token is not None
    heads = groups * min(shape.n_heads // shape.n_kv_heads, HEADS)
    return dataclasses.replace(
        shape,
        vocab_size=like.vocab_size + is_diffusion,
        mask_token=like.vocab_size if is_diffusion else None,
        bos=like.bos,
        eos=like.eos,
        d_model=WIDTH,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=groups,
        d_ff=FF,
        rope_of=shape.rope_of[:layers],
        windows=shape.windows[:layers],
        shapes=tuple(_small_layer(layer, groups) for layer in shape.shapes),
        kinds=shape.kinds[:layers],
    )


def _small_layer(layer: transformer.LayerShape, groups: int) -> transformer.LayerShape:
    """Shrink a layer; fewer KV heads than most layers' stay fewer."""
    own, experts = min(layer.n_kv_heads, groups), layer.experts
    if experts is not None:
        few = min(experts.count, EXPERTS * experts.groups)
        active = min(experts.active, 2)
        shared = FF if experts.shared else 0
        changes: dict[str, Any] = {"count": few, "active": active, "shared": shared}
        experts = dataclasses.replace(experts, **changes, width=FF // 2)
    return dataclasses.replace(layer, n_kv_heads=own, d_ff=FF, experts=experts)


def random_model(
    shape: transformer.Config, layers: int, seed: int = 0
) -> models.Loaded:
    """Make a small model of a shape's variants, with random weights."""
    model = transformer.transformer(small_shape(shape, layers))
    params = jax.jit(model.init)(jax.random.key(seed))
    return models.Loaded(model, params, _like().tokenizer)


def repeating(lm: models.Loaded) -> models.Loaded:
    """Make a random target sure that each token repeats.

    Some losses are on tokens that the target is sure of (LUD's units).
    """
    embedding = dict(lm.params["embedding"])
    rows = embedding["tokens"]
    rows = SURE * rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    embedding |= {name: rows for name in ("tokens", "head") if name in embedding}
    return dataclasses.replace(lm, params={**lm.params, "embedding": embedding})


@functools.cache
def _like() -> models.Loaded:
    """Load the model whose vocabulary, tokenizer and EOS all small models have."""
    return models.load(TOKENIZER)


def _start(name: str, folder: pathlib.Path) -> str:
    """Save a small random model in place of the one that a draft starts from."""
    path = io.locate(name, files=hub.CONFIG) / "config.json"
    family, shape = checkpoints.read_config(tensors.read_json(path), str(path))
    lm = random_model(shape, DRAFT_LAYERS, 1)
    lm = dataclasses.replace(lm, family=family.model_type)
    models.save(lm, folder)
    return str(folder)


def documents(folder: pathlib.Path, whole: bool) -> str:
    """Write documents of both splits: conversations where rows hold whole ones.

    Their tokens repeat in part, as the target is sure (`repeating`).
    """
    for split in ("train", "validation"):
        (folder / split).mkdir(parents=True)
        for i in range(3):
            if not whole:
                text = "".join(
                    f"def f{j}(x):\n    return x + {i}  #{REPEATED}\n" for j in range(9)
                )
                (folder / split / f"{i}.py").write_text(text)
                continue
            turns = [
                [("user", f"What is {j} and {i}?"), ("assistant", f"{j + i}{REPEATED}")]
                for j in range(8)
            ]
            rows = [
                {"messages": [{"role": role, "content": text} for role, text in turn]}
                for turn in turns
            ]
            lines = "\n".join(json.dumps(row) for row in rows)
            (folder / split / f"{i}.jsonl").write_text(lines)
    return str(folder)
