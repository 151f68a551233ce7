"""FS-GEN's router: the large model writes where the small one is unsure.

Zhang, Wang, Ding, Qi, Hua, Lv, Zhou, *Fast and Slow Generating: An Empirical Study on
Large and Small Language Models Collaborative Decoding*, 2024, arXiv 2406.12295,
section 3. With the small model's law p at a position, its best probabilities
p_1 >= p_2, and t,

    confidence   call the large model where p_1 < t
    margin       call it where (p_1 - p_2) / 2 < t
    always, never

and let the small model write the token elsewhere. t → `threshold`; the small model is
the draft model. With `verifiers/accept_drafted` this is the paper's decoding with the
oracle combiner: the large model's token stands where it was called. Under
`transforms/contrastive` or `transforms/proxy` the token there is the combined one. With
a lossless verifier the drafts are only drafts, and the text is plain decoding's.

t is at first that of the authors' driver, 0.5 for `confidence` and 0.2 for `margin`
(at 0.5 a margin always calls the large model).

Deviations from the paper: its speculative combiner, which drafts 5 tokens where the
large model is called, and writes all others unverified, is left out; so is its third
router, a support vector machine on the ten best probabilities (no published weights). p
is the raw law, before temperature.

Cost per call: one small call a token, two tokens wide in the first of a round.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain, draft_model
from models.errors import MethodError

CARD = Card(
    paper="Fast and Slow Generating, arXiv 2406.12295",
    guarantee=base.LAW,
    family="switching",
    data=("threshold",),
    needs=("draft", "draw"),
    trained=True,
    examples={"length": 3, "threshold": 0.4},
    sources=("zhang2024fast",),
)

# The routers, and their t in the authors' driver.
ROUTERS = {"confidence": 0.5, "margin": 0.2, "always": 0.0, "never": 0.0}


@struct.dataclass
class Row:
    threshold: Array  # float32[B]


def drafter(
    draft,
    router: str = "confidence",
    threshold: float | None = None,
    length: int = 5,
    draw: str = base.POINT,
) -> base.Drafter:
    """Draft with the small model up to the first token that the large one must write.

    Args:
        draft: the small model, whose params are `params["draft"]`.
        router: one of `ROUTERS`.
        threshold: t; None: that of the authors' driver.
        length: most drafts of a round; it does not change the text.
        draw: one of `base.DRAWS`.
    """
    model = draft
    if router not in ROUTERS:
        raise MethodError(f"router={router!r}: use one of {tuple(ROUTERS)}")
    if length < 1:
        raise MethodError(f"length={length}: draft at least one token")
    t = ROUTERS[router] if threshold is None else threshold

    def init(ctx: base.Context) -> base.State:
        level = jnp.full(ctx.length.shape, t, jnp.float32)
        return base.State((adaptive_chain.beside(model, ctx, length + 1), Row(level)))

    def rule(row: Row, step: adaptive_chain.Step):
        best = jnp.exp(vocab.top_k(vocab.log_softmax(step.raw), 2)[0])
        unsure = {
            "confidence": best[:, 0] < row.threshold,
            "margin": (best[:, 0] - best[:, 1]) / 2 < row.threshold,
            "always": step.live,
            "never": ~step.live,
        }[router]
        return row, ~unsure, ~unsure

    def propose(keys, ctx: base.Context, state: base.State):
        cache, row = state.row
        params = ctx.params["draft"]
        logits, cache = draft_model.root_logits(model, params, cache, ctx)
        call = adaptive_chain.caller(model, params)
        chain = adaptive_chain.drafted(
            call, cache, ctx, keys, draw, logits, length, rule, row
        )
        return chain.tree(ctx.root, draw), base.State((chain.cache, row)), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, row = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
        else:
            cache = adaptive_chain.keep(cache, outcome)
        return base.State((cache, row))

    return base.Drafter(init, propose, observe, length + 1, length)
