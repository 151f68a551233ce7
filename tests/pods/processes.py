"""One of several processes; run by test_processes.py, told by the environment.

Usage: processes.py WORKDIR. Trains a bigram model over all devices in WORKDIR/whole, in
WORKDIR/half for half of the steps, and in WORKDIR/fault with a planted fault: every
process reads the first process's rows. What a target says of the stream goes to
WORKDIR/features: first what one batch needs, then the rest. Prompts are decoded into
WORKDIR/texts.jsonl, and into WORKDIR/fault.jsonl by all processes. Process 0 prints
what else was decoded, and what was said of a batch with one row a process, as JSON.
`processes.py WORKDIR die`: the last process leaves without a word after three steps.
"""

import argparse
import dataclasses
import json
import os
import sys

import jax
import numpy as np
import optax

from decoding import compose, recipes
from decoding.serving import prompt_set
from experiments.launch import join
from models import io, storage
from models.distributed import processes, sharding
from models.errors import ConfigError
from tests.pods import meshes
from tests.training.loop import killed_run
from training.data import text_corpus
from training.loop import fit
from training.teacher import sources

STEPS = killed_run.STEPS


class Last(text_corpus.DataIterator):
    """Ends its process when asked for batch 3."""

    def __next__(self) -> text_corpus.Batch:
        if self.step == 3 and jax.process_index() == jax.process_count() - 1:
            os._exit(9)
        return super().__next__()


def train(workdir, steps: int, plan, iterator) -> fit.Result:
    table = jax.random.normal(jax.random.key(0), (32, 32))
    return fit.fit(
        {"table": table},
        killed_run.objective(),
        optax.adam(0.1),
        iterator,
        workdir,
        fit.FitConfig(
            steps=steps, clip=1.0, save_every=STEPS // 2, log_every=1, progress=False
        ),
        plan=plan,
    )


def write(lm, path: storage.Path) -> None:
    """A set of prompts, more than there are rows."""
    rows = [prompt_set.Prompt(p, 4 + i) for i, p in enumerate(meshes.prompts())]
    parts = compose.compose(recipes.method("plain"), lm, 0.8)
    params = {"target": lm.params}
    prompt_set.write(lm, rows, path, parts, params, about={}, batch=4)


def lesson(folder: storage.Path, plan=None) -> sources.TeacherRequest:
    """A stream read by this process's share, in shards that batches do not divide.

    The target's weights are numpy's: a cache is refused to a target that differs in a
    bit, and two compilations of a random start need not agree in the last one.
    """
    lm, rng = meshes.model(), np.random.default_rng(0)
    drawn = jax.tree.map(
        lambda x: jax.numpy.asarray(0.3 * rng.normal(size=x.shape), x.dtype), lm.params
    )
    lm = dataclasses.replace(lm, params=drawn)
    rows = text_corpus.DataIterator(killed_run.stream(), *sharding.share(plan))
    settings = sources.Settings(dtype="float32", shard_rows=5)
    return sources.TeacherRequest(lm, rows, (1,), settings, folder, plan)


def refusal(plan) -> str:
    """What is said of one row a process; "" where the mesh divides these rows."""
    try:
        plan.batch({"tokens": np.zeros((1, 4), np.int32)})
    except ConfigError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    join.define(parser)
    join.start(parser.parse_args([]))
    workdir, stream = storage.path(sys.argv[1]), killed_run.stream()
    rows = min(4, jax.device_count())  # of a batch
    plan = sharding.on(f"data={rows},tensor=-1", "train")
    if sys.argv[2:] == ["die"]:
        train(workdir / "dies", STEPS, plan, Last(stream, *plan.share()))
        return
    own = lambda: text_corpus.DataIterator(stream, *plan.share())
    train(workdir / "whole", STEPS, plan, own())
    train(workdir / "half", STEPS // 2, plan, own())
    first = text_corpus.DataIterator(stream, 0, plan.share()[1])
    train(workdir / "fault", STEPS, plan, first)
    folder = workdir / "features"
    next(sources.source("hybrid", lesson(folder, plan))[0])
    sources.build(lesson(folder, plan))
    lm = io.placed(meshes.model(), sharding.on("data=-1,tensor=2"))
    texts = meshes.texts(lm, "plain", None)
    write(lm, workdir / "texts.jsonl")
    leads, processes.leads = processes.leads, lambda: True
    write(lm, workdir / "fault.jsonl")
    processes.leads = leads
    if processes.leads():
        found = {"processes": jax.process_count(), "texts": texts}
        print(json.dumps({**found, "refused": refusal(plan)}))


if __name__ == "__main__":
    sharding.ORDERED = ("cpu",)  # weights lie in memory as a TPU's do
    main()
