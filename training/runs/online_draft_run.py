"""Online speculative decoding: train a draft on tokens that its target rejects.

Liu et al., *Online Speculative Decoding*, 2024, arXiv 2310.07177. Every `every`
requests the draft takes `steps` optimiser steps on the ring buffer of rejected places
that `drafters/online_sd` fills, with

    L = mean over places  - sum over kept x of p(x) log q(x) - rest(p) log rest(q)

rest: the mass of all tokens that were not kept. Updates happen between calls of
`generate`, so each text is decoded by one draft, and no text changes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import logging
from jax import Array

import decoding
from decoding.drafters import online_sd
from models import transformer
from models.errors import ConfigError
from training.teacher.outputs import NORM, mean


def loss(model: Any, params: Any, buffer: online_sd.Buffer) -> Array:
    """Compute nats a place, averaged over the filled places; 0 if none is filled."""
    out = transformer.forward(model.config, params, buffer.context, taps=(NORM,))
    rows = jnp.arange(buffer.size.shape[0])
    states = out.hidden[NORM][rows, jnp.maximum(buffer.size - 1, 0)]
    logq = jax.nn.log_softmax(model.head(params, states).astype(jnp.float32), -1)
    logq = jnp.take_along_axis(logq, buffer.tokens, -1)
    p = jnp.exp(buffer.logp)
    rest = jnp.maximum(1.0 - p.sum(-1), 0.0)
    left = jnp.maximum(1.0 - jnp.exp(logq).sum(-1), 1e-6)
    each = -(p * logq).sum(-1) - rest * jnp.log(left)
    return mean(each, (buffer.size > 0).astype(jnp.float32))


class Online:
    """A target that serves requests with a draft that is trained between them.

    `draft` is the present draft; `memory` goes to the next call. A step whose loss is
    not finite is dropped: the last good draft stays.

    Args:
        lm: the target.
        draft: the first draft.
        method: the method of every call, with `drafters/online_sd`.
        optimizer: an optax transformation; None: Adam at 1e-4.
        every: requests between updates.
        steps: optimiser steps of an update.
    """

    def __init__(
        self,
        lm: Any,
        draft: Any,
        method: decoding.Method,
        optimizer: optax.GradientTransformation | None = None,
        every: int = 8,
        steps: int = 1,
    ):
        if every < 1 or steps < 0:
            raise ConfigError(
                f"every={every}, steps={steps}: use at least 1 request, 0 steps"
            )
        self.lm, self.draft, self.method = lm, draft, method
        self.every, self.steps = every, steps
        self.optimizer = optax.adam(1e-4) if optimizer is None else optimizer
        # Small steps would be lost in the decoding dtype.
        self.params = jax.tree.map(lambda x: x.astype(jnp.float32), draft.params)
        self.opt_state = self.optimizer.init(self.params)
        self.memory: Any = None
        self.waiting = 0  # requests since the last update
        self.losses: list[float] = []
        self._update = jax.jit(self._updated)

    def generate(self, prompts: Sequence[Any], **fields: Any) -> decoding.Output:
        """Call `decoding.generate` with the present draft, and update it when due."""
        out = decoding.generate(
            self.lm,
            prompts,
            self.method,
            drafts={"draft": self.draft},
            memory=self.memory,
            **{"width": "paper", **fields},  # it learns from whole drafts
        )
        self.memory = out.memory
        self.waiting += len(prompts)
        if self.waiting >= self.every:
            self.waiting = 0
            self.update()
        return out

    def update(self) -> None:
        """Train on the buffer now."""
        if self.memory is None or not self.steps:
            return
        updated = self._update(self.params, self.opt_state, self.memory.buffer)
        params, opt_state, last = updated
        self.losses.append(float(last))
        if not jnp.isfinite(last):
            logging.warning("online update: loss %s; the draft stays as it is", last)
            return
        self.params, self.opt_state = params, opt_state
        same = lambda new, old: new.astype(old.dtype)
        served = jax.tree.map(same, params, self.draft.params)
        self.draft = replace(self.draft, params=served)

    def _updated(self, params: Any, opt_state: Any, buffer: Any) -> tuple:
        model = self.draft.model

        def step(carry: tuple, _: None) -> tuple:
            params, opt_state = carry
            value, grads = jax.value_and_grad(lambda p: loss(model, p, buffer))(params)
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

        start = (params, opt_state)
        values: Any
        (params, opt_state), values = jax.lax.scan(step, start, None, self.steps)
        return params, opt_state, values[-1]
