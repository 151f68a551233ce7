"""Common steps of the runs: a config's target, documents, batches, schedule, files."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import optax
from absl import logging

import models
from models import storage
from models.distributed import processes
from models.errors import ConfigError
from training.data import documents, text_corpus
from training.loop import fit, optimizers


def target(config: Any, lm: Any = None) -> Any:
    """Return `lm`, or load `config.model` onto the config's mesh.

    Raises ConfigError where it has no tokenizer, or no EOS to separate documents.
    """
    if lm is None:
        mesh, rules = config.get("mesh"), config.get("rules", "")
        lm = models.load(config.model, mesh=mesh, rules=rules)
    if lm.tokenizer is None or not lm.config.eos:
        raise ConfigError(
            f"config.model={config.model!r} needs a tokenizer.json and an EOS: use "
            "another model"
        )
    return lm


def data_folder(config: Any, workdir: storage.Path) -> storage.Path:
    """Return where TFDS keeps the config's data: a local folder.

    By default it is the workdir's, or a cache's where the workdir is in a bucket.
    """
    if config.data.directory:
        return storage.path(config.data.directory)
    return workdir / "data" if isinstance(workdir, pathlib.Path) else cached_data()


def cached_data() -> pathlib.Path:
    """Return the folder of this machine for data sets of TFDS."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(home).expanduser() / "decodax" / "data"


def both_splits(
    config: Any, lm: Any, workdir: storage.Path
) -> tuple[documents.Documents, documents.Documents]:
    """Make `workdir`, and read the documents for training and the held-out ones."""
    workdir.mkdir(parents=True, exist_ok=True)
    return documents.both(lm, config.data, data_folder(config, workdir), workdir)


def held_out_prompts(
    config: Any, lm: Any, held: documents.Documents
) -> list[list[int]]:
    """Return beginnings of held-out documents, as `config.evaluate` sizes them."""
    c = config.evaluate
    sizes = (c.prompts, c.prompt_tokens, c.new_tokens)
    return documents.prompts(lm, held, *sizes)


def num_steps(data: Any, tokens: int) -> int:
    """Count the batches of `config.data` that hold so many tokens."""
    return -(-tokens // (data.batch * data.window))


def stream(
    config: Any, lm: Any, train: documents.Documents, tokens: int
) -> text_corpus.Stream:
    """Cut so many tokens of the documents into numbered windows.

    With `data.whole` a window holds whole documents, each with the tokenizer's BOS.
    """
    c = config.data
    whole = c.get("whole", False)
    train = documents.begun(lm, train) if whole else train
    return text_corpus.Stream(
        text_corpus.Corpus(train.tokens, lm.config.eos[0], train.masks),
        (text_corpus.Stage(num_steps(c, tokens), c.batch, c.window),),
        config.seed,
        segments=c.get("segments", False),
        numbered=True,
        recut=c.get("recut", True),
        whole=whole,
    )


def optimizer(train: Any, steps: int, peak: float | None = None) -> Any:
    """Make AdamW, its rate warming up to `peak` (else `train.rate`), flat, decaying.

    With `train.optimizer` "muon" the matrices of layers have Muon, with the rate
    `train.muon_rate`, and all others Adam. `train.factors` multiply the rates of the
    parts of the params that they name. A warm-up of over a quarter of the steps is cut
    to a quarter, with a warning.
    """
    rate = train.rate if peak is None else peak
    warmup, decay = min(train.warmup, steps // 4), steps // 4
    if warmup < train.warmup:
        logging.warning(
            "train.warmup=%d is cut to %d, a quarter of the %d steps: train on more "
            "tokens to keep it",
            *(train.warmup, warmup, steps),
        )

    name = train.get("optimizer", "adamw")
    if name not in ("adamw", "muon"):
        raise ConfigError(f"train.optimizer={name!r}: use 'adamw' or 'muon'")

    def schedule(peak: float) -> optax.Schedule:
        return optimizers.warmup_stable_decay(peak, steps, warmup, decay)

    def make(factor: float) -> Any:
        b2, weight_decay = train.get("b2", 0.95), train.weight_decay
        adam = schedule(factor * rate)
        if name == "adamw":
            return optimizers.adamw(adam, b2=b2, weight_decay=weight_decay)
        return optimizers.muon(
            schedule(factor * train.muon_rate),
            adam,
            weight_decay=weight_decay,
            of=optimizers.head_matrices,
        )

    factors = dict(train.get("factors", {}))
    adamw = optimizers.by_part(make, factors) if factors else make(1.0)
    bound = train.get("clip_value", 0.0)
    return optax.chain(optax.clip(bound), adamw) if bound else adamw


def num_params(params: Any) -> int:
    """Count the numbers in a tree of arrays."""
    return int(sum(x.size for x in jax.tree.leaves(params)))


def effort(config: Any, result: fit.Result) -> dict[str, Any]:
    """Return the figures of a fit's length."""
    return {
        "steps": result.step,
        "seen_tokens": result.step * config.data.batch * config.data.window,
        "seconds": result.seconds,
    }


def write_export(
    config: Any, workdir: storage.Path, save: Callable[[storage.Path], object]
) -> storage.Path:
    """Let process 0 save to `config.export`, by default `workdir/export`."""
    folder = storage.path(config.export or workdir / "export")
    processes.written(lambda: save(folder))
    return folder


def write_figures(workdir: storage.Path, figures: dict[str, Any]) -> None:
    """Let process 0 write `workdir/figures.json`."""
    text = json.dumps(figures, indent=2) + "\n"
    processes.written(lambda: storage.write(workdir / "figures.json", text))


def read_figures(workdir: storage.Path) -> dict[str, Any]:
    """Read what `write_figures` wrote, on every process."""
    return processes.told(lambda: json.loads((workdir / "figures.json").read_text()))
