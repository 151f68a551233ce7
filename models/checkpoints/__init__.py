"""Checkpoints in HF layout: a table per family, and how config.json finds its own."""

from models.checkpoints import fields, hf
from models.checkpoints.families import (
    gemma2,
    gemma3,
    gpt2,
    llama,
    mistral,
    opt,
    phi3,
    qwen2,
    qwen3,
)
from models.errors import ConfigError

FAMILIES: dict[str, hf.Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, gpt2, opt)
}
ALIASES = {"gemma3": "gemma3_text"}


def family(data: dict, where: str) -> hf.Family:
    """The family of a config.json, by `model_type` and then by `architectures`."""
    kind = str(data.get("model_type", ""))
    names = data.get("architectures") or []
    found = FAMILIES.get(ALIASES.get(kind, kind))
    if not kind:
        found = next(
            (f for f in FAMILIES.values() if set(f.architectures) & set(names)), None
        )
    if found is None or (names and not set(found.architectures) & set(names)):
        known = {kind: f.architectures[0] for kind, f in FAMILIES.items()}
        raise ConfigError(
            f"{where}: model_type={kind!r} with architectures={names} is not "
            f"supported: decodax reads {known}"
        )
    return found


def read_config(data: dict, where: str) -> tuple[hf.Family, hf.Config]:
    """The family and the Config of a config.json; `where` names it in errors."""
    chosen = family(data, where)
    reader = fields.Fields(data, where)
    config = chosen.read(reader)
    reader.finish()
    return chosen, config
