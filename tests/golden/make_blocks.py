"""Write the golden block drafters: small random checkpoints, and their own code's laws.

    python tests/golden/make_blocks.py --deepspec=DIR --dflash=DIR --specforge=DIR
        --treeflash=DIR

The folders hold github.com/deepseek-ai/DeepSpec at afdfa7c, the wheels dflash 0.1.0 and
specforge 0.2.0, and github.com/ETH-DISCO/TreeFlash at f5c20b4. Needs torch and
transformers 4.57 in an environment of its own. No code of theirs is kept.

Each case gets a directory as its code's `save_pretrained` writes it, and `<name>.npz`
beside it: `features` float32[2, 10, 2 D] and `tokens` int32[2, 10 + K] of two texts;
`embedding` and `head` float32[97, D] of the target; `anchor`, the number of features
that the block sees; `logits` float32[2, K, 97] of the slots after the text's tokens;
`confidence` float32[2, K] where there is one; `about`, the versions, as JSON.
"""

import argparse
import importlib
import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import Qwen3Config

OUT = pathlib.Path(__file__).parent / "blocks"
BATCH, TEXT, VOCAB, MASK, DIM = 2, 10, 97, 96, 32
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rope_theta": 1000000.0,
    "num_target_layers": 6,
    "attention_dropout": 0.0,
}
IDS = [1, 3]


def config(**fields: Any) -> Qwen3Config:
    made = Qwen3Config(**{**SHAPE, **fields})
    made._attn_implementation = "eager"
    return made


def block(model: Any, given: dict[str, torch.Tensor], width: int) -> torch.Tensor:
    """The backbone's normed output at the block's slots, from a model of its code."""
    tokens = torch.full((BATCH, width), MASK)
    tokens[:, 0] = given["tokens"][:, TEXT]
    run, name = model, "target_hidden"
    if hasattr(model, "_forward_backbone"):  # DeepSpec's
        run, name = model._forward_backbone, "target_hidden_states"
    return run(
        position_ids=torch.arange(TEXT + width)[None].expand(BATCH, -1),
        attention_mask=None,
        noise_embedding=F.embedding(tokens, given["embedding"]),
        **{name: given["features"]},
    )


def deepspec(form: str):
    def make(given: dict[str, torch.Tensor]) -> tuple:
        module = importlib.import_module("deepspec.modeling.dspark.qwen3.modeling")
        width = 5
        made = config(
            block_size=width,
            target_layer_ids=IDS,
            mask_token_id=MASK,
            num_anchors=4,
            markov_rank=6,
            markov_head_type=form,
            enable_confidence_head=True,
            confidence_head_with_markov=True,
            layer_types=["full_attention"] * 2,
            architectures=["Qwen3DSparkModel"],
            tie_word_embeddings=False,
        )
        model = random(module.Qwen3DSparkModel(made))
        model.embed_tokens.weight.data = given["embedding"].clone()
        model.lm_head.weight.data = given["head"].clone()
        states = block(model, given, width)
        before = given["tokens"][:, TEXT : TEXT + width]
        found = model.markov_head.apply_block_logits(
            model.compute_logits(states)[:, None],
            token_ids=before[:, None],
            hidden_states=states[:, None],
        )
        return model, found[:, 0], model.predict_confidence_step(states, before)

    return make


def dflash(given: dict[str, torch.Tensor]) -> tuple:
    module = importlib.import_module("dflash.model")
    made = config(
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=6,
        use_sliding_window=True,
        block_size=5,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": IDS},
        architectures=["DFlashDraftModel"],
    )
    model = random(module.DFlashDraftModel(made))
    states = block(model, given, 5)[:, 1:]
    return model, states @ given["head"].T, None


def dflash2(given: dict[str, torch.Tensor]) -> tuple:
    module = importlib.import_module("dflash.model")
    fields = {
        "mask_token_id": MASK,
        "target_layer_ids": IDS,
        "block_size": 5,
        "selector_rank": 6,
        "selector_top_k": 8,
        "conv_kernel_size": 2,
        "conv_group_size": 8,
    }
    made = config(
        layer_types=["full_attention"] * 2,
        dflash_config=fields,
        architectures=["DFlash2DraftModel"],
    )
    model = random(module.DFlash2DraftModel(made))
    states = block(model, given, 5)[:, 1:]
    logits = states @ given["head"].T
    unary, ids = torch.topk(logits, 8, dim=-1)
    selector = model.candidate_selector
    before = selector.predecessor_codebook(given["tokens"][:, TEXT : TEXT + 4])
    after = selector.successor_codebook(ids)
    own = before * selector.hidden_projection(states)
    scores = unary + torch.einsum("bkr,bkcr->bkc", own, after)
    found = torch.full_like(logits, -torch.inf).scatter(-1, ids, scores)
    return model, found, None


