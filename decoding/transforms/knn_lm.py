"""kNN-LM: mix the target with the law of tokens that followed similar contexts.

Khandelwal, Levy, Jurafsky, Zettlemoyer, Lewis, *Generalization through Memorization:
Nearest Neighbor Language Models*, 2020, arXiv 1911.00172, section 2; that it lowers
perplexity and does not improve long texts: Wang, Song, Drozdov, Garimella, Manjunatha,
Iyyer, *$k$NN-LM Does Not Improve Open-ended Text Generation*, 2023, arXiv 2305.14625.

    p(v) = lambda p_knn(v) + (1 - lambda) p_LM(v)
    p_knn(v) ~ sum over the k nearest keys with value v of exp(-d(q, key))

lambda -> `weight`, 0.25 as in both; q, the input of the last feed-forward; d, the
squared distance. The stream `knn` gives log p_knn: `decoding.text_lookup.key_store`
loads it from a datastore, with k = 1024.

Deviations: all keys are searched, where the papers' index probes 32 cells. Tokens that
another transform forbade stay forbidden: p_knn is normalised over the others, and
where it has none of them z' is log p_LM. Without the stream (in a draft) the logits
stay unchanged. Cost: four passes over V, and the search: 2 N D operations a node for N
keys of width D.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="kNN-LM, arXiv 1911.00172",
    guarantee=base.LAW,
    family="retrieval",
    data=("weight",),
    sources=("khandelwal2020knnlm", "wang2023knnlm"),
)


@struct.dataclass
class Row:
    weight: Array  # float32[]


def transform(weight: float = 0.25, knn: str = "knn") -> base.LogitsTransform:
    """Mix the target's law with that of the nearest keys' next tokens.

    Args:
        weight: of the neighbours' law, in [0, 1]; 0 is the target alone.
        knn: name of the stream.
    """
    if not 0 <= weight <= 1:
        raise MethodError(f"weight={weight} is outside [0, 1] (the paper's is 0.25)")

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(weight)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if knn not in aux:
            return logits
        row = state.row
        near = jnp.where(logits > -jnp.inf, aux[knn], -jnp.inf)
        some = vocab.maximum(near)[..., None] > -jnp.inf
        near = vocab.log_softmax(jnp.where(some, near, logits))
        mixed = jnp.logaddexp(
            near + jnp.log(row.weight), logits + jnp.log1p(-row.weight)
        )
        return jnp.where(some, mixed, logits)

    return base.LogitsTransform(init, apply, domain="logprobs", streams=(knn,))
