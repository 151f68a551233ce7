"""ASAp: draw from the model's law conditioned on a constraint, better text by text.

Park, Wang, Berg-Kirkpatrick et al., *Grammar-Aligned Decoding*, 2024,
arXiv 2405.21047, section 3. A mask renormalises at every token, so it prefers prefixes
after which few allowed texts are likely. ASAp weighs a token by a bound on the mass of
the whole texts behind it, and earlier texts lower the bounds:

    q(v | u) ~ p(v | u) 1[v is allowed] c(uv)
    c(u) = Z(u) - sum_v p(v | u) (1 - c(uv)),    c = 1 where no text went

p is the law that this transform receives, Z the share of it that the constraint leaves.
Put temperature and truncations before it: it is a warper and belongs last, or q has
another target. `serving.aligned.sample` draws text after text and renews the bounds
(`automata/mass_trie.py`), which come as `memory`. Without them this is the mask.

The law of one text is neither the model's nor the mask's. It goes to p(. | constraint)
as texts are added, and not monotonically: prefixes that no text visited keep the bound
1 and are drawn too often, so the first dozens of texts can be further from the target
than under the mask. `search/smc` weighs masses by itself: leave ASAp out there.

Deviations: bounds are renewed after whole texts, not at every token, and several texts
may be drawn between two renewals; both keep them sound. A prefix's 256 most telling
tokens have bounds, its others 1. The limit of a text is no part of the constraint.
Cost: the constraint's, and two scatters of 256 tokens a node.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.automata import mass_trie
from decoding.automata.mass_trie import NOWHERE, ROOM, MassTrie
from decoding.catalogue import Card, Spec
from models.errors import ConstraintError

CARD = Card(
    paper="Grammar-aligned decoding, arXiv 2405.21047",
    guarantee=base.LOSSY,
    family="grammar",
    data=("memory", "index"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"constraint": Spec("constraints/regex", pattern="(a|b|c[a-e]|d+|e|f)*")},
    sources=("park2024grammar",),
)


@struct.dataclass
class Row:
    constraint: Any  # its row
    node: Array  # int32[]: of the text so far; NOWHERE: no text has it


@struct.dataclass
class Shared:
    constraint: Any  # its tables
    bounds: mass_trie.Arrays


def transform(
    constraint: Spec | Mapping[str, Any],
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    memory: MassTrie | None = None,
    index: int = 0,
) -> base.LogitsTransform:
    """Restrict the text by a constraint, and weigh tokens by bounds of earlier texts.

    Args:
        constraint: a part of constraints/, or a grammar as `generate` takes it.
        tokenizer: the constraint's, as `eos` and `vocab_size`.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        memory: visited texts; None: none yet.
        index: which of the memory's prompts this one is.

    Raises:
        ConstraintError: a part that is no constraint, or a grammar that is refused.
    """
    spec = constraint
    if not isinstance(spec, Spec):
        spec = Spec("constraints/grammar", grammars=(dict(spec),))
    available = {"tokenizer": tokenizer, "eos": eos, "vocab_size": vocab_size}
    part: base.LogitsTransform = spec.build(available)
    if part.free is None:
        raise ConstraintError(f"{spec} forbids nothing: give a part of constraints/")
    without = part.free
    trie = MassTrie() if memory is None else memory
    bounds, root = trie.arrays(), trie.root(index)

    def init(tokens: Array, length: Array) -> base.State:
        first = part.init(tokens, length)
        held = mass_trie.Arrays(*map(jnp.asarray, bounds))
        return base.State(Row(first.row, jnp.int32(root)), Shared(first.shared, held))

    def of_constraint(state: base.State) -> base.State:
        return base.State(state.row.constraint, state.shared.constraint)

    def entries(state: base.State) -> tuple[mass_trie.Arrays, Array]:
        """Return the entries of the row's node, and which of the places they fill."""
        bounds, node = state.shared.bounds, state.row.node
        begin = bounds.first[node]
        cut = lambda values: lax.dynamic_slice_in_dim(values, begin, ROOM)
        token, child, bound = map(cut, bounds[1:])
        is_filled = jnp.arange(ROOM) < bounds.first[node + 1] - begin
        return mass_trie.Arrays(begin, token, child, bound), is_filled

    def weighed(state: base.State, logits: Array) -> Array:
        listed, is_filled = entries(state)
        at = jnp.where(is_filled, listed.token, logits.shape[-1])
        return logits.at[at].add(listed.bound, mode="drop")

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return weighed(state, part.apply(of_constraint(state), logits, aux))

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return weighed(state, without(of_constraint(state), logits, aux))

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row.constraint
        if part.advance is not None:
            row = part.advance(of_constraint(state), token, logits, aux).row
        listed, is_filled = entries(state)
        is_same = is_filled & (listed.token == token)
        node = jnp.where(is_same.any(), listed.child[jnp.argmax(is_same)], NOWHERE)
        return base.State(Row(row, node.astype(jnp.int32)), state.shared)

    return base.LogitsTransform(
        *(init, apply, advance),
        domain=part.domain,
        warper=True,
        streams=part.streams,
        free=free,
    )
