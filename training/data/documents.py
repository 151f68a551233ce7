"""What is learned from: raw text, conversations, or text that the target wrote.

A line of a `.jsonl` file is one of

    {"text": ..}                              raw text, all of which is learned
    {"messages": ..} or {"conversations": ..} a conversation: what the assistant said
    {"tokens": .., "prompt_tokens": ..}       a text of `training.distill`: the answer

and every other file is one raw text. Raw text alone has no masks. What a target is to
answer (`prompts`, `requests`) is what stands before a first answer, whole, or a piece
of raw text.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.errors import ConfigError, DataError, PromptError
from training import distill
from training.data import conversations, sources, token_cache


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
        return Documents(token_cache.encoded(inner, texts, keep), None)
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
            "answer; look at it with python -m training.data.inspect_conversations"
        )
    return Documents(tokens, masks)


def both(
    lm: Any, c: Any, folder: str | pathlib.Path, keep: pathlib.Path
) -> tuple[Documents, Documents]:
    """To learn from, and held out: of `c.source`, where `folder` is TFDS's."""
    train, held = (
        read(lm, c.source, split, pathlib.Path(folder), keep)
        for split in sources.SPLITS
    )
    return train, held


def of_texts(texts: Sequence[distill.Text]) -> Documents:
    """Return texts that the target wrote, of which its answers are learned."""
    return Documents([text.tokens for text in texts], [text.mask for text in texts])


def padded(texts: Sequence[distill.Text]) -> Iterator[dict[str, np.ndarray]]:
    """Yield a batch of one row for each text, all as long as the longest."""
    size = max(len(text.tokens) for text in texts)
    for text in texts:
        short = size - len(text.tokens)
        yield {
            "tokens": np.pad(text.tokens, (0, short))[None],
            "loss_mask": np.pad(text.mask[:-1], (0, short))[None],
        }


def prompts(
    lm: Any, found: Documents, count: int, size: int, new: int, start: int = 0
) -> list[list[int]]:
    """The first `count`, in their order; of raw text `size` tokens from `start` on.

    Those that leave no room for `new` tokens are not taken. `ConfigError` where there
    are fewer.
    """
    if found.masks is not None:
        usable, what = _asked(lm, found, new)
    else:
        long = [d for d in found.tokens if len(d) >= start + size]
        usable = [d[start : start + size].tolist() for d in long]
        what = f"{start + size} tokens"
    if len(usable) < count:
        raise ConfigError(
            f"{len(usable)} held-out documents have {what}, not {count}: give more "
            "text, or a lower config.evaluate.prompts"
        )
    return usable[:count]


def requests(
    lm: Any,
    found: Documents,
    count: int,
    size: int,
    new: int,
    seed: int | Sequence[int],
) -> list[list[int]]:
    """`count` at random; of raw text `size` tokens from anywhere.

    Of conversations each is taken once before any is taken again; those that leave no
    room for `new` tokens never. `DataError` where there are none.
    """
    if found.masks is None:
        picked = random_passages(found.tokens, count, size, seed)
        return [row.tolist() for row in picked]
    usable, what = _asked(lm, found, new)
    if not usable:
        raise DataError(f"no document has {what}")
    rng = np.random.default_rng(seed)
    rounds = -(-count // len(usable))
    order = np.concatenate([rng.permutation(len(usable)) for _ in range(rounds)])
    return [usable[i] for i in order[:count]]


def random_passages(
    documents: Sequence[np.ndarray],
    count: int,
    passage: int,
    seed: int | Sequence[int],
) -> list[np.ndarray]:
    """Passages int32[passage] from random places of random documents."""
    rng = np.random.default_rng(seed)
    long = [d for d in documents if len(d) >= passage]
    if not long:
        raise DataError(f"no document has {passage} tokens: use fewer, or longer text")
    picked = []
    for _ in range(count):
        document = long[rng.integers(len(long))]
        start = rng.integers(len(document) - passage + 1)
        picked.append(document[start : start + passage])
    return picked


def _asked(lm: Any, found: Documents, new: int) -> tuple[list[list[int]], str]:
    """What stands before the first answers, where it leaves room; and in words."""
    room = lm.config.max_positions - new
    begun = [int(mask.argmax()) if mask.any() else 0 for mask in found.masks or ()]
    usable = [
        tokens[:n].tolist() for tokens, n in zip(found.tokens, begun) if 0 < n <= room
    ]
    return usable, f"an answer, and at most {room} tokens before it"


def windows(found: Documents, count: int, size: int) -> list[dict[str, np.ndarray]]:
    """Batches of one row: `count` tokens of the documents, one after another.

    Each of `size` tokens; `ConfigError` where not one is full.
    """
    given = {"tokens": found.tokens}
    if found.masks is not None:
        given["loss_mask"] = [mask[:-1] for mask in found.masks]
    cut = {}
    for name, parts in given.items():
        flat = np.concatenate(parts)[:count]
        cut[name] = flat[: len(flat) // size * size].reshape(-1, 1, size)
    if not len(cut["tokens"]):
        raise ConfigError(f"evaluate.tokens={count}: not a window of {size}")
    return [dict(zip(cut, row)) for row in zip(*cut.values())]


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
