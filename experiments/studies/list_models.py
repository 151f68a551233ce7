"""Small masked models of list rules: their tokens, their data, their training.

A text is a rule, what the rule takes, the list, a bar, and the answer, whose canvas
ends in EOS:

    replace_index  x  2  a b c d e f  |  a b x d e f EOS

The loss is that of Nie et al., *Large Language Diffusion Models*, 2025, arXiv
2502.09992, section 2.3: the answer alone is masked, each of its positions with
probability t, and the cross-entropy of the masked ones is divided by t.
"""

import functools
import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import models
from experiments.benchmarks import list_rules
from models import storage, transformer
from models.base import Block, Visibility
from training.loop import fit, optimizers
from training.loop.train_step import Batch, Objective
from training.objectives.language_models.next_token import cross_entropy

EOS, BAR, MASK = "<eos>", "|", "<mask>"
NUMBERS = tuple(map(str, range(10)))
WORDS = (EOS, *list_rules.LETTERS, *NUMBERS, *list_rules.RULES, BAR, MASK)
IDS = {word: i for i, word in enumerate(WORDS)}
SMALLEST = 1e-3  # of t, as in the authors' code


def prompt(case: list_rules.Case) -> list[int]:
    """Return a case's tokens up to the bar."""
    words = [case.rule, *([case.word] if case.word else [])]
    words += [str(case.number)] if case.number >= 0 else []
    return [IDS[word] for word in (*words, *case.items, BAR)]


def spelt(tokens: Sequence[int]) -> list[str]:
    """Return the words of a text up to its EOS."""
    words = [WORDS[token] for token in tokens]
    return words[: words.index(EOS)] if EOS in words else words


def sizes(config: Any) -> tuple[int, int]:
    """Return the tokens of the longest prompt, and of a canvas: answer and EOS."""
    drawn = [list_rules.cases(rule, 1, 0, (config.length,))[0] for rule in config.rules]
    answers = [list_rules.answer_size(rule, config.length) for rule in config.rules]
    return max(len(prompt(case)) for case in drawn), 1 + max(answers)


def shape(config: Any) -> transformer.Config:
    """Return the transformer's config."""
    m = config.network
    return transformer.Config(
        vocab_size=len(WORDS),
        d_model=m.width,
        n_layers=m.layers,
        n_heads=m.heads,
        n_kv_heads=m.heads,
        head_dim=m.width // m.heads,
        d_ff=m.hidden,
        max_positions=m.positions,
        ropes=(transformer.rope(m.width // m.heads, 10_000.0),),
        mask_token=IDS[MASK],
        visibility=("bidirectional",),
        eos=(IDS[EOS],),
    )


class Stream:
    """Batches of fresh cases with their masks; step and seed determine each."""

    def __init__(self, config: Any, seed: int, canvas: int = 0) -> None:
        """Fill a `canvas` of so many positions with EOS; 0: the longest answer's."""
        self.config, self.seed, self.step = config, seed, 0
        self.before, size = sizes(config)
        self.size = canvas or size

    def __next__(self) -> Batch:
        batch = self.batch(self.step)
        self.step += 1
        return batch

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])

    def batch(self, step: int) -> Batch:
        """Make the batch of a step.

        Returns:
            `tokens` and `shown` int32[B, T], the text and what the model sees of it;
            `length` int32[B]; `weights` float32[B, T]: 1/t where a token is masked. The
            B values of t are spread evenly over (0, 1).
        """
        c = self.config
        rng = random.Random(f"{self.seed} {step}")
        rows = []
        for _ in range(c.train.batch):
            case = list_rules.draw(rng.choice(list(c.rules)), rng, (c.length,))
            answer = [IDS[word] for word in case.answer]
            rows.append((prompt(case), answer + [0] * (self.size - len(answer))))
        noise = np.random.default_rng([self.seed, step])
        share = (np.arange(len(rows)) + noise.random()) / len(rows)
        share = SMALLEST + (1 - SMALLEST) * noise.permutation(share)
        tokens = np.zeros((len(rows), self.before + self.size), np.int32)
        is_answer = np.zeros(tokens.shape, bool)
        for i, (before, answer) in enumerate(rows):
            text = [*before, *answer]
            tokens[i, : len(text)] = text
            is_answer[i, len(before) : len(text)] = True
        masked = is_answer & (noise.random(tokens.shape) < share[:, None])
        return {
            "tokens": tokens,
            "shown": np.where(masked, IDS[MASK], tokens).astype(np.int32),
            "length": np.asarray([len(a) + len(b) for a, b in rows], np.int32),
            "weights": (masked / share[:, None]).astype(np.float32),
        }


def logits(model: Any, params: Any, tokens: Array, length: Array) -> Array:
    """Run whole texts, in which all see all; float32[B, T, V].

    This is the model call of the denoise loop, on a new cache.

    Args:
        model: the `base.LanguageModel`.
        params: its params.
        tokens: int32[B, T].
        length: int32[B]: tokens of each text; what is behind is not seen.
    """
    rows, width = tokens.shape
    place = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
    ancestors = jnp.zeros((rows, width, 1), jnp.uint32)
    block = Block(tokens, place, place, Visibility(length, ancestors))
    out, _ = model(params, model.init_cache(rows, width), block)
    return out.logits


def objective(model: Any, size: int) -> Objective:
    """Build the loss, for canvases of `size` tokens."""

    def loss(params: Any, batch: Batch, target_out: Any) -> tuple:
        found = logits(model, params, batch["shown"], batch["length"])
        nats = cross_entropy(found, batch["tokens"]) * batch["weights"]
        return nats.sum() / (nats.shape[0] * size), {}

    return Objective(loss, quantity=lambda params: "bound, nats a token of the answer")


@functools.cache
def network(config: transformer.Config) -> Any:
    """Build the model; all seeds share its programs."""
    return transformer.transformer(config, kernel="xla")  # which has gradients


def trained(config: Any, folder: storage.Path, seed: int) -> models.Loaded:
    """Train the model of a seed, or go on with what the folder holds."""
    model = network(shape(config))
    loss = objective(model, sizes(config)[1])
    params = model.init(jax.random.key(seed))
    return fitted(config.train, folder, model, params, loss, Stream(config, seed))


def fitted(
    t: Any, folder: storage.Path, model: Any, params: Any, loss: Objective, data: Any
) -> models.Loaded:
    """Train params by a group of the recipe, or go on with what the folder holds."""
    schedule = optimizers.warmup_stable_decay(t.rate, t.steps, t.warmup, t.decay)
    optimizer = optimizers.adamw(schedule, weight_decay=t.weight_decay)
    settings = fit.FitConfig.from_recipe(t, t.steps)
    result = fit.fit(params, loss, optimizer, data, folder, settings)
    return models.Loaded(model, result.params)
