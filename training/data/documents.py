"""Training documents: raw text, conversations, or text that the target generated.

A line of a `.jsonl` file, or a row of a `.parquet` file, is one of

    {"text": ..}                              raw text, all of it in the loss
    {"messages": ..} or {"conversations": ..} a conversation: the assistant's turns
    {"tokens": .., "prompt_tokens": ..}       a text of `training.distill`: the answer

and every other file is one raw text. Raw text alone has no masks. Prompts for a target
(`prompts`, `requests`) are the text before a first answer, whole, or a piece of raw
text.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models import storage
from models.errors import ConfigError, DataError, PromptError
from models.text import row_files
from training import distill, progress_lines
from training.data import conversations, sources, text_corpus, token_cache


class Documents(NamedTuple):
    """Documents for `data.Corpus`, whose separator is the target's EOS."""

    tokens: list[np.ndarray]  # int32[n] each
    masks: list[np.ndarray] | None  # bool[n + 1] each: in the loss; None: all tokens


def read(
    lm: Any, source: str, split: str, folder: storage.Path, keep: storage.Path
) -> Documents:
    """Read and tokenise the documents of a split of a source (`sources.texts`).

    Args:
        lm: the model whose tokenizer and chat template are used.
        source: `tfds:<name>`, a file of rows, a folder, or an address `hf://...`.
        split: one of `sources.SPLITS`.
        folder: where TFDS keeps its data.
        keep: where the tokens of raw text are cached.

    Raises:
        DataError: a line holds none of the three, or no token is in the loss.
    """
    inner = lm.tokenizer.inner
    if not any(_answers(row) for _, row in rows(source, split)):
        texts = sources.texts(source, split, folder)
        return Documents(token_cache.encoded(inner, texts, keep), None)
    tokens, masks = [], []
    lines = progress_lines.counted(rows(source, split), f"reading {source}, {split}")
    for where, row in lines:
        try:
            document = _document(lm, row)
        except (ValueError, TypeError, KeyError, PromptError) as error:
            raise DataError(
                f"{where}: no object with text, messages, conversations, or tokens of "
                f"training.distill: mend or delete it ({type(error).__name__}: {error})"
            ) from error
        tokens.append(document.tokens)
        masks.append(document.mask)
    if not any(mask.any() for mask in masks):
        raise DataError(
            f"{source}: the loss mask is zero everywhere in {split}: no line has an "
            "answer; check it with python -m training.data.inspect_conversations"
        )
    return Documents(tokens, masks)


def both(
    lm: Any, c: Any, folder: str | os.PathLike, keep: storage.Path
) -> tuple[Documents, Documents]:
    """Read the training and the held-out documents of `c.source`.

    `folder` is TFDS's; `keep` caches the tokens of raw text.
    """
    train, held = (
        read(lm, c.source, split, storage.path(folder), keep)
        for split in sources.SPLITS
    )
    return train, held


def of_texts(texts: Sequence[distill.Text]) -> Documents:
    """Convert generated texts to documents with the answers in the loss."""
    return Documents([text.tokens for text in texts], [text.mask for text in texts])


def begun(lm: Any, found: Documents) -> Documents:
    """Begin each document as the tokenizer begins a prompt, with its BOS if it has one.

    Chat templates mostly write it themselves. The added tokens are not in the loss.
    """
    first = np.asarray(lm.tokenizer.encode(""), np.int32)
    if not len(first):
        return found
    lacks = [not np.array_equal(x[: len(first)], first) for x in found.tokens]
    tokens = [np.append(first, x) if y else x for x, y in zip(found.tokens, lacks)]
    masks = found.masks
    if masks is not None:
        unlearned = np.zeros(len(first), bool)
        masks = [np.append(unlearned, x) if y else x for x, y in zip(masks, lacks)]
    return Documents(tokens, masks)


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
    """Return prompts of the first `count` documents, in their order.

    Args:
        lm: the model that is to answer them.
        found: documents.
        count: prompts.
        size: tokens of a prompt from raw text.
        new: tokens that are to be generated after it.
        start: place of its first token in raw text.

    Raises:
        ConfigError: too few documents, or too few that leave room for `new` tokens.
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
    """Return prompts of `count` random documents.

    Every conversation is taken once before any is taken again.

    Args:
        lm: the model that is to answer them.
        found: documents.
        count: prompts.
        size: tokens of a prompt from raw text, from a random place.
        new: tokens that are to be generated after it, for which a prompt leaves room.
        seed: of the choice.

    Raises:
        DataError: no document can be used.
    """
    if found.masks is None:
        picked = random_passages(found.tokens, count, size, seed)
        return [row.tolist() for row in picked]
    usable, what = _asked(lm, found, new)
    if not usable:
        raise DataError(f"no document has {what}: use other data or fewer new tokens")
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
    """Draw passages int32[passage] from random places of random documents."""
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
    """Return the texts before first answers that leave room, and their description."""
    room = lm.config.max_positions - new
    begun = [int(mask.argmax()) if mask.any() else 0 for mask in found.masks or ()]
    usable = [
        tokens[:n].tolist() for tokens, n in zip(found.tokens, begun) if 0 < n <= room
    ]
    return usable, f"an answer, and at most {room} tokens before it"


def windows(found: Documents, count: int, size: int) -> list[dict[str, np.ndarray]]:
    """Cut the documents' first `count` tokens into batches of one row of `size` tokens.

    Raises `ConfigError` where not one row is full.
    """
    columns = {"tokens": found.tokens}
    if found.masks is not None:
        columns["loss_mask"] = [mask[:-1] for mask in found.masks]
    cut = {}
    for name, parts in columns.items():
        flat = np.concatenate(parts)[:count]
        cut[name] = flat[: len(flat) // size * size].reshape(-1, 1, size)
    if not len(cut["tokens"]):
        raise ConfigError(
            f"evaluate.tokens={count}: not a window of {size}: use more tokens, or a "
            "smaller evaluate.window"
        )
    return [dict(zip(cut, row)) for row in zip(*cut.values())]


def whole_windows(
    lm: Any, found: Documents, count: int, size: int
) -> list[dict[str, np.ndarray]]:
    """Pack whole documents into batches of one row of `size` tokens.

    Returns at most `count` // `size` batches, of documents that `begun` began. Raises
    `ConfigError` where that is none.
    """
    if count < size:
        raise ConfigError(
            f"evaluate.tokens={count}: not a window of {size}: use more tokens, or a "
            "smaller evaluate.window"
        )
    found = begun(lm, found)
    corpus = text_corpus.Corpus(found.tokens, lm.config.eos[0], found.masks)
    stage = text_corpus.Stage(count // size, 1, size - 1)
    stream = text_corpus.Stream(corpus, (stage,), whole=True)
    return [stream.batch(i) for i in range(stream.distinct)]


def rows(source: str, split: str) -> Iterator[tuple[str, Any]]:
    """Yield each row or file, its place first; yield nothing for TFDS.

    A row comes as its JSON object, a file as its path.
    """
    if source.startswith("tfds:"):
        return
    for file, part in sources.parts(source, split):
        if not row_files.is_rows(file):
            yield str(file), file
            continue
        for where, line in sources.lines(file, part):
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{where}: no JSON ({error}): mend or delete it"
                ) from error


def _answers(row: Any) -> bool:
    """Check whether only the answers of a row are in the loss."""
    kinds = ("messages", "conversations", "prompt_tokens")
    return isinstance(row, dict) and any(name in row for name in kinds)


def _document(lm: Any, row: Any) -> distill.Text:
    if isinstance(row, storage.Path):
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
