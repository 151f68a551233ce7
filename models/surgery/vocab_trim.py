"""VocabTrim and FR-Spec: a draft model that proposes frequent tokens alone.

Goel, Agrawal, Gagrani et al., *VOCABTRIM: Vocabulary Pruning for Efficient Speculative
Decoding in LLMs*, 2025, arXiv 2506.22694; Zhao, Pan, Han et al., *FR-Spec: Accelerating
Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling*, 2025, arXiv
2502.14856. With the output head W[V, D], token counts c and the K most frequent tokens,

    ids = the K best of c, including those of `always`
    z_ids[j] = W[ids[j]] . h,   z_v = -inf for every other v

c → `counts`, of the target's own texts (VocabTrim) or of a corpus (FR-Spec). The result
is a language model of the whole vocabulary and serves every drafter that takes a draft
model. Verification is unchanged: a token outside `ids` is never drafted, but generated
with the target's probability.

Deviations from the papers: the head scatters its logits over V, because warping and
verification work on laws over V. `configs/studies/vocab_trim.py` keeps the end of text
alone beside the frequent tokens; FR-Spec keeps all special ones.

Cost per call: K / V of the head's product, and one gather of V numbers a node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from models.errors import ConfigError
from models.transformer import transformer


def counts(texts: Iterable[Sequence[int]], vocab_size: int) -> np.ndarray:
    """Count each token in `texts`, lists of tokens; return int64[V]."""
    totals = np.zeros(vocab_size, np.int64)
    for text in texts:
        totals += np.bincount(np.asarray(text, np.int64), minlength=vocab_size)
    return totals


def frequent(counts: np.ndarray, size: int, always: Sequence[int] = ()) -> np.ndarray:
    """Return int32[size], ascending: `always` and the most frequent other tokens.

    Ties go to the lowest id. `always` should hold the end of text: a draft without it
    never proposes it.
    """
    fixed = sorted(set(always))
    if not len(fixed) <= size <= len(counts) or size < 1:
        raise ConfigError(
            f"size={size}: keep at least the {len(fixed)} tokens of always and at most "
            f"the {len(counts)} of the vocabulary"
        )
    order = np.argsort(-np.asarray(counts), kind="stable")
    rest = order[~np.isin(order, fixed)][: size - len(fixed)]
    return np.sort(np.concatenate([np.array(fixed, np.int32), rest])).astype(np.int32)


def coverage(counts: np.ndarray, ids: np.ndarray) -> float:
    """Return the share of counted tokens in `ids`, an approximate acceptance bound."""
    return float(counts[ids].sum() / max(counts.sum(), 1))


def trim(lm: Any, ids: np.ndarray) -> Any:
    """Trim the head of `lm`, a transformer from `models.load`, to the rows `ids`."""
    config = lm.model.config
    ids = np.asarray(ids, np.int32)
    if not len(ids) or len(set(ids.tolist())) < len(ids):
        raise ConfigError(f"ids has {len(ids)} entries: give distinct tokens")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise ConfigError(
            f"ids reach from {ids.min()} to {ids.max()}, outside the vocabulary of "
            f"{config.vocab_size}: count tokens of this model's tokenizer"
        )
    whole = lm.params["embedding"]
    kernel = whole["tokens" if config.tied else "head"]
    place = np.full(config.vocab_size, len(ids), np.int32)
    place[ids] = np.arange(len(ids))
    params = {
        **lm.params,
        "embedding": {k: v for k, v in whole.items() if k != "head"},
        "trimmed": kernel[jnp.asarray(ids)],
        "place": jnp.asarray(place),  # of a token's row in the trimmed head
    }
    # Both are tied: `inner` embeds tokens and has no head; the tokens of `small` are
    # the trimmed head.
    inner = transformer(replace(config, tied=True))
    small = transformer(replace(config, tied=True, vocab_size=len(ids)))

    def head(params: Any, x: Array) -> Array:
        narrow = {**params["embedding"], "tokens": params["trimmed"]}
        logits = small.head({"embedding": narrow}, x)
        beside = [(0, 0)] * (logits.ndim - 1)
        padded = jnp.pad(logits, [*beside, (0, 1)], constant_values=-jnp.inf)
        return padded[..., params["place"]]

    def logits_of(params: Any, x: Array, ids: Array) -> Array:
        return jnp.take_along_axis(head(params, x), ids, -1)

    model = lm.model._replace(
        embed=inner.embed,
        token_rows=inner.token_rows,
        embed_rows=inner.embed_rows,
        norm=inner.norm,
        head=head,
        logits_of=logits_of,
    )
    return replace(lm, model=model, params=params)
