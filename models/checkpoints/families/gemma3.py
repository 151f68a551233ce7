"""Gemma 3, text (arXiv 2503.19786): two ropes, norms on q and k, mostly sliding.

The image models are read as language models: their `text_config` and the tensors under
`language_model`; the vision tower is left out. They are saved as `gemma3_text`.
"""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope, standard
from models.checkpoints.families import gemma2

DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "max_position_embeddings": 131072,
}
VISION = ("*vision_tower.*", "*multi_modal_projector.*")


def ropes(
    f: fields.Fields, theta: float = 1e6, local: float = 10000.0
) -> list[dict[str, Any]]:
    """Read the rope dicts of the full and of the sliding layers.

    Version 5 nests them by layer type; version 4 has `rope_theta` and `rope_scaling`
    for the full layers and `rope_local_base_freq` for the sliding ones. `theta` and
    `local` are the family's defaults.
    """
    new = f.mapping("rope_parameters")
    scaling = f.mapping("rope_scaling")
    theta = f.number("rope_theta", theta)
    local = f.number("rope_local_base_freq", local)
    nested = {kind: new.get(kind) or {} for kind in (fields.FULL, fields.SLIDING)}
    if not nested[fields.FULL] and not nested[fields.SLIDING]:
        nested[fields.FULL] = new
    full = {"rope_theta": theta, **scaling, **nested[fields.FULL]}
    sliding = {"rope_theta": local, **nested[fields.SLIDING]}
    return [rope.normal(full), rope.normal(sliding)]


def read(f: fields.Fields) -> hf.Config:
    if "text_config" in f.data:
        for name in (
            "vision_config boi_token_index eoi_token_index image_token_index "
            "mm_tokens_per_image initializer_range tie_word_embeddings"
        ).split():
            f.take(name, None)
        text = fields.Fields(f.mapping("text_config"), f"{f.where} (text_config)")
        config = read(text)
        text.finish()
        return config
    f.take("hidden_act", None)
    period = f.integer("sliding_window_pattern", 6)
    out = gemma2.shape(f, period, **DEFAULTS)
    dim, positions = out["head_dim"], out["max_positions"]
    spun = [rope.build(raw, dim, positions, f.where) for raw in ropes(f)]
    sizes = out["windows"] or (0,) * out["n_layers"]
    return transformer.Config(
        **out,
        qk_norm=True,
        ropes=tuple(spun),
        rope_of=tuple(int(size > 0) for size in sizes),
        final_softcap=gemma2.cap(f, "final_logit_softcapping", 0.0),
        attention_softcap=gemma2.cap(f, "attn_logit_softcapping", 0.0),
    )


def write(c: hf.Config) -> dict[str, Any]:
    full, sliding = (rope.written(spun) for spun in c.ropes)
    out = {
        **gemma2.dims(c),
        "rope_theta": full["rope_theta"],
        "rope_local_base_freq": sliding["rope_theta"],
        "rope_parameters": {fields.FULL: full, fields.SLIDING: sliding},
    }
    if full["rope_type"] != "default":
        out["rope_scaling"] = {k: v for k, v in full.items() if k != "rope_theta"}
    return out


FAMILY = hf.Family(
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    entries=gemma2.ENTRIES,
    read=read,
    write=write,
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    ignored=(*standard.BUFFERS, *VISION),
)
