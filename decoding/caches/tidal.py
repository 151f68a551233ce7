"""TidalDecode: a few layers select the slots that the layers behind them read.

Yang, Zhang, Chen, Li, Jia, *TidalDecode: Fast and Accurate LLM Decoding with Position
Persistent Sparse Attention*, 2024, arXiv 2410.05076, section 3. Layers before the first
of `select` read everything, and so do the layers of `select`, where a node of query q
takes the `budget` slots j of the largest softmax weights

    a_j = softmax_j(q k_j)

The layers behind read these slots alone, up to the next layer of `select`.

Deviations: slots are chosen by KV head, by the largest weight among its query heads,
where the official code repeats keys for every query head; the newest slot is always
chosen; the periodic correction of the cache is left out, as in the official code;
`refresh` > 1 is not in the paper. Which layer selects again matters, and is to be
measured: at 64 of 300 tokens `tiny` loses 0.06 nats with (2, 5), 0.5 with (2, 4) and
0.6 with (2, 3). The paper's for 32 layers is 13.

Cost: full reads in the first and the selecting layers, and there one more product with
the keys.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import selected
from decoding.catalogue import Card
from models.cache_layouts import sparse
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2410.05076",
    guarantee=base.LOSSY,
    family="sparse reads",
    needs=("model",),
    sources=("yang2024tidaldecode",),
    examples={"budget": 12, "select": (0,)},
)


def policy(
    model,
    budget: budgets.Budget = 256,
    select: Sequence[int] | None = None,
    refresh: int = 1,
) -> base.CachePolicy:
    """Read what a few layers select.

    Args:
        model: the target's functions.
        budget: slots that a KV head reads, or a share of the prompt.
        select: the layers that select. None: layer 2, and layer 13 of 32, or the middle
            one of those behind layer 2 of another model.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: no layer that selects, or one that the model does not have.
    """
    layers = model.config.n_layers
    if select is None:
        again = 13 if layers == 32 else max(1 + layers // 2, 2)
        select = sorted({min(2, layers - 1), again} & {*range(layers)})
    if not select or not {*select} <= {*range(layers)}:
        raise MethodError(
            f"select={tuple(select)}: name layers of the model's {layers}, from 0 on"
        )

    def roles(count: int) -> list[str]:
        behind = [
            sparse.WHOLE if i < min(select) else sparse.FOLLOW for i in range(count)
        ]
        return [sparse.SELECT if i in select else r for i, r in enumerate(behind)]

    softcap = getattr(model.config, "attention_softcap", 0.0)

    def score(layer, asked):
        k, _ = layer.store.read()
        s = jnp.einsum("bngrd,bgsd->bgrns", asked.q, k)
        s = s.astype(jnp.float32)
        if softcap:
            s = jnp.tanh(s / softcap) * softcap
        seen = asked.seen[:, None]
        s = jnp.where(seen[:, :, None], s, sparse.NEGATIVE)
        return jnp.where(seen, jax.nn.softmax(s, -1).max(2), -jnp.inf)

    return selected.policy(selected.Rule(score), budget, roles, refresh)
