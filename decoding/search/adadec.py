"""AdaDec: where the law is flat, look ahead before the token is chosen.

He, Liu, Wang, Li, Wang, Peng, Zheng, *Towards Better Code Generation: Adaptive Decoding
with Uncertainty Guidance*, 2025, arXiv 2506.08980, section 3. With H the entropy of the
next token's law p, in nats,

    H < theta: the best token
    else, of the B best tokens c, each continued greedily by L tokens:
        argmax_c (log p(c) + sum of the L log p) / (L + 1)

theta -> threshold; B -> beams; L -> lookahead. A continuation ends early with the text,
and where a function's body does: with a line that is not indented, or four blank lines.
theta is learned for each model (experiments/trainings/adadec_threshold.py): 2.161 for
`tiny` on held-out code.

Deviations: none of the search; theta has no default, the paper's are for other models:
0.61 to 1.32.
Cost: one node a token, and at a pause B L nodes in L rounds more.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.automata import stop_strings, token_dfa
from decoding.catalogue import Card
from decoding.hypotheses import rollout
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.rollout import Rollout
from models.errors import MethodError

CARD = Card(
    paper="AdaDec, arXiv 2506.08980",
    guarantee=base.LOSSY,
    family="look-ahead",
    needs=("tokenizer", "vocab_size"),
    data=("threshold",),
    examples={"threshold": 1.0},
    sources=("he2025towards",),
)

BLANK = 4  # blank lines that end a function's body


@struct.dataclass
class Row:
    threshold: Array  # float32[]
    step: Array  # int32[]: tokens of the look-ahead so far; 0: there is none
    roll: Rollout  # leaves [B]
    first: Array  # int32[B]: the tokens to choose from
    mark: Array  # int32[B]: states of the automaton of bodies
    total: Array  # float32[]: log-probability of the text


def select(
    tokenizer: Any,
    vocab_size: int,
    threshold: float,
    beams: int = 3,
    lookahead: int = 5,
) -> Select:
    """Search with look-ahead at uncertain tokens.

    Args:
        tokenizer: the target's.
        vocab_size: the target's.
        threshold: entropy in nats from which on to look ahead; inf: never.
        beams: tokens to choose from.
        lookahead: tokens of a continuation behind each.
    """
    if math.isnan(threshold):
        raise MethodError("threshold=nan: use a number of nats")
    if beams < 1 or lookahead < 0:
        raise MethodError(
            f"beams={beams}, lookahead={lookahead}: use at least 1 and at least 0"
        )
    beams = min(beams, vocab_size)
    body = bodies(tokenizer, vocab_size)

    def init(params: base.Params, size: int) -> base.State:
        zero = jnp.zeros(beams, jnp.int32)
        none, start = rollout.fresh(zero > 0), jnp.int32(0)
        row = Row(jnp.float32(threshold), start, none, zero, zero, jnp.float32(0))
        return base.State(row)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        logp = vocab.log_softmax(view.logits)
        begins = row.step == 0
        best, tokens = vocab.top_k(logp[0], beams)
        first = jnp.where(begins, tokens, row.first)
        lane = jnp.where(begins, 0, 1 + jnp.arange(beams))
        token = jnp.where(begins, tokens, vocab.argmax(view.logits)[lane])
        given = logp[lane, token]
        mark = stop_strings.advance(body, jnp.where(begins, 0, row.mark), token)
        goes = ~stop_strings.matched(body, mark) & (row.step < lookahead)
        fresh = rollout.fresh(best > -jnp.inf)
        before = jax.tree.map(lambda a, b: jnp.where(begins, a, b), fresh, row.roll)
        roll, runs = rollout.grown(view, before, lane, token, given, goes)
        sure = begins & (vocab.entropy(view.logits[0]) < row.threshold)
        done = sure | ~roll.live.any()
        place = jnp.where(sure, 0, jnp.argmax(roll.mean))
        chosen = first[place]
        total = row.total + logp[0, chosen]
        width = 1 + beams
        commit = rollout.written(view, jnp.int32(0), chosen, total, width, beams)
        ahead = rollout.going_on(view, lane, token, runs, 1)
        out: Selection = jax.tree.map(lambda a, b: jnp.where(done, a, b), commit, ahead)
        step = jnp.where(done, 0, row.step + 1)
        after = Row(
            *(row.threshold, step, roll, first, mark),
            jnp.where(done, total, row.total),
        )
        return out, base.State(after, state.shared)

    each = lookahead + 1
    return Select(
        *(init, choose, 1 + beams, beams, 1, lambda new: each * new),
        domain="logprobs",
    )


def bodies(tokenizer: Any, vocab_size: int) -> stop_strings.Stopper:
    """Build the automaton that matches where a function's body has ended."""
    end = BLANK + 1  # states: newlines just read, then the body has ended
    step = np.full((end + 1, 256), end, np.int32)
    step[0] = 0
    for state in range(end):
        step[state, [ord(" "), ord("\t")]] = 0
        step[state, ord("\n")] = state + 1
    accept = np.arange(end + 1) == end
    spelt = tokenizer.token_bytes()[:vocab_size]
    dfa = token_dfa.ByteDFA(step, accept, 0)
    lifted = token_dfa.lift(dfa, spelt, vocab_size, inert=True)
    return stop_strings.Stopper(
        *(jnp.asarray(x) for x in (lifted.next, lifted.classes, lifted.accept))
    )
