"""One decoder-only transformer for every supported family."""

from models.transformer.config import (
    Config,
    Experts,
    Latent,
    LayerShape,
    Rope,
    rope,
    rope_frequencies,
)
from models.transformer.model import transformer
from models.transformer.sequence_forward import (
    beside,
    bidirectional,
    block_causal,
    forward,
    noised_beside_clean,
    places,
    stack_layers,
    unstack_layers,
)

__all__ = [
    "Config",
    "Experts",
    "Latent",
    "LayerShape",
    "Rope",
    "beside",
    "bidirectional",
    "block_causal",
    "forward",
    "noised_beside_clean",
    "places",
    "rope",
    "rope_frequencies",
    "stack_layers",
    "transformer",
    "unstack_layers",
]