def domino(given: dict[str, torch.Tensor]) -> tuple:
    module = importlib.import_module("specforge.modeling.draft.domino")
    fields = {
        "mask_token_id": MASK,
        "target_layer_ids": IDS,
        "projector_type": "domino",
        "emb_dim": 6,
        "gru_hidden_dim": 7,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
    }
    made = config(
        layer_types=["full_attention"] * 2,
        block_size=5,
        dflash_config=fields,
        architectures=["DominoDraftModel"],
    )
    made._attn_implementation = "sdpa"
    model = random(module.DominoDraftModel(made))
    states = block(model, given, 5)
    before = F.embedding(given["tokens"][:, TEXT : TEXT + 5], given["embedding"])
    found = model.apply_logits_head(
        (states @ given["head"].T)[:, None],
        prev_token_embeddings=before[:, None],
        hidden_states=states[:, None],
    )
    return model, found[:, 0], None


def treeflash(given: dict[str, torch.Tensor]) -> tuple:
    module = importlib.import_module("tree_flash")
    made = config(
        layer_types=["full_attention"] * 2,
        block_size=5,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": IDS},
        treeflash_config={"ar_approximation": "swiglu", "candidate_tokens": 16},
        architectures=["TreeFlashDraftModel"],
    )
    made._attn_implementation = "sdpa"
    name = next(n for n in dir(module) if n.lower() == "treeflashdraftmodel")
    model = random(getattr(module, name)(made))
    tokens = given["tokens"][:, TEXT - 1 : TEXT + 4].clone()
    before = F.embedding(tokens, given["embedding"])
    inputs = torch.full((BATCH, 5), MASK)
    inputs[:, 0] = given["tokens"][:, TEXT]
    states = model(
        position_ids=torch.arange(TEXT + 5)[None].expand(BATCH, -1),
        prev_token_embds=before,
        noise_embedding=F.embedding(inputs, given["embedding"]),
        target_hidden=given["features"],
    )
    return model, states[:, 1:] @ given["head"].T, None


CASES = {
    "dspark": ("deepspec", deepspec("vanilla")),
    "gated": ("deepspec", deepspec("gated")),
    "rnn": ("deepspec", deepspec("rnn")),
    "dflash": ("dflash", dflash),
    "dflash2": ("dflash", dflash2),
    "domino": ("specforge", domino),
    "treeflash": ("treeflash", treeflash),
}
VERSIONS = {
    "deepspec": "deepseek-ai/DeepSpec@afdfa7c",
    "dflash": "dflash 0.1.0",
    "specforge": "specforge 0.2.0",
    "treeflash": "ETH-DISCO/TreeFlash@f5c20b4",
}


def random(model: Any) -> Any:
    """Draw every param; norms near 1, so that none is idle."""
    for name, x in model.named_parameters():
        drawn = torch.randn(x.shape) * (0.1 if "norm" in name else x.shape[-1] ** -0.5)
        x.data = drawn + 1.0 if "norm" in name else drawn
    return model.eval()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for source in VERSIONS:
        parser.add_argument(f"--{source}")
    paths = vars(parser.parse_args())
    OUT.mkdir(exist_ok=True)
    for number, (name, (source, make)) in enumerate(CASES.items()):
        if not paths[source]:
            continue
        sys.path.insert(0, paths[source])
        torch.manual_seed(number)
        given = {
            "features": torch.randn(BATCH, TEXT, 2 * DIM),
            "tokens": torch.randint(0, MASK, (BATCH, TEXT + 8)),
            "embedding": torch.randn(VOCAB, DIM),
            "head": torch.randn(VOCAB, DIM) * DIM**-0.5,
        }
        model, logits, confidence = make(given)
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.save_pretrained(OUT / name)
        about = {
            "source": VERSIONS[source],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        arrays = {**given, "logits": logits}
        if confidence is not None:
            arrays["confidence"] = confidence
        np.savez_compressed(
            OUT / f"{name}.npz",
            anchor=TEXT,
            about=json.dumps(about),
            **{
                n: x.float().numpy() if x.is_floating_point() else x.int().numpy()
                for n, x in arrays.items()
            },
        )


if __name__ == "__main__":
    main()
