"""Checkpoints in HF layout: the families, and the family of a config.json."""

import dataclasses

from models.checkpoints import fields, hf, masked_diffusion
from models.checkpoints.families import (
    deepseek_v2,
    dream,
    gemma2,
    gemma3,
    gemma4,
    gpt2,
    gpt_oss,
    llada,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    opt,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    sdar,
    smollm3,
)
from models.errors import ConfigError

DENSE = (llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, gpt2, opt)
AUTOREGRESSIVE = (
    *DENSE,
    *(gemma4, olmo2, olmo3, smollm3),
    *(mixtral, qwen3_moe, gpt_oss, deepseek_v2),
)
DIFFUSION = (llada, dream, sdar)
FAMILIES: dict[str, hf.Family] = {
    module.FAMILY.model_type: module.FAMILY for module in (*AUTOREGRESSIVE, *DIFFUSION)
}
ALIASES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}
SCORER = "ForSequenceClassification"


def family(data: dict, where: str) -> hf.Family:
    """Return the family of a config.json, by `model_type`, then by `architectures`."""
    kind = str(data.get("model_type", ""))
    names = data.get("architectures") or []
    scorers = [name for name in names if name.endswith(SCORER)]
    names = [name.replace(SCORER, "ForCausalLM") for name in names]
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
    if not scorers:
        return match
    labels = len(data.get("id2label") or "12")  # not written where there are two
    if labels != 1:
        raise ConfigError(
            f"{where}: {scorers[0]} of {labels} labels: use a classifier of one label, "
            "whose output is a number, or a model of "
            f"{match.architectures[0]}"
        )
    return scorer(match)


def scorer(family: hf.Family) -> hf.Family:
    """Return a family's classifiers of one label: reward models."""

    def read(f: fields.Fields) -> hf.Config:
        return dataclasses.replace(
            family.read(f), labels=1, tied=False, final_softcap=0.0
        )

    def write(config: hf.Config) -> dict:
        return {**family.write(config), "id2label": {"0": "LABEL_0"}}

    name = family.architectures[0].replace("ForCausalLM", SCORER)
    head = hf.Entry("embedding/head", ("/score.weight",), hf.SAME)
    entries = [e for e in family.entries if e.ours != head.ours]
    return dataclasses.replace(
        family, architectures=(name,), entries=(*entries, head), read=read, write=write
    )


def read_config(data: dict, where: str) -> tuple[hf.Family, hf.Config]:
    """Return the family and the Config of a config.json; errors name it by `where`."""
    chosen = family(data, where)
    reader = fields.Fields(data, where)
    config = masked_diffusion.read(reader, chosen.read(reader))
    reader.finish()
    return chosen, config
