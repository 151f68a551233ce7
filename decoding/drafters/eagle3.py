"""EAGLE-3: the draft layer reads three layers of the target and its own outputs.

Li, Wei, Zhang, Zhang, *EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test*, 2025, arXiv 2503.01840, section 3.1. Pairs are
(x_{t+1}, g_t) with

    g_t = fc [l_t ; m_t ; h_t]  for committed tokens,    a of the parent  for drafts
    a = Layer(x_{t+1}, g_t),    q(x_{t+2}) = softmax(W norm(a)), on the draft vocabulary

l, m, h: the states that enter the target's layers 2, L // 2, L - 3. a at the root and
the layer's keys are the state. The paper's tree is `topologies/eagle2`.

Deviations from the paper: none. A text whose prompt is one token has no state yet; its
first round drafts from a = 0.

Cost per call: one layer and one (small) head over the nodes of each level but the last,
and the layer over the round's committed tokens. No model call.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head, grow
from models.distributed import sharding
from models.heads import eagle3
from models.heads.modules import decoder_layer

CARD = Card(
    paper="EAGLE-3, arXiv 2503.01840",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("li2025eagle3",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/eagle3.py`.

    `taps` are the states that the heads were trained on, if other than the paper's.
    """
    eagle3.check(heads, model.config)
    target = model.config
    eps, read = decoder_layer.geometry(target).norm_eps, eagle3.taps(target, taps)

    def block(params, cache, embedded: Array, g: Array, nodes) -> tuple:
        return eagle3.block(params["heads"], target, cache, embedded, g, nodes)

    def laws(params, output: Array) -> Array:
        scores = eagle3.scores(params["heads"], output, eps)
        return sharding.constrain(scores, "batch - vocab")

    def part(params) -> grow.Part | None:
        heads = params["heads"]
        if not eagle3.config_of(heads).draft_vocabulary:
            return None
        spread = functools.partial(eagle3.spread, heads, vocab=target.vocab_size)
        return grow.Part(heads["kept"], spread)

    def features(params, outcome: base.Outcome) -> Array:
        three = jnp.stack([draft_head.states(outcome, tap) for tap in read], -2)
        return eagle3.features(params["heads"], three, eps)

    return draft_head.layered(
        model,
        topology,
        heads["layer"],
        target.d_model,
        block,
        laws,
        features,
        taps=read,
        part=part,
    )
