"""AWRS: constrain by few questions to an oracle; weights are right on average.

Lipkin, LeBrun, Vigly et al., *Fast Controlled Generation from Language Models with
Adaptive Weighted Rejection Sampling*, 2025, arXiv 2504.05410, for the scheme
`two_loop`; `recursive` and `geometric` are those of the library genlm-control.

Tokens are met in the order of log p + Gumbel noise, which is sampling without
replacement. The oracle rejects them until it accepts x, at position i; then a few more
questions estimate the accepted mass. With m_j the mass from position j on:

    recursive   one more token:  w = m_i if it is accepted or there is none, else p(x)
    two_loop    again from x and the rest until one is accepted:  w = m_i / (n + 1)
    geometric   with replacement until A accepts:  w = m_0 (A - 1) / (A + n - 1)

n: rejections; A -> accepts. In every scheme E[w 1{x}] = p(x) 1[x may follow]. x is the
token that the mask would draw with the same noise, so without weights this is masked
decoding. As the proposal of `search/smc`, the weights correct it:

    Spec("search/smc", proposal=Spec("constraints/awrs", oracle=...))

The device ships its `shipped` best tokens. Only where they do not suffice does it ship
the whole row. Where a constraint has a device form (`constraints/grammar`, `regex`),
use that: its mass is exact, has no variance and needs no host. Such a part may stand
before this one to prune tokens; its mass is added back.

Deviations: one order serves all loops, since the rest of it is itself an order of the
rest; an accepted token comes back by its share of the mass. Nothing bounds the
rejections, and the library's switch to `geometric` where max p >= 2/3 is the caller's.
Cost: a round trip to the host a round for all particles, and two or more questions a
token; the worst case asks about every token.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, vocab
from decoding.automata.oracle import GrammarOracle, Oracle
from decoding.catalogue import Card
from decoding.hypotheses.proposal import Paths, Proposal
from models.errors import MethodError

CARD = Card(
    paper="AWRS, arXiv 2504.05410",
    guarantee=base.LOSSY,
    family="rejection",
    kind="estimator",
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"oracle": {"regex": "[a-g]?[ab]([a-e]g?){1,2}"}},
    sources=("lipkin2025fast",),
)

TWO_LOOP, RECURSIVE, GEOMETRIC = "two_loop", "recursive", "geometric"
SCHEMES = (TWO_LOOP, RECURSIVE, GEOMETRIC)

Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(rows int[A], tokens int[A]) -> bool[A], whether each may follow its row's text."""


class Order(NamedTuple):
    """The first M tokens of each row in the order in which they are met."""

    ids: np.ndarray  # int32[R, M]
    logp: np.ndarray  # float32[R, M]; -inf: no candidate
    rest: np.ndarray  # float32[R]: log of the mass of all other tokens; -inf: none


class Drawn(NamedTuple):
    """Tokens and weights of R rows."""

    token: np.ndarray  # int32[R]
    log_weight: np.ndarray  # float64[R]; -inf: no token was accepted
    is_short: np.ndarray  # bool[R]: more tokens than M are needed


def estimator(
    oracle: Oracle | Mapping[str, Any],
    scheme: str = RECURSIVE,
    accepts: int = 2,
    shipped: int = 64,
    tokenizer: Any = None,
    eos: tuple[int, ...] = (),
    vocab_size: int = 0,
) -> Proposal:
    """Draw tokens that a host oracle accepts.

    Args:
        oracle: a function of a text's tokens, prompt left out, and a token; it must be
            pure. Or a grammar as `generate` takes it, which is then read byte by byte.
        scheme: one of `SCHEMES`.
        accepts: A, of `geometric`: more accepts, less variance.
        shipped: tokens of a row that the host gets at first.
        tokenizer: of a grammar, as `eos` and `vocab_size`.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.

    Raises:
        MethodError: an unknown scheme, or a number that is too small.
        ConstraintError: a grammar that does not compile.
    """
    if scheme not in SCHEMES:
        raise MethodError(f"scheme={scheme!r}: use one of {list(SCHEMES)}")
    if accepts < 2 or shipped < 2:
        raise MethodError(
            f"accepts={accepts}, shipped={shipped}: use at least 2, since one token "
            "alone tells nothing of the mass"
        )
    if accepts > 2 and scheme != GEOMETRIC:
        raise MethodError(f"accepts={accepts} with scheme={scheme!r}: use 'geometric'")
    answer: Oracle
    if callable(oracle):
        answer = oracle
    else:
        answer = GrammarOracle(dict(oracle), tokenizer, eos, vocab_size)

    def host(words: Any, tokens: Any, parents: Any, at: Any, live: Any, *order: Any):
        """Draw in every request; arrays may have one more dimension in front."""
        lead = at.shape[:-1]
        shape = (*lead, at.shape[-1])
        token, weight = np.zeros(shape, np.int32), np.full(shape, -np.inf, np.float32)
        short = np.zeros(shape, bool)
        for i in np.ndindex(lead):
            texts = [
                _text(tokens[i], parents[i], node) if is_live else ()
                for node, is_live in zip(at[i], live[i])
            ]

            def ask(rows: np.ndarray, met: np.ndarray, texts: list = texts):
                pairs = zip(rows.tolist(), met.tolist())
                return np.array([answer(texts[r], t) for r, t in pairs], bool)

            cut = Order(*(np.asarray(values)[i] for values in order))
            seed = [int(word) for word in np.ravel(words[i])]
            drawn = draw(cut, ask, scheme, accepts, seed, np.asarray(live[i]))
            token[i], weight[i], short[i] = drawn
        return token, weight, short

    def propose(key: Array, paths: Paths, logits: Array, noise: Array) -> tuple:
        logp = vocab.log_softmax(logits)
        keys = logp + noise
        rows, size = logits.shape
        of_rows = lambda dtype: jax.ShapeDtypeStruct((rows,), dtype)
        results = (of_rows(jnp.int32), of_rows(jnp.float32), of_rows(jnp.bool_))
        # NumPy hashes the key's words anew: its numbers are not those of the key.
        about = (jax.random.key_data(key), paths.nodes.tokens, paths.nodes.parents)

        def asked(live: Array, *order: Array) -> tuple:
            inputs = (*about, paths.at, live, *order)
            return jax.pure_callback(
                host, results, *inputs, vmap_method="broadcast_all"
            )

        first = min(shipped, size)
        ids = vocab.top_k(keys, first)[1]
        few = vocab.gather(logp, ids)
        others = jax.vmap(lambda law, ids: law.at[ids].set(-jnp.inf))(logp, ids)
        rest = vocab.logsumexp(others) if first < size else jnp.full(rows, -jnp.inf)
        found = asked(paths.live, ids, few, rest)

        def whole(found: tuple) -> tuple:
            token, weight, short = found
            ids = jnp.argsort(-keys).astype(jnp.int32)
            none = jnp.full(rows, -jnp.inf)
            again = asked(short, ids, vocab.gather(logp, ids), none)
            return (
                jnp.where(short, again[0], token),
                jnp.where(short, again[1], weight),
                jnp.zeros_like(short),
            )

        if first < size:  # a loop of one turn or none: whole rows are seldom shipped
            found = lax.while_loop(lambda found: found[2].any(), whole, found)
        return found[0], found[1]

    return Proposal(propose)


