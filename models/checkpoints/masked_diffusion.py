"""Fields of config.json that no tensor of a masked diffusion model reveals.

- `mask_token_id`: the token of an open position. A model without it is autoregressive.
- `visibility`: the attentions that it was trained for, its default first: "causal",
  "bidirectional" or "block_causal".
- `alignment`: "same", or "shifted" where the output of position i is of i + 1.
- `block_size`: positions of a block of "block_causal".

The first is upstream's name, and the last is SDAR's; the others are this project's.
Every family may have them, so that an autoregressive checkpoint that was adapted keeps
its family's names. `models.save` writes all of them; published files lack some, and the
families of diffusion models have values of their own for those.
"""

import dataclasses
from typing import Any

from models.checkpoints import fields, hf
from models.errors import ConfigError

VISIBILITIES = ("causal", "bidirectional", "block_causal")
ALIGNMENTS = ("same", "shifted")


def read(f: fields.Fields, config: hf.Config) -> hf.Config:
    """Add the fields to a family's config, whose own values are the defaults.

    Raises:
        ConfigError: a value that is none, or a model with a mask token whose visibility
            or alignment is unknown.
    """
    mask = f.integer("mask_token_id", config.mask_token, least=0)
    if mask is None:
        return config
    if mask >= config.vocab_size:
        raise f.wrong("mask_token_id", f"an id below {config.vocab_size}")
    is_known = config.mask_token is not None
    default = lambda value: value if is_known else fields.MISSING
    visibility = f.take("visibility", default([*config.visibility]))
    alignment = f.take("alignment", default(config.alignment))
    f.complete()
    if not _is_visibility(visibility):
        raise f.wrong("visibility", f"a list of different ones of {VISIBILITIES}")
    if alignment not in ALIGNMENTS:
        raise f.wrong("alignment", f"one of {ALIGNMENTS}")
    size = f.integer("block_size", config.block_size, least=0)
    if "block_causal" in visibility and not size:
        raise ConfigError(
            f"{f.where}: visibility={visibility} without block_size: add the positions "
            "of a block"
        )
    return dataclasses.replace(
        config,
        mask_token=mask,
        visibility=tuple(visibility),
        alignment=alignment,
        block_size=size,
    )


def _is_visibility(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(v in VISIBILITIES and value.count(v) == 1 for v in value)


def write(c: hf.Config) -> dict[str, Any]:
    """Return the fields of config.json that `read` reads; {} if autoregressive."""
    if c.mask_token is None:
        return {}
    return {
        "mask_token_id": c.mask_token,
        "visibility": [*c.visibility],
        "alignment": c.alignment,
        "block_size": c.block_size,
    }
