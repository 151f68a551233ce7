"""A small training run that ends itself with SIGKILL; run by test_resume.py.

Usage: killed_run.py WORKDIR POINT [--forget]. POINT is `none`, `step:N` (dies before
step N's update), `save:N` (dies while the checkpoint of step N is being written), or
`full:B` (no file may have more than B bytes). `--forget` is the planted fault: the data
iterator's state is not restored.
"""

import os
import resource
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from training.data import text_corpus
from training.loop import checkpoints, fit, train_step

STEPS = 12


def stream() -> text_corpus.Stream:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 32, size) for size in rng.integers(20, 60, 40)]
    return text_corpus.Stream(
        text_corpus.Corpus(documents, 0), (text_corpus.Stage(STEPS, 4, 16),), seed=3
    )


def objective() -> train_step.Objective:
    """A bigram model: enough for a curve that depends on every batch."""

    def loss(params, batch, target_out):
        tokens = batch["tokens"]
        logp = jax.nn.log_softmax(params["table"][tokens[:, :-1]])
        picked = jnp.take_along_axis(logp, tokens[:, 1:, None], -1)
        return -picked.mean(), {}

    return train_step.Objective(loss)


def run(workdir: str, iterator: text_corpus.DataIterator) -> fit.Result:
    table = jax.random.normal(jax.random.key(0), (32, 32))
    return fit.fit(
        {"table": table},
        objective(),
        optax.adam(optax.linear_schedule(0.1, 0.0, STEPS)),
        iterator,
        workdir,
        fit.FitConfig(
            steps=STEPS,
            rows_at_once=2,
            clip=1.0,
            ema=0.9,
            save_every=3,
            keep=2,
            log_every=2,
            progress=False,
        ),
    )


class Doomed(text_corpus.DataIterator):
    """Sends itself `sign` when asked for batch `at`; `forget` leaves the state."""

    at = -1
    sign = signal.SIGKILL
    forget = False

    def __next__(self) -> text_corpus.Batch:
        if self.step == self.at:
            os.kill(os.getpid(), self.sign)
        return super().__next__()

    def restore(self, state: dict) -> None:
        if not self.forget:
            super().restore(state)


def main() -> None:
    workdir, point = sys.argv[1:3]
    kind, _, number = point.partition(":")
    iterator = Doomed(stream())
    iterator.forget = "--forget" in sys.argv
    if kind == "step":
        iterator.at = int(number)
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), resource.RLIM_INFINITY))
    if kind == "save":
        whole = checkpoints.Store.save

        def save(self, state, extra):
            whole(self, state, extra)  # returns while the writing goes on
            if int(state.step) == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoints.Store.save = save
    run(workdir, iterator)


if __name__ == "__main__":
    main()
