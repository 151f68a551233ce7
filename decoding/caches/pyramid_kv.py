"""PyramidKV: SnapKV with more slots in lower layers.

Cai, Zhang, Gao, Liu, Liu, Lu, Xiong, Dong, Chang, Hu, Xiao, *PyramidKV: Dynamic KV
Cache Compression based on Pyramidal Information Funneling*, 2024, arXiv 2406.02069,
section 4.

Every layer keeps the prompt's last `window` tokens. The other slots fall by equal steps
from (2 - 1 / beta) of their average in the first layer to 1 / beta in the last. Which
slots are kept is SnapKV's choice.

Deviations: those of `snapkv`; the official code gives no layer more than the prompt has
and moves the rest up, here a layer with room to spare keeps the whole prompt. Cost: as
`snapkv`.
"""

import numpy as np

from decoding import base
from decoding.cache_eviction import budgets
from decoding.caches import snapkv
from decoding.catalogue import Card
from models.cache_layouts import held
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2406.02069",
    guarantee=base.LOSSY,
    family="eviction",
    needs=("model",),
    sources=("cai2024pyramidkv",),
    examples={"budget": 12, "window": 4, "kernel": 3, "beta": 4},
)


def policy(
    model,
    budget: budgets.Budget = 128,
    window: int = 8,
    kernel: int = 7,
    pooling: str = "max",
    beta: float = 20.0,
) -> base.CachePolicy:
    """Evict once, with budgets that fall from layer to layer.

    Args:
        model: the target's functions.
        budget: slots of a KV head, on average over the layers, or a share of the
            prompt.
        window: the last queries of the prompt, whose keys every layer keeps.
        kernel: slots that a sum is pooled over; odd.
        pooling: "mean" or "max".
        beta: how steep the pyramid is; 1: not at all.

    Raises:
        MethodError: a number out of range.
    """
    if beta < 1:
        raise MethodError(f"beta={beta}: use at least 1")
    config = model.config
    windows = held.windows_of(config) or (0,) * config.n_layers
    layers = tuple(np.linspace(2 - 1 / beta, 1 / beta, windows.count(0)).tolist())
    return snapkv.policy(budget, window, kernel, pooling, layers, each=window)
