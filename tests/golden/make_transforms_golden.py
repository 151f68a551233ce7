"""Writes transforms.npz: what HF transformers' logits processors return.

Needs the extra `peers` (made with transformers 5.23); the tests only need the file:

    python tests/golden/make_transforms_golden.py

Logits are random and untied, because HF breaks ties by the order of an unstable sort.
Keys: `logits` float32[R, V], `tokens` int64[R, T] (the text so far, of which the first
`prompt` are the prompt), and for each case `<transform>/<arguments>` float32[R, V].
"""

import pathlib

import numpy as np
import torch
from transformers.generation import logits_process as hf

ROWS, VOCAB, TEXT, PROMPT = 4, 101, 12, 7


def main() -> None:
    rng = np.random.default_rng(0)
    scale = np.array([0.5, 2.0, 4.0, 9.0], np.float32)[:, None]
    logits = rng.standard_normal((ROWS, VOCAB)).astype(np.float32) * scale
    tokens = rng.integers(0, VOCAB, (ROWS, TEXT))
    tokens[:, -3] = tokens[:, 0]  # something repeats
    bans = [[3], [int(tokens[0, -1]), 5], [int(tokens[1, -2]), int(tokens[1, -1]), 9]]
    bans += [[int(tokens[2, -2]), 11], [int(tokens[3, -1]), 13], [40, 41, 42]]
    cases = {
        "min_new_tokens/5": hf.MinNewTokensLengthLogitsProcessor(PROMPT, 5, [2, 17])
    }
    cases["min_new_tokens/6"] = hf.MinNewTokensLengthLogitsProcessor(PROMPT, 6, [2, 17])
    for value in (0.3, 0.8, 1.7):
        cases[f"temperature/{value}"] = hf.TemperatureLogitsWarper(value)
    for k in (1, 5, 50, 1000):
        cases[f"top_k/{k}"] = hf.TopKLogitsWarper(k)
    for p in (0.05, 0.5, 0.9, 0.99, 1.0):
        cases[f"top_p/{p}"] = hf.TopPLogitsWarper(p)
    for p in (0.0, 0.02, 0.3, 1.0):
        cases[f"min_p/{p}"] = hf.MinPLogitsWarper(p)
    for mass in (0.1, 0.5, 0.95):
        cases[f"typical/{mass}"] = hf.TypicalLogitsWarper(mass)
    for penalty in (0.7, 1.3):
        processor = hf.RepetitionPenaltyLogitsProcessor(penalty)
        cases[f"repetition_penalty/{penalty}"] = processor
    for epsilon in (0.003, 0.1):
        cases[f"epsilon/{epsilon}"] = hf.EpsilonLogitsWarper(epsilon)
    for epsilon in (0.004, 0.2):
        cases[f"eta/{epsilon}"] = hf.EtaLogitsWarper(epsilon)
    for n in (2, 3):
        cases[f"no_repeat_ngram/{n}"] = hf.NoRepeatNGramLogitsProcessor(n)
    cases["ban_tokens/"] = hf.NoBadWordsLogitsProcessor(bans)
    cases["logit_bias/"] = hf.SequenceBiasLogitsProcessor([[[4], 2.5], [[90], -7.0]])
    ids, scores = torch.tensor(tokens), torch.tensor(logits)
    found = {
        name: processor(ids, scores.clone()).numpy()
        for name, processor in cases.items()
    }
    # The order of HF's generate: penalties, then temperature, top-k, top-p.
    chained = scores.clone()
    for part in ("repetition_penalty/1.3", "temperature/0.8", "top_k/50", "top_p/0.9"):
        chained = cases[part](ids, chained)
    width = max(map(len, bans))
    padded = np.array([ban + [-1] * (width - len(ban)) for ban in bans])
    np.savez_compressed(
        pathlib.Path(__file__).with_name("transforms.npz"),
        logits=logits,
        tokens=tokens,
        prompt=np.array(PROMPT),
        bans=padded,
        chain=chained.numpy(),
        **found,
    )


if __name__ == "__main__":
    main()
