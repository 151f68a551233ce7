"""What is learned from: raw text, conversations, or text that the target wrote.

A line of a `.jsonl` file is one of

    {"text": ..}                              raw text, all of which is learned
    {"messages": ..} or {"conversations": ..} a conversation: what the assistant said
    {"tokens": .., "prompt_tokens": ..}       a text of `training.distill`: the answer

and every other file is one raw text. Raw text alone has no masks.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError, PromptError
from training import conversations, distill, recipes, sources


class Documents(NamedTuple):
    """Documents for `data.Corpus`, whose separator is the target's EOS."""

    tokens: list[np.ndarray]  # int32[n] each
    masks: list[np.ndarray] | None  # bool[n + 1] each: may be learned; None: all may


def read(
    lm: Any, source: str, split: str, folder: pathlib.Path, keep: pathlib.Path
) -> Documents:
    """The documents of a split of a source (`sources.texts`), as tokens of `lm`.

    `folder` is where TFDS keeps its data; raw text is kept in `keep` as tokens. Raises
    `DataError` for a line that holds none of the three, and where nothing is learned.
    """
    inner = lm.tokenizer.inner
    if not any(_answers(row) for _, row in rows(source, split)):
        texts = sources.texts(source, split, folder)
        return Documents(recipes.encoded(inner, texts, keep), None)
    tokens, masks = [], []
    for where, row in rows(source, split):
        try:
            one = _document(lm, row)
        except (ValueError, TypeError, KeyError, PromptError) as error:
            raise DataError(
                f"{where}: no object with text, messages, conversations, or tokens of "
                f"training.distill ({type(error).__name__}: {error})"
            ) from error
        tokens.append(one.tokens)
        masks.append(one.mask)
    if not any(mask.any() for mask in masks):
        raise DataError(
            f"{source}: the loss mask is zero everywhere in {split}: no line has an "
            "answer; look at it with python -m training.doctor"
        )
    return Documents(tokens, masks)


def rows(source: str, split: str) -> Iterator[tuple[str, Any]]:
    """Where each line or file stands, and its object or text; nothing of TFDS."""
    if source.startswith("tfds:"):
        return
    path = pathlib.Path(source)
    alone = not path.is_dir()
    for file in [path] if alone else sources.files(path, split):
        if file.suffix != ".jsonl":
            yield str(file), file
            continue
        for number, line in sources.lines(file, split if alone else sources.EVERY):
            where = f"{file}, line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: no JSON ({error})") from error


def _answers(row: Any) -> bool:
    """Whether only a part of it is learned."""
    kinds = ("messages", "conversations", "prompt_tokens")
    return isinstance(row, dict) and any(name in row for name in kinds)


def _document(lm: Any, row: Any) -> distill.Text:
    if isinstance(row, pathlib.Path):
        row = {"text": sources.file_text(row)}
    if not isinstance(row, dict):
        raise TypeError(f"{type(row).__name__} is no object")
    if "prompt_tokens" in row:
        return distill.text(row)
    if not _answers(row):
        inner = lm.tokenizer.inner
        ids = inner.encode(row["text"], add_special_tokens=False).ids
        return distill.Text(np.asarray(ids, np.int32), np.ones(len(ids) + 1, bool))
    one = conversations.render(lm, conversations.messages(row))
    return distill.Text(one.tokens, np.append(one.mask, False))
