"""Writes search_beams.npz or search_groups.npz: what HF transformers finds on `tiny`.

transformers 4.57.3 has the beams, 4.46.3 the groups and contrastive search, which later
releases left out. In an environment with torch and one of the two:

    python tests/golden/make_search_golden.py

Texts of `tiny` in float32. Two candidates of nearly the same value may come in another
order elsewhere, so a case is kept only if the same texts are found with every weight
changed by a random millionth of it. Keys: `prompts`
int64[P, T]; `cases` float64[C, 6], the columns of `COLUMNS`; `texts` int64[C, n, 32],
padded with -1 (n is the case's beams); `scores` float32[C, n]; `left_out`, a number.
"""

import itertools
import pathlib

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

FOLDER = pathlib.Path(__file__).parent
TINY = FOLDER.parents[1] / "models" / "packaged" / "tiny"
NEW, EOS, OTHER_END = 32, 0, 279  # token 279 is a line break with an indent
STOPS = (False, True, "never")
PROMPTS = (
    "def main(",
    "import os\n\nclass A",
    "for i in range(",
    "    return self.",
    "# The number of",
)
# The beams' columns: prompt, K, alpha, index in STOPS, 1 for two EOS. Groups': prompt,
# K, groups, lambda. Contrastive search: prompt, k, alpha.
BEAMS = tuple(
    itertools.product(range(5), (2, 4, 8), (-0.5, 0, 0.6, 1, 2), range(3), (0, 1))
)
GROUPS = tuple(
    (p, k, g, penalty)
    for (k, g), penalty, p in itertools.product(
        ((4, 2), (4, 4), (6, 2), (6, 3)), (0.3, 0.5, 1.0, 2.0), range(3)
    )
)
CONTRASTIVE = tuple(itertools.product(range(4), (2, 4, 8), (0.2, 0.4, 0.6, 0.8)))


def settings(kind: str, case: tuple) -> dict:
    """The arguments of `generate` for a case."""
    if kind == "beams":
        _, k, alpha, stop, two = case
        return {
            "num_beams": k,
            "num_return_sequences": k,
            "length_penalty": float(alpha),
            "early_stopping": STOPS[stop],
            "eos_token_id": [EOS, OTHER_END] if two else [EOS],
        }
    if kind == "groups":
        _, k, groups, penalty = case
        return {
            "num_beams": k,
            "num_return_sequences": k,
            "num_beam_groups": groups,
            "diversity_penalty": penalty,
            "eos_token_id": [EOS, OTHER_END],
        }
    _, k, alpha = case
    return {"top_k": k, "penalty_alpha": alpha, "eos_token_id": [EOS]}


def found(model, prompt: list[int], arguments: dict) -> tuple[np.ndarray, np.ndarray]:
    """Texts int64[n, NEW], padded with -1, and scores float32[n]."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=4095,
            return_dict_in_generate=True,
            output_scores=True,
            **arguments,
        )
    new = out.sequences[:, len(prompt) :].numpy()
    texts = np.full((len(new), NEW), -1)
    for row, text in zip(texts, new):
        ends = np.flatnonzero(np.isin(text, arguments["eos_token_id"]))
        size = ends[0] + 1 if len(ends) else len(text)
        row[:size] = text[:size]
    scores = getattr(out, "sequences_scores", None)
    none = np.zeros(len(new), np.float32)
    return texts, none if scores is None else scores.float().numpy()


def main() -> None:
    torch.set_num_threads(1)
    load = AutoModelForCausalLM.from_pretrained
    single, other = (load(TINY, torch_dtype=torch.float32).eval() for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + 1e-6 * torch.randn_like(weight))
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    known = {"beams": BEAMS}
    if transformers.__version__.startswith("4.46"):
        known = {"groups": GROUPS, "contrastive": CONTRASTIVE}
    width = max(map(len, prompts))
    arrays = {"prompts": np.array([p + [-1] * (width - len(p)) for p in prompts])}
    for kind, cases in known.items():
        kept, texts, scores = [], [], []
        for case in cases:
            arguments = settings(kind, case)
            first = found(single, prompts[case[0]], arguments)
            again = found(other, prompts[case[0]], arguments)
            if (first[0] == again[0]).all():
                kept.append(case)
                texts.append(first[0])
                scores.append(first[1])
        most = max(map(len, texts))
        padded = np.full((len(kept), most, NEW), -1, np.int16)
        values = np.zeros((len(kept), most), np.float32)
        for i, (text, value) in enumerate(zip(texts, scores)):
            padded[i, : len(text)], values[i, : len(value)] = text, value
        arrays |= {f"{kind}_cases": np.array(kept, np.float64)}
        arrays |= {f"{kind}_texts": padded, f"{kind}_scores": values}
        arrays |= {f"{kind}_left_out": np.array(len(cases) - len(kept))}
        print(kind, len(kept), "cases,", len(cases) - len(kept), "left out")
    name = "search_beams" if "beams" in known else "search_groups"
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
