"""Checkpoints in HF layout: the families, and the family of a config.json."""

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
    """Return the family of a config.json, by `model_type`, then by `architectures`."""
    kind = str(data.get("model_type", ""))
    names = data.get("architectures") or []
    match = FAMILIES.get(ALIASES.get(kind, kind))
    if not kind:
        match = next(
            (f for f in FAMILIES.values() if set(f.architectures) & set(names)), None
        )
    if match is None or (names and not set(match.architectures) & set(names)):
        known = {kind: f.architectures[0] for kind, f in FAMILIES.items()}
        raise ConfigError(
            f"{where}: model_type={kind!r} with architectures={names} is not "
            f"supported: use a model of one of {known}"
        )
    return match


def read_config(data: dict, where: str) -> tuple[hf.Family, hf.Config]:
    """Return the family and the Config of a config.json; errors name it by `where`."""
    chosen = family(data, where)
    reader = fields.Fields(data, where)
    config = chosen.read(reader)
    reader.finish()
    return chosen, config
