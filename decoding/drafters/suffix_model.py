"""SuffixDecoding before a draft model: the suffix draft where it promises more.

Oliaro, Jia, Campos, Qiao, *SuffixDecoding: Extreme Speculative Decoding for Emerging AI
Applications*, 2025, arXiv 2411.04975, the hybrid with a draft model. SCORE(T) is the
expected number of accepted tokens of the suffix draft T (`drafters/suffix_decoding`):

    draft = T                        if SCORE(T) >= threshold
            the draft model's tree   else

threshold is at first the number of tokens that the draft model would draft in a row, as
in the authors' code (Arctic Inference, `vllm/model_runner.py`).

Deviations from the paper: those of `drafters/suffix_decoding`; suffix drafts are paths,
as in the authors' code; rows of a batch choose for themselves, and the model runs
unless all of them take the suffix draft. Its tokens have one-hot laws q, so that
rejection schemes accept them with probability p.

Cost per call: that of SuffixDecoding; where a row's score is below the threshold also
that of the draft model, which first reads the tokens that it missed, 16 a call.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.drafters import model, suffix_decoding
from decoding.tree_building import lookup_or_model
from models.errors import MethodError

CARD = Card(
    paper="SuffixDecoding, arXiv 2411.04975",
    guarantee=base.LAW,
    family="draft model",
    data=("alpha", "offset", "least"),
    needs=("draft", "topology"),
    trained=True,
    examples={"threshold": 1.0, "most": 4, "pages": 8, "span": 16},
    sources=("oliaro2025suffixdecoding",),
)


def drafter(
    draft,
    topology: base.Topology,
    threshold: float | None = None,
    alpha: float = 1.0,
    offset: float = 0.0,
    least: float = 0.1,
    most: int = 16,
    longest: int = 64,
    places: int = 64,
    pages: int = 128,
    span: int = 512,
) -> base.Drafter:
    """Draft the suffix path where its score is `threshold` or more.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        topology: of the draft model's trees.
        threshold: least score of a suffix draft, in tokens; None: the topology's depth.
        alpha, offset, least, most, longest, places, pages, span: see
            `drafters/suffix_decoding`.
    """
    score = topology.depth if threshold is None else threshold
    if not score > 0:
        raise MethodError(
            f"threshold={threshold}: use a number > 0, since the score of no match is 0"
        )
    if span <= topology.depth:
        raise MethodError(
            f"span={span}: a page must hold a round's {topology.depth + 1} tokens, so "
            f"use a span above the topology's depth, {topology.depth}"
        )
    lookup = suffix_decoding.drafter(
        alpha,
        offset,
        least,
        most,
        longest=longest,
        places=places,
        pages=pages,
        span=span,
    )
    writer = model.drafter(draft, lookup_or_model.unless_copied(topology))

    def propose(keys, ctx: base.Context, state: base.State):
        scores, path = suffix_decoding.propose(ctx, state, most, longest, places)
        return path, scores >= score, state

    return lookup_or_model.drafter(lookup, propose, writer, topology)
