"""Logits of saved directories by HF transformers, to compare with our own.

    python tests/golden/read_back.py <directory> [<directory> ...]

Each directory holds a model that `models.save` wrote, and `tokens.npy` int32[B, T];
`logits.npy` float32[B, T, V] is written beside it. Needs the extra `peers`, not jax.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers


def main(directories: list[str]) -> None:
    for name in directories:
        path = pathlib.Path(name)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[kind]:
                raise SystemExit(f"{path}: {kind} {report[kind]}")
        tokens = torch.from_numpy(np.load(path / "tokens.npy")).long()
        with torch.no_grad():
            np.save(path / "logits.npy", model.eval()(tokens).logits.numpy())
        if (path / "tokenizer.json").exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
            tokenizer("def main")


if __name__ == "__main__":
    main(sys.argv[1:])
