"""Write golden drafters of vLLM's speculators: small checkpoints, and their laws.

    python tests/golden/make_speculators.py

Needs speculators 0.9.0 (github.com/vllm-project/speculators) with torch on CPU, in an
environment of its own. No code of theirs is kept.

Each case gets a directory as its class's `save_pretrained` writes it, and `<name>.npz`
beside it: `features` float32[2, 24, n D] and `tokens` int32[2, 24] of two texts;
`embedding` and `head` float32[61, D] of the target; `anchor`, the block's first place;
`logits` float32[2, K, V'] of the slots that guess, over the draft vocabulary;
`confidence` float32[2, K] where there is one; `about`, the versions, as JSON. The
selector's laws are -inf but for its candidates. P-EAGLE's `logits` are of the pair at
`anchor`, made of that place's features and the token behind it, and of the pairs of
masks at it.
"""

import importlib
import json
import pathlib
import shutil
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import transformers
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

OUT = pathlib.Path(__file__).parent / "speculators"
TEXTS, LENGTH, ANCHOR, BLOCK = 2, 24, 14, 5
VOCAB, MASK, DIM = 61, 60, 16
KEPT = torch.arange(1, VOCAB, 3)  # the draft vocabulary, where there is one
IDS = [2, 4]
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
}
# A layer that sees all and one with a window, shorter than the text before the anchor.
WINDOWS = {
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 6,
}
FULL = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


def made(kind: str, module: str, name: str, layer: Any, drafts: int, **fields: Any):
    """A model of their class with random params, whose verifier has no name."""
    core = importlib.import_module(f"speculators.models.{module}.core")
    layer._attn_implementation = "eager"
    config = getattr(core, f"{name}SpeculatorConfig")(
        transformer_layer_config=layer,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=drafts)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        mask_token_id=MASK,
        **fields,
    )
    return core, random(getattr(core, f"{name}DraftModel")(config))


def random(model: Any) -> Any:
    """Draw every param; norms near 1, so that none is idle."""
    for name, x in model.named_parameters():
        x.requires_grad_(False)
        drawn = torch.randn(x.shape) * (0.1 if "norm" in name else x.shape[-1] ** -0.5)
        x.data = drawn + 1.0 if "norm" in name else drawn
    return model.eval()


def lend(model: Any, given: dict[str, torch.Tensor]) -> None:
    """Give the model its verifier's embedding and head, cut to the draft vocabulary."""
    rows = given["head"]
    if model.use_draft_vocab:
        inside = torch.isin(torch.arange(VOCAB), KEPT)
        model.load_vocab_mappings(inside, KEPT - torch.arange(len(KEPT)))
        rows = rows[KEPT]
    model.embed_tokens.weight.data = given["embedding"].clone()
    model.lm_head.weight.data = rows.clone()
    model.verifier_lm_head.weight.data = rows.clone()


def texts(given: dict[str, torch.Tensor]):
    """The arguments of a text's pass, with one place where a block may begin."""
    for features, tokens in zip(given["features"], given["tokens"]):
        mask = torch.zeros(1, LENGTH)
        mask[:, ANCHOR] = 1
        yield {
            "hidden_states": features[None],
            "input_ids": tokens[None].long(),
            "loss_mask": mask,
            "verifier_last_hidden_states": torch.randn(1, LENGTH, DIM),
            "document_ids": torch.zeros(1, LENGTH, dtype=torch.long),
        }


def handed(core: Any, model: Any, **arguments: Any) -> tuple[tuple, dict[str, Any]]:
    """Run a model of the module `core`; return what its metrics are computed of."""
    passed: list[tuple] = []

    def keep(*args: Any, **named: Any):
        passed.append((args, named))
        return None, None

    core.compute_metrics = keep
    model(**arguments)
    return passed[0]


