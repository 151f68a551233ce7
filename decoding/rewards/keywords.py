"""Keywords: the share of wanted words that occur in a text.

Baseline, as for CommonGen in DeAL (Huang, Sengupta, Bonadiman, Lai, Gupta, Pappas,
Mansour, Kirchhoff, Roth, 2025, arXiv 2402.06147). With words w_1 .. w_W,

    r(y) = (1 / W) sum_i [w_i occurs in y]

A word occurs where its characters stand in the text, in this case, also inside another
word: "dog" in "dogs". One automaton of all words reads the bytes of the tokens, so that
it does not matter how a word is split into tokens.

Deviations: none. Cost: W table look-ups a token of the text.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.automata import stop_strings
from decoding.catalogue import Card
from decoding.hypotheses.reward import PREFIX, Reward
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LOSSY,
    family="by rule",
    needs=("tokenizer", "vocab_size"),
    data=("words",),
    examples={"words": ("a", "bc")},
)


@struct.dataclass
class Row:
    starts: Array  # int32[P, W]: where the automaton begins for each word
    wanted: Array  # bool[P, W]


def reward(tokenizer: Any, vocab_size: int, words: Sequence[Any]) -> Reward:
    """Value texts by the words that they hold.

    Args:
        tokenizer: the target's.
        vocab_size: the target's.
        words: for all prompts, or one list of words a prompt.
    """
    is_listed = bool(words) and all(type(w) in (list, tuple) for w in words)
    lists = [tuple(row) for row in words] if is_listed else [tuple(words)]
    wrong = [w for row in lists for w in row if type(w) is not str or not w]
    if wrong or not all(lists):
        raise MethodError(
            f"words={words!r}: give one word or more, or such a list for each prompt"
        )
    flat = [(word,) for row in lists for word in row]
    automaton, starts = stop_strings.stopper(flat, tokenizer, vocab_size)
    most = max(map(len, lists))
    table = np.zeros((len(lists), most), np.int32)
    wanted = np.zeros((len(lists), most), bool)
    for i, row in enumerate(lists):
        wanted[i, : len(row)] = True
        table[i, : len(row)], starts = starts[: len(row)], starts[len(row) :]

    def init(prompts: int) -> base.State:
        if len(lists) not in (1, prompts):
            raise MethodError(
                f"words has {len(lists)} lists for {prompts} prompts: give one for "
                "all, or one a prompt"
            )
        over = lambda x: jnp.broadcast_to(jnp.asarray(x), (prompts, most))
        return base.State(Row(over(table), over(wanted)), automaton)

    def score(state: base.State, tokens: Array, prompt: Array, length: Array) -> Array:
        row, automaton = state.row, state.shared

        def read(at: Array, states: Array) -> Array:
            move = lambda q: stop_strings.advance(automaton, q, tokens[at])
            return jax.vmap(move)(states)

        # The matched state of an automaton is absorbing.
        ends = lax.fori_loop(prompt, length, read, row.starts)
        found = stop_strings.matched(automaton, ends) & row.wanted
        return found.sum() / jnp.maximum(row.wanted.sum(), 1).astype(jnp.float32)

    return Reward(score=score, init=init, level=PREFIX)
