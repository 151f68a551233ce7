"""Prompt sets: a file of prompts, decoded into a JSONL file in the prompts' order.

A line of the prompts' file is an object with `prompt` (a text), `tokens` (ids) or
`messages` (a conversation, for the model's chat template). `max_new_tokens` is
optional. A line of the output has `index`, `tokens` (the prompt's, then the new ones),
`prompt_tokens`, `ended` (whether the text ended by itself) and, with a tokenizer,
`text`. `<out>.json` beside the output describes the target, the prompts and the seed.

Texts come as rows are done (`decoding/serving/continuous_batching.py`) and wait for the
texts before them. Every run is resumable: after a kill, the same command resumes after
the last whole line and writes the same bytes. A text depends on seed and index alone,
not on the batch or the time of its admission.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoding import base, compose
from decoding.loops import engines
from decoding.serving import continuous_batching
from models import storage
from models.distributed import processes
from models.errors import DataError
from models.heads.formats import native
from models.text import row_files


class Prompt(NamedTuple):
    """A request: its token ids, and the maximum number of new tokens."""

    tokens: list[int]
    new: int


def read(
    lm: Any,
    path: str | os.PathLike,
    new: int,
    asked: Callable[[Any], Any] = lambda row: row,
) -> list[Prompt]:
    """Read the requests of a file.

    Args:
        lm: the model, whose tokenizer and chat template encode the prompts.
        path: a JSONL or parquet file, or an address `hf://...` of one.
        new: `max_new_tokens` of lines without their own.
        asked: converts a line's object, of any form, to a request's object.

    Raises:
        DataError: an unreadable file, or a line without a request; names the line.
    """
    prompts = []
    for where, line in row_files.lines(path):
        try:
            prompts.append(_prompt(lm, asked(json.loads(line)), new))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{where}: write an object with prompt, messages or tokens "
                f"({type(error).__name__}: {error})"
            ) from error
    return prompts


def _prompt(lm: Any, row: Any, new: int) -> Prompt:
    if type(row) is not dict:
        raise TypeError(f"{type(row).__name__} is not an object")
    most = row.get("max_new_tokens", new)
    if type(most) is not int or most < 1:
        raise ValueError(f"max_new_tokens={most!r}: use an integer, at least 1")
    if "tokens" in row:
        tokens = row["tokens"]
        if type(tokens) is not list:
            raise TypeError(f"tokens {tokens!r}: a list of ids is needed")
        wrong = [t for t in tokens if type(t) is not int]
        if wrong:
            raise TypeError(f"token {wrong[0]!r} is not an integer")
        return Prompt(tokens, most)
    if "messages" in row:
        return Prompt(list(lm.chat(row["messages"])), most)
    if type(row["prompt"]) is not str:
        raise TypeError(f"prompt {row['prompt']!r} is not a text")
    return Prompt(list(lm.tokenizer.encode(row["prompt"])), most)


def check(lm: Any, prompts: Sequence[Prompt], batch: int) -> None:
    """Check every prompt before any is decoded.

    Raises:
        DataError: no prompts, a size below 1, a token outside the vocabulary, or a
            prompt that leaves too few positions.
    """
    if not prompts or batch < 1:
        raise DataError(f"{len(prompts)} prompts, batch={batch}: use at least 1 each")
    config = lm.model.config
    for i, (row, new) in enumerate(prompts):
        if new < 1:
            raise DataError(f"prompt {i}: max_new_tokens={new}: use at least 1")
        if not row or not 0 <= min(row) <= max(row) < config.vocab_size:
            raise DataError(
                f"prompt {i} is empty or has tokens outside the vocabulary of "
                f"{config.vocab_size}: encode it with this model's tokenizer"
            )
        if len(row) + new > config.max_positions:
            raise DataError(
                f"prompt {i} has {len(row)} tokens and max_new_tokens={new}: the model "
                f"has {config.max_positions} positions; shorten one"
            )


def write(
    lm: Any,
    prompts: Sequence[Prompt],
    path: str | os.PathLike,
    parts: compose.Composition,
    params: base.Params,
    *,
    about: dict[str, Any],
    seed: int = 0,
    batch: int = 8,
    usage: continuous_batching.Usage | None = None,
    observe: Callable[[continuous_batching.Finished], None] | None = None,
) -> int:
    """Write the text of every prompt to `path`, or resume after its last line.

    Args:
        lm: the target.
        prompts: the requests.
        path: the JSONL file to write.
        parts: the composition to decode with.
        params: all params, by name.
        about: whatever else the texts depend on, beside prompts, target and seed.
        seed: seed of all texts.
        batch: number of rows; it may differ when a run is resumed.
        usage: counts to update.
        observe: called with every text as it is done.

    Returns:
        The number of lines that this call wrote.

    Raises:
        DataError: `path` holds other texts or cannot be written, or a prompt fails
            `check`.
    """
    path = storage.path(path)
    check(lm, prompts, batch)
    about = {**described(lm, prompts, seed), **about}
    try:
        processes.written(lambda: _claim(path, about))
        done = processes.told(lambda: finished(path))
        if done > len(prompts):
            raise DataError(
                f"{path} has {done} lines for {len(prompts)} prompts: delete it to "
                "decode again"
            )
        if done == len(prompts):
            return 0
        texts = continuous_batching.decode_requests(
            parts,
            params,
            [p.tokens for p in prompts],
            [len(p.tokens) + p.new for p in prompts],
            engines.request_keys(seed, len(prompts), 1),
            batch,
            wanted=range(done, len(prompts)),
            usage=usage,
        )
        waiting: dict[int, str] = {}
        at = done
        # Every process decodes, and process 0 writes.
        target = path if processes.leads() else storage.path(os.devnull)
        with storage.Lines(target) as out:
            for text in texts:
                prompt = prompts[text.request].tokens
                waiting[text.request] = _line(lm, text, prompt)
                if observe:
                    observe(text)
                before = at
                while at in waiting:
                    out.write(waiting.pop(at))
                    at += 1
                if at > before:
                    out.flush()
            if processes.leads():
                out.sync()
        processes.meet(str(path))
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error}): its lines stay; free disk space or "
            "choose another path, and run again"
        ) from error
    return at - done


def described(lm: Any, prompts: Sequence[Prompt], seed: int) -> dict[str, Any]:
    """Describe the texts' sources: prompts, their count, the target and the seed."""
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    return {
        "prompts": digest,
        "count": len(prompts),
        "target": native.fingerprint(lm.params),
        "seed": seed,
    }


