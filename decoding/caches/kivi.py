"""KIVI: 2-bit keys by channel and values by token, and exact recent tokens.

Liu, Yuan, Jin, Zhong, Xu, Braverman, Chen, Hu, *KIVI: A Tuning-Free Asymmetric 2bit
Quantization for KV Cache*, 2024, arXiv 2402.02750, section 3.

    code = round((x - min) / scale),    scale = (max - min) / (2^bits - 1)

over groups of `group` tokens of a key's channel, and of `group` channels of a value's
token. At least the newest `window` tokens are exact (the paper's residual length).

Deviations: GEAR's layout without its low-rank matrix and outliers; values are coded by
blocks of `group` tokens, as keys are, and keys have at least `window` exact tokens,
where the official code has 0 to `window`; the prompt attends to codes.

Cost: a round expands the codes.
"""

from decoding import base
from decoding.caches import gear
from decoding.catalogue import Card

CARD = Card(
    paper="arXiv 2402.02750",
    guarantee=base.LOSSY,
    family="codes",
    sources=("liu2024kivi",),
    examples={"group": 32, "window": 16},
)


def policy(bits: int = 2, group: int = 32, window: int = 128) -> base.CachePolicy:
    """Code complete groups of old tokens.

    Args:
        bits: of a code: 2, 4 or 8.
        group: tokens of a key's channel, and channels of a value, that share a scale: a
            multiple of 32. All channels, where they are fewer.
        window: the tokens that are exact at least. A draft tree has no more nodes.

    Raises:
        MethodError: a number out of range.
    """
    return gear.policy(bits, group, 0, 0.0, group, window)
