"""What is trained on from a model of list rules, for arms that need it.

- dParallel: the model learns to be certain of its own texts
  (`training/objectives/language_models/dparallel.py`).
- Longer canvases: what is behind an answer is filled with EOS, part of the loss, as in
  the fine-tuning of Nie et al., 2025, arXiv 2502.09992. So a text's end can be guessed.
- Learn2PD: a filter of final guesses, and the oracle that bounds every filter
  (`training/objectives/predictors/learn2pd.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import decoding
import models
from experiments.benchmarks import list_rules
from experiments.studies import list_models
from models import storage
from models.predictors import unmask_filter
from training.loop.train_step import Batch
from training.objectives.language_models import dparallel
from training.objectives.predictors import learn2pd

OWN = 2 * 10**6  # seeds of lists that a model writes to learn from
Prompts = list[list[int]]


def of_arm(
    config: Any, folder: storage.Path, seed: int, lm: Any, arm: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the model and the drafts of an arm; train what the folder lacks.

    Args:
        config: the recipe.
        folder: of the seed.
        seed: of the trainings.
        lm: the model of the seed.
        arm: `weight`: of dParallel's entropy; `canvas`: positions of a longer canvas;
            `filter`: whether it has one.
    """
    if "weight" in arm:
        lm = certain(
            config, folder / f"weight-{arm['weight']:g}", seed, lm, arm["weight"]
        )
    elif "canvas" in arm:
        lm = longer(config, folder / f"canvas-{arm['canvas']}", seed, lm, arm["canvas"])
    if not arm.get("filter", False):
        return lm, {}
    new = arm.get("canvas", list_models.sizes(config)[1])
    return lm, {"filter": filtered(config, seed, lm, new)}


def own(config: Any, seed: int, count: int) -> Prompts:
    """Return the prompts that a model learns from, `count` of each rule."""
    about = (count, OWN + seed, (config.length,))
    cases = [case for rule in config.rules for case in list_rules.cases(rule, *about)]
    order = np.random.default_rng([OWN, seed]).permutation(len(cases))
    return [list_models.prompt(cases[i]) for i in order]


def texts(config: Any, lm: Any, prompts: Prompts) -> Prompts:
    """Write greedy texts, one position a forward."""
    found: Prompts = []
    for first in range(0, len(prompts), config.batch):
        part = prompts[first : first + config.batch]
        new = list_models.sizes(config)[1]
        out = decoding.generate(lm, part, learn2pd.REFERENCE, max_new_tokens=new)
        found += [[*map(int, text)] for text in out.tokens]
    return found


class Texts:
    """Batches of texts, all of them in each epoch; the step determines each."""

    def __init__(self, config: Any, prompts: Prompts, answers: Prompts, seed: int):
        self.batch, self.seed, self.step = config.dparallel.batch, seed, 0
        width = sum(list_models.sizes(config)) + 1  # the last token is no target
        shape = (len(prompts), width)
        self.tokens = np.zeros(shape, np.int32)
        self.answer, self.behind = np.zeros(shape, bool), np.ones(shape, np.int32)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            size = len(prompt) + len(answer)
            self.tokens[i, :size] = [*prompt, *answer]
            self.answer[i, len(prompt) : size] = True
            self.behind[i, :size] = 0

    def __next__(self) -> Batch:
        begin = self.step * self.batch
        row = np.arange(begin, begin + self.batch)
        self.step += 1
        epochs, place = np.divmod(row, len(self.tokens))
        orders = {
            epoch: np.random.default_rng([self.seed, epoch]).permutation(
                len(self.tokens)
            )
            for epoch in set(epochs.tolist())
        }
        at = np.asarray([orders[e][p] for e, p in zip(epochs.tolist(), place)])
        return {
            "tokens": self.tokens[at],
            "loss_mask": self.answer[at],
            "segments": self.behind[at],
            "row": row.astype(np.int32),
        }

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def certain(
    config: Any, folder: storage.Path, seed: int, lm: Any, weight: float
) -> models.Loaded:
    """Train a model on its own texts by dParallel's loss."""
    prompts = own(config, seed, config.dparallel.lists)
    data = Texts(config, prompts, texts(config, lm, prompts), seed)
    loss = dparallel.objective(lm.config, weight, seed=seed)
    return list_models.fitted(config.dparallel, folder, lm.model, lm.params, loss, data)


def longer(
    config: Any, folder: storage.Path, seed: int, lm: Any, canvas: int
) -> models.Loaded:
    """Train a model on longer canvases, whose tails are EOS."""
    data = list_models.Stream(config, seed, canvas)
    loss = list_models.objective(lm.model, canvas)
    return list_models.fitted(config.tail, folder, lm.model, lm.params, loss, data)


def filtered(config: Any, seed: int, lm: Any, new: int) -> Any:
    """Fit a filter to a model's own decodes of `new` tokens."""
    c = config.learn2pd
    data = learn2pd.cases(lm, own(config, seed, c.lists), new, batch=config.batch)
    first = unmask_filter.init(jax.random.key(seed), hidden=c.hidden)
    return learn2pd.fit(first, data, c.rate, c.steps)[0]


def oracle_calls(
    lm: Any, prompts: Prompts, answers: Sequence[Sequence[int]], new: int
) -> float:
    """Return the mean calls of the oracle that writes these greedy answers."""
    return learn2pd.replayed(lm, prompts, answers, new).calls / len(prompts)
