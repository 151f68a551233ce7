"""Superposed Decoding: k drafts by one call a token, which reads their mixture.

Shen, Fan, Pratt, Park, Wallingford, Kakade, Holtzman, Krishna, Farhadi, Kusupati,
*Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass*,
NeurIPS 2024, arXiv 2405.18400. All drafts d have the law p = softmax(z / T) of the one
node that runs, of which the n likeliest tokens are kept. With q_d the law of n-grams
behind a draft's own last tokens,

    S_d v  = S_d + (1 - alpha) ln p(v) + alpha ln q_d(v)
    q_d(v) = sum_i w_i count(last i - 1 tokens, v) / count(last i - 1 tokens)
    input  = sum_d softmax(S)_d E[last token of d],        of the k best that go on

k -> drafts; T -> law_temperature; n -> kept; alpha -> alpha; w_2, w_3, .. -> weights.
Where q_d(v) = 0 its term is -penalty. The first token's candidates have one parent, so
that all drafts differ from the first token on. Without a datastore alpha is 0, and
drafts differ by their past sums alone. One draft without a datastore is greedy.

The drafts are paths of the tree that share their nodes' keys: `out.logprobs` are under
the shared law, not under the target's law of each text.

Deviations: the penalty is that of the official code for drafts of which n-grams know no
next token; there, tokens unknown beside known ones are dropped, here they have it too,
so that there are always k drafts. N-grams reach back to the prompt's last token at
most. Ended drafts are kept by their sums, by the rules of `search/beam`.
Cost: one node a round, a top-k over V, and (n + 1) k searches in the suffix array for
each length of n-grams.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Mix, Select, Selection, View
from decoding.hypotheses.pool import NONE, Pool
from decoding.text_lookup import suffix_array
from decoding.text_lookup.suffix_array import Datastore
from models.errors import MethodError

CARD = Card(
    paper="Superposed Decoding, arXiv 2405.18400",
    guarantee=base.LOSSY,
    family="beams",
    needs=("ends",),
    data=("alpha", "law_temperature", "penalty"),
    sources=("shen2024superposed",),
)

WEIGHTS = (0.01, 0.04, 0.15, 0.18, 0.12)  # of n-grams of 2 to 6 tokens


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    temperature: Array  # float32[]
    penalty: Array  # float32[]
    node: Array  # int32[k]: the drafts' last nodes
    sums: Array  # float32[k]: NONE: no draft
    last: Array  # int32[k, O]: up to the node, O = len(weights); -1: before it


def select(
    ends: int,
    drafts: int = 3,
    datastore: str | None = None,
    alpha: float = 0.54,
    law_temperature: float = 0.06,
    kept: int | None = None,
    weights: tuple[float, ...] = WEIGHTS,
    penalty: float = 200.0,
) -> Select:
    """Search with superposed drafts.

    Args:
        ends: how many tokens end a text.
        drafts: k, texts at a time, and finished texts that are kept.
        datastore: a directory that `python -m experiments.datastore` makes of text.
        alpha: weight of the n-grams, where there is a datastore, in [0, 1].
        law_temperature: divides the logits, above 0: the lower, the more the best draft
            weighs in the mixture.
        kept: tokens of the law that are candidates; None: 3 k.
        weights: of n-grams of 2, 3, .. tokens.
        penalty: of a token that no n-gram knows.
    """
    kept = 3 * drafts if kept is None else kept
    if drafts != int(drafts) or drafts < 1:
        raise MethodError(f"drafts={drafts}: use a whole number of drafts, 1 or more")
    if kept < drafts:
        raise MethodError(f"kept={kept}: keep at least a token a draft ({drafts})")
    if not 0 <= alpha <= 1:
        raise MethodError(f"alpha={alpha} is outside [0, 1]; the paper's is 0.54")
    if not (law_temperature > 0 and math.isfinite(law_temperature)):
        raise MethodError(f"law_temperature={law_temperature}: use a number above 0")
    if not (penalty >= 0 and math.isfinite(penalty)):
        raise MethodError(f"penalty={penalty}: use a finite number, 0 or more")
    weights = tuple(weights)
    if not weights or min(weights) < 0 or not 0 < sum(weights) <= 1:
        raise MethodError(f"weights={weights}: use numbers of sum at most 1")
    store = None if datastore is None else suffix_array.load(datastore)
    orders = len(weights)
    shares = np.asarray(weights, np.float32)

    def init(params: base.Params, size: int) -> base.State:
        numbers = (jnp.float32(alpha), jnp.float32(law_temperature))
        node = jnp.full(drafts, -1, jnp.int32).at[0].set(0)
        sums = jnp.full(drafts, NONE).at[0].set(0.0)
        last = jnp.full((drafts, orders), -1, jnp.int32)
        shared: tuple | Datastore = ()
        if store is not None:
            shared = Datastore(*(jnp.asarray(np.asarray(x)) for x in store))
        return base.State(Row(*numbers, jnp.float32(penalty), node, sums, last), shared)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        size = min(kept, view.logits.shape[-1])
        count = min(max(2, 1 + ends) * drafts, drafts * size)
        # The likeliest come first, so that of equal sums they do.
        logits, tokens = vocab.top_k(view.logits[0], size)
        allowed = logits > -jnp.inf
        logp = vocab.log_softmax(logits / row.temperature)
        root = row.last.at[:, -1].set(view.nodes.tokens[0])
        last = jnp.where(view.round == 0, root, row.last)
        each = jnp.broadcast_to(logp, (drafts, size))
        if store is not None:
            of = lambda own: ngrams(state.shared, own, tokens, shares)
            chance = jax.vmap(of)(last)
            known = chance > 0
            beside = row.alpha * jnp.log(jnp.where(known, chance, 1.0))
            each = (1 - row.alpha) * each + jnp.where(known, beside, -row.penalty)
        each = jnp.where(allowed, each, 2 * NONE)
        sums = row.sums[:, None] + each
        score, at = lax.top_k(sums.reshape(-1), count)
        draft, token = at // size, tokens[at % size].astype(jnp.int32)
        there = score > NONE / 2
        ended = view.ends_below(row.node[draft], token) & there
        enters = ended & (jnp.arange(count) < drafts)
        text = Pool(
            jnp.where(enters, row.node[draft], -1),
            token,
            view.raw[0, token],
            jnp.where(enters, score, NONE),
        )
        pool = pools.merged(view.pool, text)
        best, first = lax.top_k(jnp.where(there & ~ended, score, NONE), drafts)
        goes = best > NONE / 2
        draft, token = draft[first], token[first]
        node = view.ids(goes)
        share = jnp.where(goes, jax.nn.softmax(best), 0.0)
        done = ~goes.any() | (pool.full & (pool.score[-1] >= best[0]))
        chosen = Selection(
            *(jnp.zeros_like(token), token, goes, node[:1], pool, done),
            mix=Mix(node[None], share[None]),
            below=row.node[draft],
        )
        last = jnp.concatenate([last[draft, 1:], token[:, None]], 1)
        after = row.replace(node=node, sums=jnp.where(goes, best, NONE), last=last)
        return chosen, base.State(after, state.shared)

    return Select(init, choose, 1, drafts, drafts, mixes=drafts)


def ngrams(store: Datastore, last: Array, tokens: Array, weights: np.ndarray) -> Array:
    """★ Return the interpolated chances of tokens by a datastore, float32[n].

    Args:
        store: on the device.
        last: int32[O], the tokens before; -1 before them.
        tokens: int32[n].
        weights: float32[O], of contexts of 1, 2, .. tokens.
    """
    longest = last.shape[0]
    spans = jnp.arange(1, longest + 1, dtype=jnp.int32)
    index = jnp.arange(longest, dtype=jnp.int32)

    def count(query: Array, size: Array) -> Array:
        low, high = suffix_array.find(store, query, size)
        return high - low

    def chances(span: Array) -> Array:
        context = last[jnp.minimum(longest - span + index, longest - 1)]
        behind = lambda token: jnp.append(context, token).at[span].set(token)
        both = jax.vmap(lambda token: count(behind(token), span + 1))(tokens)
        chance = both / jnp.maximum(count(context, span), 1)
        return jnp.where(last[longest - span] >= 0, chance, 0.0)

    return (jnp.asarray(weights)[:, None] * jax.vmap(chances)(spans)).sum(0)
