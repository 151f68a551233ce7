"""Context-free grammars over whole tokens, for canvases with exact gaps.

Mündler et al., *Constrained Decoding of Diffusion LLMs with Context-Free Grammars*,
2025, arXiv 2508.10111: a text with holes may stand if the grammar has a text that
agrees with it; a token that leaves none is forbidden, and the next best one is drawn.

    allowed(i) = {t : t in place of entry i, and some tokens in the other holes, make a
                  text of the grammar, with ends of sequence up to the canvas's end}

Here both come from one pass, inside and outside of every span (`automata/
token_charts`), for all positions and tokens together. Drawing from the allowed tokens
is drawing again with the rejected ones at -inf.

Deviations: the paper decides whether the grammar meets the known pieces with *anything*
between them. It so admits fillings that need more tokens than there are masks, and gaps
that only the empty text fills; here a gap of m masks is exactly m tokens, and every
canvas that passes is finished. The paper reads characters and lexes them; here a
terminal is a whole token. Positions are ranked by the confidence behind the mask. The
paper draws at most 100 times.

An autoregressive text is held to the same language: it ends within `longest` tokens.

Cost a pass: n² R n/32 words for n positions and R rules of two symbols, in 2 n steps. A
step takes a pass, and half of one more for each further token that it commits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.automata import token_charts, token_rules
from decoding.catalogue import Card
from decoding.denoising.holes import OPEN, Holes
from models.errors import ConstraintError

CARD = Card(
    paper="Constrained decoding of diffusion LLMs, arXiv 2508.10111",
    guarantee=base.LAW,
    family="grammar",
    data=("grammar",),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"grammar": 'root ::= ("a" root "b" | [c-f])*', "longest": 12},
    sources=("mundler2025constrained",),
)


@struct.dataclass
class Row:
    text: Array  # int32[longest]: OPEN behind the text
    length: Array  # int32[]


def transform(
    grammar: str,
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    longest: int = 64,
) -> base.LogitsTransform:
    """Restrict the text to a grammar over tokens.

    If earlier transforms have forbidden every token that the grammar allows, the
    grammar wins: its tokens become equally likely.

    Args:
        grammar: GBNF whose first rule is `root`; a literal is one token of its bytes,
            a class one token that spells one of its characters.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        longest: tokens of an autoregressive text, at most; a canvas has its own size.

    Raises:
        ConstraintError: a grammar that is invalid or has no finite text (of `longest`
            tokens at most: in `init`), a literal that is no token, no end of sequence.
    """
    if longest < 1:
        raise ConstraintError(f"longest={longest}: use at least 1")
    if not eos:
        raise ConstraintError(
            "a grammar needs an end-of-sequence token to end a text: pass ids as eos"
        )
    tables = _tables(grammar, tokenizer, tuple(eos), vocab_size)

    def of_canvas(tokens: Array, length: Array) -> base.State:
        return base.State((), tables)

    def possible(state: base.State, canvas: Array) -> Array:
        return _possible(state.shared, canvas)

    def allowed(state: base.State, canvas: Array) -> Array:
        return _fillings(state.shared, canvas)

    def init(tokens: Array, length: Array) -> base.State:
        with jax.ensure_compile_time_eval():
            is_possible = bool(_possible(tables, jnp.full(longest, OPEN)))
        if not is_possible:
            raise ConstraintError(
                f"the grammar has no text of {longest} tokens or fewer: raise longest"
            )
        row = Row(jnp.full(longest, OPEN, jnp.int32), jnp.int32(0))
        return base.State(row, of_canvas(tokens, length).shared)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        at = jnp.minimum(state.row.length, longest - 1)
        words = allowed(state, state.row.text)[at]
        is_full = state.row.length >= longest
        members = vocab.members(
            jnp.where(is_full, state.shared.ends, words), vocab_size
        )
        return jnp.where(members.any(), vocab.restricted(logits, members), logits)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        text = row.text.at[row.length].set(token.astype(jnp.int32), mode="drop")
        return base.State(Row(text, row.length + 1), state.shared)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits

    holes = Holes(of_canvas, possible, allowed)
    return base.LogitsTransform(init, apply, advance, free=free, holes=holes)


_possible, _fillings = jax.jit(token_charts.possible), jax.jit(token_charts.fillings)


@functools.lru_cache(16)
def _tables(
    grammar: str, tokenizer: Any, eos: tuple[int, ...], vocab_size: int
) -> token_charts.Tables:
    spelled = tokenizer.token_bytes()
    if len(spelled) > vocab_size:
        raise ConstraintError(
            f"the tokenizer has {len(spelled)} tokens and the model {vocab_size}: use "
            "the tokenizer of this model"
        )
    tokens = [b"" if i in eos else token for i, token in enumerate(spelled)]
    rules = token_rules.rules(grammar, tokens, vocab_size)
    with jax.ensure_compile_time_eval():
        return token_charts.tables(rules, eos)
