"""HF transformers' texts on `tiny`: the files of tests/golden/make_search_golden.py."""

import functools
import pathlib

import numpy as np

import decoding
import models

FOLDER = pathlib.Path(__file__).parents[2] / "golden"
EOS, LINE = 0, 279  # LINE ends texts too, in some cases


@functools.cache
def tiny():
    return models.load("tiny")


@functools.cache
def arrays(file: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{file}.npz") as stored:
        return dict(stored)


def differences(file: str, kind: str, chosen, make, ends, n) -> tuple:
    """(texts that differ, texts, greatest gap of scores) of HF's cases.

    Args:
        file: `search_beams` or `search_groups`.
        kind: the cases' name in it.
        chosen: (the cases' columns) -> bool[C].
        make: (a case's columns) -> the method.
        ends: (a case's columns) -> stop_token_ids.
        n: (a case's columns) -> number of texts.
    """
    known = arrays(file)
    columns, texts = known[f"{kind}_cases"], known[f"{kind}_texts"]
    wrong, count, gap = 0, 0, 0.0
    for i in np.flatnonzero(chosen(columns)):
        case = columns[i]
        prompt = known["prompts"][int(case[0])]
        out = decoding.generate(
            tiny(),
            [prompt[prompt >= 0].tolist()],
            make(case),
            max_new_tokens=texts.shape[-1],
            n=n(case),
            stop_token_ids=ends(case),
        )
        pairs = [(out.tokens[0], out.scores[0])]
        if n(case) > 1:
            pairs = list(zip(out.tokens[0], out.scores[0]))
        for (text, score), want, value in zip(
            pairs, texts[i], known[f"{kind}_scores"][i]
        ):
            if kind == "groups" and text[-1] == LINE:
                text = [*text[:-1], EOS]  # that release writes the first EOS for all
            wrong += text != want[want >= 0].tolist()
            gap, count = max(gap, abs(score - value)), count + 1
    return wrong, count, gap
