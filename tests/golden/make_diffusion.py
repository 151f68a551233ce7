"""Write the golden diffusion models: small random checkpoints, and logits of two codes.

    python tests/golden/make_diffusion.py --modeling=PATH [--modeling=PATH ...]

PATH is upstream's modeling_llada.py, modeling_dream.py or modeling_sdar.py at the
commit in PINNED, beside its configuration file. Needs torch and transformers 4.46 to
4.57, in an environment of its own: Dream's file looks a rotary embedding up in a table
that transformers 5 no longer fills. No code of upstream is kept.

Each family gets a directory as upstream's `save_pretrained` writes it, and `<name>.npz`
beside it: `tokens` int32[2, 16], half of them masks; float32[2, 16, 97] logits of
upstream's code and of transformers' own Llama, Qwen2 and Qwen3 with an explicit mask
and eager attention; `about`, the file's source and SHA-256 and the versions, as JSON.
"""

import argparse
import hashlib
import importlib
import importlib.machinery
import json
import pathlib
import shutil
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

OUT = pathlib.Path(__file__).parent / "diffusion"
PACKAGE = "upstream_code"
BATCH, LENGTH, VOCAB, MASK, BLOCK = 2, 16, 97, 96, 4
SHARED = {"vocab_size": VOCAB, "mask_token_id": MASK, "eos_token_id": 1}
QWEN = {
    **SHARED,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 1000000.0,
    "pad_token_id": 0,
}
LLADA = {
    **SHARED,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 96,
    "embedding_size": VOCAB,
    "max_sequence_length": 64,
    "rope_theta": 500000.0,
    "activation_type": "silu",
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
    "weight_tying": False,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "residual_dropout": 0.0,
    "pad_token_id": 0,
}
LLAMA_NAMES = {  # of LLaDA's tensors in transformers' Llama; {i} is the layer
    "transformer.wte": "embed_tokens",
    "transformer.ln_f": "norm",
    "transformer.blocks.{i}.attn_norm": "layers.{i}.input_layernorm",
    "transformer.blocks.{i}.ff_norm": "layers.{i}.post_attention_layernorm",
    "transformer.blocks.{i}.q_proj": "layers.{i}.self_attn.q_proj",
    "transformer.blocks.{i}.k_proj": "layers.{i}.self_attn.k_proj",
    "transformer.blocks.{i}.v_proj": "layers.{i}.self_attn.v_proj",
    "transformer.blocks.{i}.attn_out": "layers.{i}.self_attn.o_proj",
    "transformer.blocks.{i}.ff_proj": "layers.{i}.mlp.gate_proj",
    "transformer.blocks.{i}.up_proj": "layers.{i}.mlp.up_proj",
    "transformer.blocks.{i}.ff_out": "layers.{i}.mlp.down_proj",
}


class Source(NamedTuple):
    """Upstream's code of a family, and transformers' code of the same blocks."""

    repository: str
    path: str
    sha256: str
    classes: tuple[str, str]  # of the config and the model
    fields: dict[str, Any]
    auto_map: dict[str, str]
    twin: Callable[[], Any]
    run: Callable[[Any, torch.Tensor, torch.Tensor], Any]  # model, tokens, seen


def twin(kind: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**{**QWEN, **changes})
    config._attn_implementation = "eager"
    return getattr(transformers, f"{kind}ForCausalLM")(config)


PINNED = {
    "llada": Source(
        "ims-kdks/LLaDA@5dc3efd92f2d06d120ddc54e9dcc85699a90c6fc",
        "model/modeling_llada.py",
        "2d8b64caee8264fa39a1f4387b77ff809797e911fd95d952d1727fe61738a284",
        ("LLaDAConfig", "LLaDAModelLM"),
        LLADA,
        {
            "AutoConfig": "configuration_llada.LLaDAConfig",
            "AutoModel": "modeling_llada.LLaDAModelLM",
            "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
        },
        lambda: twin(
            "Llama", num_key_value_heads=4, rope_theta=500000.0, rms_norm_eps=1e-5
        ),
        # This copy can skip layers by the step's number: at 0 it runs all.
        lambda model, tokens, seen: model(tokens, time_step=0),
    ),
    "dream": Source(
        "NVlabs/Fast-dLLM@24cc59e75f20a6384bae8c905965bb090b96388e",
        "dream/model/modeling_dream.py",
        "3f0dff3bc5829742703b73bfd40a134bf328fe2b1904985256f2e0e07f40665d",
        ("DreamConfig", "DreamModel"),
        QWEN,
        {
            "AutoConfig": "configuration_dream.DreamConfig",
            "AutoModel": "modeling_dream.DreamModel",
        },
        lambda: twin("Qwen2"),
        lambda model, tokens, seen: model(tokens),
    ),
    "sdar": Source(
        "JetAstra/SDAR@c2041a8333333d685f6e15122c84f60f51f85ebd",
        "training/model/SDAR-4B-Chat/modeling_sdar.py",
        "ae6c856724088f72e9f52565df6a25637243ecc09acf18dcf28c8a7b0dae5bc5",
        ("SDARConfig", "SDARForCausalLM"),
        {**QWEN, "head_dim": 32, "block_size": BLOCK, "fuse_cross_entropy": True},
        {
            "AutoConfig": "configuration_sdar.SDARConfig",
            "AutoModel": "modeling_sdar.SDARModel",
            "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
        },
        lambda: twin("Qwen3", head_dim=32),
        lambda model, tokens, seen: model(
            tokens, attention_mask=seen[None, None], use_cache=False
        ),
    ),
}