def block(kind: str, name: str, layer: dict[str, Any], **fields: Any):
    """A case of a block drafter; its forward pass is graded by what it hands on."""

    def make(given: dict[str, torch.Tensor]) -> tuple:
        config = Qwen3Config(**{**SHAPE, **layer}, tie_word_embeddings=False)
        config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
        shifted = fields.get("sample_from_anchor", kind == "dspark")
        core, model = made(
            kind,
            kind,
            name,
            config,
            BLOCK - (not shifted),
            block_size=BLOCK,
            aux_hidden_state_layer_ids=IDS,
            **{"draft_vocab_size": VOCAB, **fields},
        )
        lend(model, given)
        found, sure = [], []
        for arguments in texts(given):
            if kind == "dflash2":
                hidden, logits, _, _, places = model._backbone_forward(
                    **arguments, max_anchors=1
                )
                before = model._predecessor_ids(arguments["input_ids"], places)
                ids, scores = model.candidate_selector.select(logits, hidden, before)
                empty = torch.full_like(logits, -torch.inf)
                found.append(empty.scatter(-1, ids, scores)[0])
                continue
            args, _ = handed(core, model, **arguments, max_anchors=1)
            found.append(args[0][0])
            if kind == "dspark" and args[2] is not None:
                sure.append(args[2][0])
        first = 0 if shifted else 1
        cut = lambda rows: torch.stack(rows)[:, first:] if rows else None
        return model, cut(found), cut(sure)

    return make


def parallel(given: dict[str, torch.Tensor]) -> tuple:
    """P-EAGLE, with an embedding of its own."""
    config = LlamaConfig(**SHAPE, num_hidden_layers=2, tie_word_embeddings=False)
    core, model = made(
        "peagle",
        "peagle",
        "PEagle",
        config,
        3,
        draft_vocab_size=len(KEPT),
        eagle_aux_hidden_state_layer_ids=[1, 3, 5],
    )
    inside = torch.isin(torch.arange(VOCAB), KEPT)
    model.load_vocab_mappings(inside, KEPT - torch.arange(len(KEPT)))
    found = []
    for arguments in texts(given):
        # A pair is of a place's features and the token behind it.
        arguments["input_ids"] = arguments["input_ids"].roll(-1, 1)
        arguments["loss_mask"] = torch.ones(1, LENGTH)
        while True:  # the places are drawn: until the anchor has all depths
            _, passed = handed(
                core,
                model,
                **arguments,
                num_depths=3,
                down_sample_ratio=1.0,
                down_sample_ratio_min=1.0,
            )
            at = passed["anchor_pos"] == ANCHOR
            if at.sum() == 3:
                break
        order = passed["depth"][at].argsort()
        found.append(passed["logits"][0, at][order])
    return model, torch.stack(found), None


SMALL = {"draft_vocab_size": len(KEPT)}
CASES = {
    "dflash": block("dflash", "DFlash", WINDOWS),
    "dflash_small": block(
        "dflash", "DFlash", WINDOWS, sliding_window_non_causal=True, **SMALL
    ),
    "dflash2": block(
        "dflash2",
        "DFlash2",
        WINDOWS,
        selector_rank=6,
        selector_top_k=8,
        conv_group_size=4,
    ),
    "dspark": block("dspark", "DSpark", FULL, markov_rank=6, **SMALL),
    "gated": block(
        "dspark",
        "DSpark",
        FULL,
        markov_rank=6,
        markov_head_type="gated",
        sample_from_anchor=False,
    ),
    "rnn": block(
        "dspark",
        "DSpark",
        FULL,
        markov_rank=6,
        markov_head_type="rnn",
        enable_confidence_head=False,
    ),
    "peagle": parallel,
}


@torch.no_grad()
def main() -> None:
    OUT.mkdir(exist_ok=True)
    for number, (name, make) in enumerate(CASES.items()):
        torch.manual_seed(number)
        width = 3 if name == "peagle" else len(IDS)
        given = {
            "features": torch.randn(TEXTS, LENGTH, width * DIM),
            "tokens": torch.randint(0, MASK, (TEXTS, LENGTH), dtype=torch.int32),
            "embedding": torch.randn(VOCAB, DIM),
            "head": torch.randn(VOCAB, DIM) * DIM**-0.5,
        }
        model, logits, confidence = make(given)
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.save_pretrained(OUT / name)
        for copy in (OUT / name).glob("*.py"):  # their code beside the weights
            copy.unlink()
        about = {
            "source": f"speculators {version('speculators')}",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        arrays = {**given, "logits": logits}
        if confidence is not None:
            arrays["confidence"] = confidence
        np.savez_compressed(
            OUT / f"{name}.npz",
            anchor=ANCHOR,
            about=json.dumps(about),
            **{n: x.numpy() for n, x in arrays.items()},
        )


if __name__ == "__main__":
    main()
