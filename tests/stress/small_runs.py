"""Two small runs to be killed: `python -m tests.stress.small_runs KIND FOLDER [EVERY]`.

`train` is a bigram model under `training.loop.fit`, `prompts` a set of prompts decoded
by the exact toy model under `decoding.serving.prompt_set`; both depend on nothing but
this file. READY is printed where the work itself begins. Steps are slowed down, so that
a signal sent at a random time finds the run at a random place, in a checkpoint's
writing often.
"""

import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax

from decoding import compose, recipes
from decoding.loops import engines
from decoding.serving import continuous_batching, prompt_set
from models import storage
from models.synthetic import toy
from training.data import text_corpus
from training.loop import fit, preemption, train_step

READY = "ready"
STEPS, SAVE_EVERY = 120, 4
REQUESTS = 120
PAUSE = 0.01  # seconds a step
VOCAB = 32


class Slow(text_corpus.DataIterator):
    """Takes its time, and says when the first batch is asked for."""

    def __next__(self) -> text_corpus.Batch:
        if not self.begun:
            ready()
            self.begun = True
        time.sleep(PAUSE)
        return super().__next__()

    begun = False


def ready() -> None:
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()


def train(folder: storage.Path) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, VOCAB, n) for n in rng.integers(20, 60, 40)]
    corpus = text_corpus.Corpus(documents, 0)
    stream = text_corpus.Stream(corpus, (text_corpus.Stage(STEPS, 4, 16),), seed=3)

    def loss(params, batch, target_out):
        tokens = batch["tokens"]
        logp = jax.nn.log_softmax(params["table"][tokens[:, :-1]])
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean(), {}

    fit.fit(
        {"table": jax.random.normal(jax.random.key(0), (VOCAB, VOCAB))},
        train_step.Objective(loss),
        optax.adam(optax.linear_schedule(0.1, 0.0, STEPS)),
        Slow(stream),
        folder,
        fit.FitConfig(
            steps=STEPS,
            ema=0.9,
            save_every=SAVE_EVERY,
            keep=2,
            log_every=3,
            progress=False,
        ),
    )


def prompts(folder: storage.Path) -> None:
    model, params = toy.model(8, order=2, eos=(7,))
    lm = types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=model.config
    )
    rng = np.random.default_rng(1)
    rows = [
        prompt_set.Prompt(rng.integers(0, 7, n).tolist(), int(new))
        for n, new in zip(
            rng.integers(1, 12, REQUESTS),
            np.clip(rng.lognormal(2.5, 0.8, REQUESTS), 1, 60),
        )
    ]
    parts = compose.compose(recipes.method("plain"), lm, 0.8)
    # Everything is compiled before the work begins.
    texts = [p.tokens for p in rows]
    limits = [len(p.tokens) + p.new for p in rows]
    keys = engines.request_keys(0, REQUESTS, 1)
    given = {"target": params}
    for _ in continuous_batching.decode_requests(
        parts, given, texts, limits, keys, 4, wanted=range(4)
    ):
        pass
    ready()
    prompt_set.write(
        lm,
        rows,
        folder / "texts.jsonl",
        parts,
        given,
        about={"temperature": 0.8},
        batch=4,
        observe=lambda text: time.sleep(PAUSE),
    )


def main() -> int:
    kind, folder, *more = sys.argv[1:]
    if more:
        global SAVE_EVERY
        SAVE_EVERY = int(more[0])
    try:
        with preemption.watch():
            {"train": train, "prompts": prompts}[kind](storage.path(folder))
    except preemption.Preempted as notice:
        sys.stderr.write(f"{notice}\n")
        return preemption.REQUEUE
    return 0


if __name__ == "__main__":
    sys.exit(main())
