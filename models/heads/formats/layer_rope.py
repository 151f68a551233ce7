"""The RoPE of a published head's layer: read from its config.json, and written there.

EAGLE's nets turn by `rope_theta` of the head's own config.json, by 10000 where it names
none (eagle/model/cnets.py and cnets1.py of github.com/SafeAILab/EAGLE). The target's
RoPE plays no part: Llama 3.1 has 500000 and a scaling, EAGLE-3's head for it 10000.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models import transformer
from models.checkpoints import fields, rope
from models.checkpoints.families import llama
from models.errors import ConfigError
from models.heads.modules import decoder_layer

THETA = 10000.0


def theta(
    config: Mapping[str, Any], layer: Any, target: Any, where: str, base: float = THETA
) -> float:
    """Return the `rope_theta` of a head's config, or 0 where RoPE is the target's.

    Args:
        config: the fields of config.json that describe the layer.
        layer: the layer's params.
        target: the target's config.
        where: the file, for errors.
        base: the value of an absent `rope_theta`.

    Raises:
        ConfigError: a scaled RoPE that is not the target's.
    """
    raw = rope.parameters(fields.Fields(dict(config), where), base)
    c = decoder_layer.of(layer, target)
    own = rope.build(raw, c.head_dim, c.max_positions, where)
    if replace(own, parameters=()) == replace(c.ropes[0], parameters=()):
        return 0.0
    plain = transformer.rope(c.head_dim, float(raw["rope_theta"]))
    if own.frequencies == plain.frequencies and own.scale == 1.0:
        return float(raw["rope_theta"])
    raise ConfigError(
        f"{where}: the head's RoPE is {raw}, the target's "
        f"{dict(c.ropes[0].parameters)}: a scaled RoPE must be the target's; use a "
        "head with rope_theta alone"
    )


def described(layer: Any, target: Any, rope_theta: float) -> dict[str, Any]:
    """Return the fields of config.json for a head's layer."""
    c = replace(
        decoder_layer.of(layer, target, rope_theta),
        activation="silu",
        tied=False,
        embed_scale=1.0,
    )
    return {"model_type": "llama", **llama.write(c)}