def _line(lm: Any, text: continuous_batching.Finished, prompt: list[int]) -> str:
    tokens = [*prompt, *text.tokens]
    row: dict[str, Any] = {
        "index": text.request,
        "prompt_tokens": len(prompt),
        "ended": text.tokens[-1] in lm.model.config.eos,
        "tokens": tokens,
    }
    if lm.tokenizer is not None:
        row["text"] = lm.tokenizer.decode(tokens)
    return json.dumps(row)


def _claim(path: storage.Path, about: dict[str, Any]) -> None:
    """Write `<path>.json`, or check that the existing one equals `about`."""
    beside = path.with_name(f"{path.name}.json")
    if beside.exists():
        try:
            existing = dict(json.loads(beside.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{beside} is not a JSON object ({error}): delete it and {path.name}"
            ) from error
        keys = [k for k in {**about, **existing} if existing.get(k) != about.get(k)]
        if keys:
            wrong = [f"{k}: {existing.get(k)} there, {about.get(k)} here" for k in keys]
            raise DataError(
                f"{path} holds other texts ({'; '.join(wrong)}): use another file"
            )
        return
    if path.exists():
        raise DataError(f"{path} exists without {beside.name}: use another file")
    storage.write(beside, json.dumps(about, indent=1) + "\n")


def finished(path: str | os.PathLike) -> int:
    """Count the texts of a file: its whole lines, since a kill may tear the last one.

    DataError if a line is not the text of its place.
    """
    path = storage.path(path)
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines()):
        try:
            index = json.loads(line)["index"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number + 1}: {error}; delete it") from error
        if index != number:
            raise DataError(f"{path}, line {number + 1} is text {index}: delete it")
    return whole.count(b"\n")
