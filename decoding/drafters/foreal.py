"""FoReaL-Decoding: the large model leads a sentence, the small one completes it.

Li, Yang, Wang, Li, Lin, Zhou, Wang, *What makes Reasoning Models Different? Follow the
Reasoning Leader for Efficient Decoding*, 2025, arXiv 2506.06998. Where a sentence
begins,

    g ~ Bernoulli(p)
    g = 1   the large model writes n tokens, then the small one up to the sentence's end
    g = 0   the small model writes the sentence

g, p → `gate`; n → `lead`; a sentence ends with a token that has one of the characters
`terminators`, whoever writes it. The small model is the draft model; use it with
`verifiers/accept_drafted`, whose block is the large model's catch-up. With a lossless
verifier the drafts are only drafts, and the text is plain decoding's.

Deviations from the paper (reconstructed; a third parameter k that appears in its
reviews is not known and left out): the first token after the prompt begins a sentence;
the detector is a table over token ids. The defaults n = 15 and p = 1 are one of the
paper's settings; `terminators` and `length` are ours.

Cost per call: one small call a token of the small model, two tokens wide in the first
of a round; while the large model writes, one small call a token still, which fills its
cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain, draft_model
from models.errors import MethodError

CARD = Card(
    paper="FoReaL-Decoding, arXiv 2506.06998",
    guarantee=base.LAW,
    family="switching",
    data=("gate", "terminators"),
    needs=("draft", "draw", "tokenizer", "vocab_size"),
    trained=True,
    examples={"length": 3, "lead": 2, "gate": 0.5, "terminators": "ce"},
    sources=("li2025reasoning",),
)


@struct.dataclass
class Row:
    """The place of one request in its sentence."""

    begins: Array  # bool[B]: the next token begins a sentence; its gate is not drawn
    left: Array  # int32[B]: tokens that the large model must still write
    gate: Array  # float32[B]: p


def drafter(
    draft,
    tokenizer,
    vocab_size: int,
    lead: int = 15,
    gate: float = 1.0,
    terminators: str = ".!?\n",
    length: int = 8,
    draw: str = base.POINT,
) -> base.Drafter:
    """Draft with the small model wherever it is its turn to write.

    Args:
        draft: the small model, whose params are `params["draft"]`.
        tokenizer: spells the tokens.
        vocab_size: V.
        lead: n, tokens that the large model writes first.
        gate: p, a probability.
        terminators: characters that end a sentence.
        length: most drafts of a round; with `gate` 0 or 1 it does not change the text.
        draw: one of `base.DRAWS`.
    """
    model = draft
    if lead < 0 or length < 1:
        raise MethodError(f"lead={lead}, length={length}: use at least 0 and 1")
    if not 0 <= gate <= 1:
        raise MethodError(f"gate={gate}: use a probability, 0 to 1")
    table = ends(tokenizer, terminators, vocab_size)
    if not table.any():
        raise MethodError(
            f"no token has one of terminators={terminators!r}, so no sentence would "
            "end: name characters that the tokenizer has"
        )

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        p = jnp.full((batch,), gate, jnp.float32)
        row = Row(jnp.ones((batch,), bool), jnp.zeros((batch,), jnp.int32), p)
        cache = adaptive_chain.beside(model, ctx, length + 1)
        return base.State((cache, row), jnp.asarray(table))

    def propose(keys, ctx: base.Context, state: base.State):
        cache, row = state.row
        params = ctx.params["draft"]

        def rule(row: Row, step: adaptive_chain.Step):
            coins = jax.vmap(lambda key: jax.random.uniform(key))(step.keys)
            opens = row.begins & (coins < row.gate)
            left = jnp.where(opens, lead, row.left)
            small = left == 0
            begins = small & state.shared[step.token]
            return Row(begins, left, row.gate), small, small

        logits, cache = draft_model.root_logits(model, params, cache, ctx)
        call = adaptive_chain.caller(model, params)
        chain = adaptive_chain.drafted(
            call, cache, ctx, keys, draw, logits, length, rule, row
        )
        nodes = chain.tree(ctx.root, draw)
        after = base.State((chain.cache, chain.memory), state.shared)
        return nodes, after, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, row = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
            return base.State((cache, row), state.shared)
        cache = adaptive_chain.keep(cache, outcome)
        end = state.shared[outcome.verdict.token]
        left = jnp.where(end, 0, jnp.maximum(row.left - 1, 0))
        wrote = outcome.active & tree.chosen(outcome.verdict)
        updated = base.State(Row(end, left, row.gate))
        row = tree.masked(wrote, updated, base.State(row)).row
        return base.State((cache, row), state.shared)

    return base.Drafter(init, propose, observe, length + 1, length)


def ends(tokenizer, terminators: str, vocab_size: int) -> np.ndarray:
    """Mark the tokens bool[V] that have one of the characters `terminators`."""
    marks = [mark.encode("utf-8") for mark in terminators]
    spellings = tokenizer.token_bytes()[:vocab_size]
    marked = [any(mark in (bytes_ or b"") for mark in marks) for bytes_ in spellings]
    return np.array(marked + [False] * (vocab_size - len(marked)))
