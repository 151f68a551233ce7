"""Matchers on the host: grammars that the device cannot hold, Python predicates.

In every round the program asks the host once, for the nodes of all rows, which tokens
may follow the text up to each of them (`automata.matchers`); the masks come back as
packed words, like a stream's logits. So a constraint can be any function of the text:
llguidance (`automata.llguidance_matcher`), a Python predicate, a monitor.

The law is the model's, restricted token by token and renormalised. Drafts are not
masked: forbidden ones are rejected, and a draft tree of M nodes asks for M masks.

Cost a round: one call of the host, for which the device waits (`stats.host_syncs`). The
rows' tokens go there, and V/8 bytes a node come back. `constraints/grammar` has none of
this. Refused where several processes decode together, whose hosts would be asked for
each other's rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.automata import matchers
from decoding.catalogue import Card
from models.errors import ConstraintError, MethodError


def even_runs(tokens: Any) -> list[int]:
    """Allow the letters a to f, and the end (token 7) behind an even number of them."""
    return [*range(6), 7] if len(tokens) % 2 == 0 else [*range(6)]


CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="grammar",
    data=("of", "index"),
    needs=("eos", "vocab_size"),
    examples={"of": (even_runs,)},
)


@struct.dataclass
class Row:
    number: Array  # int32[]: the row's matcher
    prompt: Array  # int32[]: length of the prompt


def transform(
    of: Sequence[matchers.Matcher | Callable | None],
    eos: tuple[int, ...],
    vocab_size: int,
    index: int = 0,
    stream: str = "host/mask",
) -> base.LogitsTransform:
    """Restrict the text to what a matcher allows.

    If earlier transforms have forbidden every token that it allows, the matcher wins:
    its tokens become equally likely. Where it allows none, the end of sequence is.

    Args:
        of: the matchers of all prompts of a call, or predicates: functions of the
            text's tokens int32[T] that return the ids that may follow, or bool[V];
            None: any text.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        index: which of `of` this prompt has.
        stream: name of the stream of masks; two such constraints of a method need two.

    Raises:
        MethodError: several processes decode together.
        ConstraintError: a matcher of another vocabulary, or something else.
    """
    if jax.process_count() > 1:
        raise MethodError(
            f"a constraint on the host, and {jax.process_count()} processes: use "
            "constraints/grammar, or one process"
        )
    matcher = _matcher(of[index], eos, vocab_size)

    def init(tokens: Array, length: Array) -> base.State:
        number = jnp.int32(matchers.NUMBERS.of(matcher))
        return base.State(Row(number, jnp.asarray(length, jnp.int32)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if stream not in aux:
            return logits
        allowed = vocab.members(aux[stream], vocab_size)
        return vocab.restricted(logits, allowed)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits

    def numbers(state: base.State) -> Array:
        return jnp.stack([state.row.number, state.row.prompt])

    return base.LogitsTransform(
        init, apply, streams=(stream,), free=free, numbers=((stream, numbers),)
    )


def _matcher(
    part: Any, eos: tuple[int, ...], vocab_size: int
) -> matchers.Matcher | None:
    if part is None:
        return None
    if isinstance(part, matchers.Matcher):
        if part.vocab_size != vocab_size:
            raise ConstraintError(
                f"a matcher of {part.vocab_size} tokens and a model of {vocab_size}: "
                "make it for this model"
            )
        return part
    if callable(part):
        return matchers.Predicate(part, vocab_size, eos)
    raise ConstraintError(
        f"of has {part!r}: give a Matcher, a function of the tokens, or None"
    )
