"""Write eagle3.npz: a small random EAGLE-3 head, and the official net's logits.

    python tests/golden/make_eagle3.py CHECKOUT     (needs the extra `peers`; seconds)

CHECKOUT is a clone of github.com/SafeAILab/EAGLE. Its `eagle/model/cnets.py` is run as
it is, with a config that names no `rope_theta`, as that of the published head for
Llama 3.1 8B. The file holds the tensors of the head by their published names, and

    embedding float32[V, D]   tokens int64[T]   states float32[T, 3 D]
    logits float32[T, V']     of the draft's own vocabulary
"""

import pathlib
import sys
import types

import numpy as np
import torch

OUT = pathlib.Path(__file__).parent / "eagle3.npz"
D, LENGTH, VOCAB, DRAFT = 16, 60, 37, 13
CONFIG = {
    "hidden_size": D,
    "intermediate_size": 44,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rope_scaling": None,
}


def main(checkout: str) -> None:
    sys.path.insert(0, str(pathlib.Path(checkout) / "eagle" / "model"))
    import cnets

    torch.manual_seed(0)
    net = cnets.Model(types.SimpleNamespace(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            drawn = 0.3 * torch.randn_like(weight)
            weight.copy_(drawn + 1 if "norm" in name else drawn)
    net.init_tree()
    net.reset()
    tokens = torch.randint(1, VOCAB, (LENGTH,))
    states = torch.randn(LENGTH, 3 * D)
    with torch.no_grad():
        hidden = net(states[None], input_ids=tokens[None])
        logits = net.lm_head(net.norm(hidden))[0]
    tensors = {n: x.numpy() for n, x in net.state_dict().items()}
    kept = np.sort(np.random.default_rng(0).choice(VOCAB, DRAFT, replace=False))
    tensors["d2t"] = kept - np.arange(DRAFT)
    tensors["t2d"] = np.isin(np.arange(VOCAB), kept)
    embedding = tensors.pop("embed_tokens.weight")
    text = {"tokens": tokens.numpy(), "states": states.numpy()}
    arrays = {**tensors, "embedding": embedding, **text, "logits": logits.numpy()}
    np.savez_compressed(OUT, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