def _text(tokens: np.ndarray, parents: np.ndarray, node: int) -> tuple[int, ...]:
    """Return the tokens on the path from node 0, which is none of them."""
    path = []
    while node > 0:
        path.append(int(tokens[node]))
        node = int(parents[node])
    return tuple(path[::-1])


def draw(
    order: Order,
    ask: Ask,
    scheme: str,
    accepts: int,
    seed: list[int],
    live: np.ndarray,
) -> Drawn:
    """Draw a token and its weight in every live row.

    A row that is drawn again with more tokens of its order meets the same coins.

    Args:
        order: of R rows.
        ask: the oracle.
        scheme: one of `SCHEMES`.
        accepts: A.
        seed: of the coins; row r's do not depend on other rows.
        live: bool[R].
    """
    rows, size = order.ids.shape
    every = np.arange(rows)
    p = np.exp(order.logp.astype(np.float64))
    # Sums from the end: what remains of a mass is never a difference.
    rest = np.exp(order.rest.astype(np.float64))
    left = np.cumsum(np.column_stack([rest, p[:, ::-1]]), 1)[:, ::-1]
    total = left[:, 0]
    at, first = np.zeros(rows, int), np.full(rows, -1)  # first: the accepted position
    accepted, num_accepts = np.zeros(rows), np.zeros(rows, int)
    rejects = np.zeros(rows)
    weight, short, open_ = np.zeros(rows), np.zeros(rows, bool), live.copy()
    turn = 0
    while open_.any():
        coins = np.random.default_rng([*seed, turn]).random((rows, 2))
        turn += 1
        pool = accepted + left[every, at]
        if scheme == GEOMETRIC:
            rejects += np.where(open_, _failures(1 - coins[:, 1], pool / total), 0.0)
        again = open_ & (scheme != RECURSIVE) & (coins[:, 0] * pool < accepted)
        inside = np.minimum(at, size - 1)
        candidate = (at < size) & (p[every, inside] > 0)
        tested = np.flatnonzero(open_ & ~again & candidate)
        ok = np.zeros(rows, bool)
        ok[tested] = ask(tested, order.ids[tested, at[tested]])
        over = open_ & ~again & ~candidate
        short |= over & (at >= size) & (rest > 0)
        was_found = first >= 0
        new = ok & ~was_found
        first = np.where(new, at, first)
        refused = np.zeros(rows, bool)
        refused[tested] = ~ok[tested]
        rejects += refused
        num_accepts += ok | again
        accepted += np.where(ok, p[every, inside], 0.0)
        at = np.where(open_ & candidate & ~again, at + 1, at)
        if scheme == RECURSIVE:
            done = was_found & (ok | refused | over)
            mass = np.where(refused, p[every, first], left[every, first])
        elif scheme == TWO_LOOP:
            done = num_accepts == 2
            mass = left[every, first] / (rejects + 1)
        else:
            done = num_accepts == accepts
            mass = total * (accepts - 1) / np.maximum(num_accepts + rejects - 1, 1)
        done &= open_ & ~short
        weight = np.where(done, mass, weight)
        open_ &= ~(done | over)
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)
    return Drawn(order.ids[every, np.maximum(first, 0)], log_weight, short)


def _failures(coin: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return how often a chance of `share` fails before it comes; `coin` in (0, 1]."""
    with np.errstate(divide="ignore"):
        return np.floor(np.log(coin) / np.log1p(-np.clip(share, 1e-300, 1.0)))
