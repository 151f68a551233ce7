"""CNTP: the flatter the law, the more trials up to the next punctuation mark.

Wang, Zhang, Bai, Chiu, Hu, Zhang, Dong, Yin, Amirghodsi, Fu, *Cautious Next Token
Prediction*, 2025, arXiv 2507.03038, section 3. With H the entropy of the next token's
law, in nats,

    n = floor(1 + (M - 1) clip((H - low) / (high - low), 0, 1))

n = 1: one token is drawn. n > 1: n texts are drawn, each until a punctuation mark, and
the one of the lowest perplexity is kept whole. M -> trials. Marks are the tokens of one
character of `.,\\n?!:;)]}`. The law is that after the transforms, by which perplexities
are measured too. A text of one trial is that of plain sampling.

Deviations: a trial ends after `longest` tokens; the official code has no bound.
Cost: up to M nodes a token, and as many rounds as the longest trial has tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, noise, vocab
from decoding.catalogue import Card
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.pool import NONE, Pool
from decoding.text_lookup import token_marks
from models.errors import MethodError

CARD = Card(
    paper="Cautious next token prediction, arXiv 2507.03038",
    guarantee=base.LOSSY,
    family="look-ahead",
    needs=("tokenizer", "vocab_size"),
    data=("low", "high"),
    examples={"trials": 3, "longest": 8, "marks": "abc"},
    sources=("wang2025cautious",),
)

MARKS = ".,\n?!:;)]}"


@struct.dataclass
class Row:
    low: Array  # float32[]
    high: Array  # float32[]
    lane: Array  # int32[]: where the text ends, if no trial is live
    live: Array  # bool[M]: trials that go on
    ended: Array  # bool[M]: by EOS, a stop or the limit
    token: Array  # int32[M]: the last one of an ended trial
    total: Array  # float32[M]: log-probability of a trial
    count: Array  # int32[M]: its tokens; 0: no trial
    score: Array  # float32[]: of the text before the trials


def select(
    tokenizer: Any,
    vocab_size: int,
    trials: int = 10,
    low: float = 0.01,
    high: float = 1.5,
    longest: int = 64,
    marks: str = MARKS,
) -> Select:
    """Search by trials.

    Args:
        tokenizer: the target's.
        vocab_size: the target's.
        trials: M, texts to choose from at most.
        low: entropy in nats up to which one token is drawn.
        high: entropy from which on there are `trials` texts.
        longest: tokens of a trial at most.
        marks: the characters that end a trial.
    """
    if trials < 1 or longest < 1:
        raise MethodError(f"trials={trials}, longest={longest}: use at least 1 of each")
    if not low < high:
        raise MethodError(f"low={low}, high={high}: use a low end below the high one")
    ends = jnp.asarray(token_marks.among(tokenizer, vocab_size, marks))

    def init(params: base.Params, size: int) -> base.State:
        none, zero = jnp.zeros(trials, bool), jnp.zeros(trials, jnp.int32)
        numbers = (jnp.float32(low), jnp.float32(high), jnp.int32(0))
        zeros = jnp.zeros(trials)
        return base.State(Row(*numbers, none, none, zero, zeros, zero, zeros[0]))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row, index = state.row, jnp.arange(trials)
        logp = vocab.log_softmax(view.logits)
        # No trial goes on: the best is kept, and the next token is to be decided.
        decides = ~row.live.any()
        mean = row.total / jnp.maximum(row.count, 1)
        winner = jnp.argmax(jnp.where(row.count > 0, mean, -jnp.inf))
        at = jnp.where((row.count > 0).any(), winner, row.lane)
        score = row.score + jnp.where(decides, row.total[at], 0.0)
        over = decides & row.ended[at]
        flat = (vocab.entropy(view.logits[at]) - row.low) / (row.high - row.low)
        count = 1 + jnp.floor((trials - 1) * jnp.clip(flat, 0, 1)).astype(jnp.int32)
        lane = jnp.where(decides, at, index)
        # The noise of a position would be drawn twice where a longer trial lost.
        fresh = jax.vmap(lambda j: noise.gumbel(jax.random.fold_in(key, j), vocab_size))
        drawn = jnp.where(view.sampled, fresh(index), 0.0)
        plain = view.noise(jnp.zeros(trials, jnp.int32))[lane]
        drawn = jnp.where(decides & (count == 1), plain, drawn)
        token = vocab.argmax(logp[lane] + drawn)
        live = jnp.where(decides, index < count, row.live) & ~over
        ended = view.ends(lane, token) & live
        hangs = live & ~ended
        size = jnp.where(decides, 0, row.count) + live
        goes = hangs & ~ends[token] & (size < longest)
        goes &= ~(decides & (count == 1))
        waits = ended | (~decides & ~row.live & (row.count > 0))
        run = jnp.where(waits, view.lanes[lane], -1)
        run = jnp.where(hangs, view.ids(hangs), run)
        text = Pool(
            jnp.where(over, view.lanes[at], -1)[None],
            row.token[at][None],
            view.raw[at, row.token[at]][None],
            jnp.where(over, score, NONE)[None],
        )
        pool = pools.merged(view.pool, text)
        total = jnp.where(decides, 0.0, row.total)
        total += jnp.where(live, logp[lane, token], 0.0)
        after = Row(
            *(row.low, row.high, at, goes),
            ended | jnp.where(decides, False, row.ended),
            jnp.where(live, token, row.token),
            total,
            size,
            score,
        )
        chosen = Selection(lane, token, hangs, run, pool, over)
        return chosen, base.State(after, state.shared)

    return Select(
        *(init, choose, trials, trials, 1, lambda new: 1 + new * min(new, longest)),
        samples=True,
    )
