"""EAGLE: one decoder layer continues the target's features, token by token.

Li, Wei, Zhang, Zhang, *EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty*, 2024, arXiv 2401.15077, section 4.1; *EAGLE-2*, 2024, arXiv 2406.16858,
is this drafter with `topologies/eagle2`. The draft layer reads pairs (x_{t+1}, f_t),

    f^_{t+1} = Layer(fc [e(x_{t+1}) ; f_t]),    q(x_{t+2}) = softmax(W_lm f^_{t+1})

with f_t the target's normed state for committed tokens, and the parent's own output f^
for drafts. The state is f^ at the root and the layer's keys. After a round the keys are
those of every committed token's pair, made from true features.

Deviations from the paper: none. A text whose prompt is one token has no feature yet;
its first round drafts from f^ = 0.

Cost per call: one layer and one head over the nodes of each level but the last, and the
layer over the round's committed tokens. No model call.
"""

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.heads import eagle

CARD = Card(
    paper="EAGLE, arXiv 2401.15077",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("li2024eagle",),
)


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/eagle.py`."""
    eagle.check(heads, model.config)
    target = model.config

    def block(params, cache, embedded: Array, feature: Array, nodes) -> tuple:
        return eagle.block(params["heads"], target, cache, embedded, feature, nodes)

    def laws(params, output: Array) -> Array:
        return model.head(params["target"], output)

    def features(params, outcome: base.Outcome) -> Array:
        return draft_head.states(outcome, "norm")

    return draft_head.layered(
        model, topology, heads["layer"], target.d_model, block, laws, features
    )
