"""Drafts of a small model for all lanes of a search together.

The draft model of Leviathan, Kalman, Matias, *Fast Inference from Transformers via
Speculative Decoding*, 2023, arXiv 2211.17192, under the hypotheses of a search. With K
lanes, s_k the log-probability of the text of lane k, and q the draft model's law, a
level holds the K m best of the sums

    s_k + log q_k(v)

over all lanes and tokens; the next level continues with those sums. K -> lanes; m ->
`m`; the number of levels -> `depth`. A lane that is likely to be dropped has few drafts
or none, and one whose law is flat has many.

The draft model runs on the nodes of the search, in scratch slots of its own cache that
are those of the target. So no hypothesis has a cache of its own, and a reorder moves
nothing.

A level of the search counts only where the leaves of all lanes were drafted; so drafts
pay for few lanes. The search is the same one with every drafter, in fewer rounds.

Cost a round: `depth` + 1 calls of the draft model, the first of K nodes and the others
of K m; K (1 + m depth) nodes of the target.
"""

from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import beams
from decoding.hypotheses.drafts import Lanes
from models.errors import MethodError

CARD = Card(
    paper="Speculative decoding, arXiv 2211.17192",
    guarantee=base.LAW,
    family="draft model",
    kind="lanes",
    needs=("draft",),
    trained=True,
    examples={"m": 2},
    sources=("leviathan2023fast",),
)


def lanes(draft, m: int = 8, depth: int = 1) -> Lanes:
    """Draft for lanes with `draft`, a `LanguageModel`.

    Args:
        draft: the draft model.
        m: drafts of a level, for each lane on average.
        depth: levels of drafts.
    """
    for name, value in (("m", m), ("depth", depth)):
        if value != int(value) or value < 1:
            raise MethodError(f"{name}={value}: use a whole number, 1 or more")
    size = draft.config.vocab_size

    def count(lanes: int) -> int:
        return min(m, size) * lanes

    def expand(sums: Array, logprobs: Array, most: int) -> tuple[Array, Array, Array]:
        return beams.candidates(None, sums[:, None] + logprobs, most)

    return Lanes(draft, depth, count, expand)