def stand_in(name: str, **members: Any) -> None:
    """Put a module in the place of one that needs a GPU."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)
    sys.modules[name] = module


def rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: None, eps: float) -> Any:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def upstream(path: pathlib.Path) -> types.ModuleType:
    """Import a modelling file beside its configuration."""
    if path.stem == "modeling_sdar":
        for name in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"):
            stand_in(name)
        stand_in("flash_attn.ops.triton.layer_norm", rms_norm_fn=rms_norm)
        loss = {"FusedLinearDiffusionCrossEntropyLoss": None}
        stand_in(f"{PACKAGE}.fused_linear_diffusion_cross_entropy", **loss)
    stand_in(PACKAGE, __path__=[str(path.parent)])
    return importlib.import_module(f"{PACKAGE}.{path.stem}")


def randomise(model: torch.nn.Module) -> None:
    """Draw large weights, rounded to bfloat16."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim == 1 else 1.4 / weight.shape[-1] ** 0.5
            center = 1.0 if weight.ndim == 1 and "bias" not in name else 0.0
            weight.copy_((center + spread * torch.randn_like(weight)).bfloat16())


def renamed(name: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's weights under the names of transformers' own class."""
    if name != "llada":
        return weights
    out = {"lm_head.weight": weights["model.transformer.ff_out.weight"]}
    for theirs, ours in LLAMA_NAMES.items():
        for i in range(LLADA["n_layers"]):
            key = f"model.{theirs}.weight".format(i=i)
            out[f"model.{ours}.weight".format(i=i)] = weights[key]
    return out


def make(path: pathlib.Path) -> None:
    """Write the golden files of one family."""
    name = path.stem.removeprefix("modeling_")
    source = PINNED[name]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != source.sha256:
        raise SystemExit(f"{path}: SHA-256 {digest}, not that of {source.repository}")
    module = upstream(path)
    config_class, model_class = (getattr(module, c) for c in source.classes)
    config = config_class(**source.fields)
    config.auto_map = source.auto_map
    model = model_class(config).eval()
    randomise(model)
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, MASK, (BATCH, LENGTH)).astype(np.int32)
    tokens[rng.random(tokens.shape) < 0.5] = MASK
    given = torch.from_numpy(tokens).long()
    block = torch.arange(LENGTH) // (BLOCK if name == "sdar" else LENGTH)
    seen = block[:, None] >= block[None]
    other = source.twin().eval()
    other.load_state_dict(renamed(name, model.state_dict()))
    hidden = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    hidden = hidden.expand(BATCH, 1, LENGTH, LENGTH)
    with torch.no_grad():
        arrays = {
            "tokens": tokens,
            "upstream": source.run(model, given, seen).logits.numpy(),
            "transformers": other(given, attention_mask=hidden).logits.numpy(),
        }
    about = {
        "source": source.repository,
        "file": source.path,
        "sha256": digest,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    OUT.mkdir(exist_ok=True)
    arrays["about"] = np.array(json.dumps(about))
    np.savez_compressed(OUT / f"{name}.npz", **arrays)
    shutil.rmtree(OUT / name, ignore_errors=True)
    model.bfloat16().save_pretrained(OUT / name)
    apart = np.abs(arrays["upstream"] - arrays["transformers"]).max()
    print(f"{name}: {apart:.1e} between the two codes' logits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modeling", action="append", required=True)
    for file in parser.parse_args().modeling:
        make(pathlib.Path(file))
