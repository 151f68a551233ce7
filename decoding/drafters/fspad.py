"""FSPAD: EAGLE with features that the token samples, and an output for each purpose.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562, sections 3.1 and 3.2. The draft
layer reads pairs (x_{t+1}, f_t),

    u = sample(e(x_{t+1}), fc [e(x_{t+1}) ; f_t]),    [a ; f^_{t+1}] = Layer(u)
    q(x_{t+2}) = softmax(W_lm a)

with f_t the target's normed state for committed tokens and the parent's f^ for drafts;
a is for the law alone. [a ; f^] at the root and the layer's keys are the state. The
paper's tree is `topologies/eagle2`.

Deviations from the paper: none. A text whose prompt is one token has no feature yet;
its first round drafts from zeros.

Cost per call: EAGLE's, with a second MLP beside the layer's, of which `down` is twice
as wide. No model call.
"""

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.heads import fspad

CARD = Card(
    paper="FSPAD, arXiv 2408.15562",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("gui2024boosting",),
)


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/fspad.py`."""
    fspad.check(heads, model.config)
    target = model.config

    def block(params, cache, embedded: Array, feature: Array, nodes) -> tuple:
        return fspad.block(params["heads"], target, cache, embedded, feature, nodes)

    def laws(params, output: Array) -> Array:
        return model.head(params["target"], fspad.halves(output)[0])

    def features(params, outcome: base.Outcome) -> Array:
        return draft_head.states(outcome, "norm")

    return draft_head.layered(
        model,
        topology,
        heads["layer"],
        2 * target.d_model,
        block,
        laws,
        features,
        handed=lambda output: fspad.halves(output)[1],
    )
