"""Text that the target itself wrote, to train its drafts on: batched and resumable.

python -m training.distill --model=tiny --prompts=prompts.jsonl --out=target.jsonl \\
    --max_new_tokens=128 --temperature=0.8 --batch=16

A line of the prompts' file is an object with `prompt` (a text), `tokens` (ids), or
`messages` (a conversation, by the model's chat template). A line of the output has
`index`, `tokens` (the prompt's, then the target's), `prompt_tokens`, `ended` (whether
the text came to its end) and, with a tokenizer, `text`; lines come in the order of the
prompts. `<out>.json` beside it says what the text is of.

Killed and started again, the command goes on after the last finished batch and writes
the same bytes. A text depends on seed and index alone, not on the batch it was in, so
any lossless method may be used to write it faster.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

import models
from decoding import compose, decoder
from models.errors import DataError, DecodaxError
from models.heads import files


class Settings(NamedTuple):
    """How the text is written; with the prompts and the target it determines it."""

    max_new_tokens: int = 128
    temperature: float = 0.8
    seed: int = 0


def distill(
    lm: Any,
    prompts: Sequence[Sequence[int]],
    path: str | pathlib.Path,
    settings: Settings = Settings(),  # noqa: B008 (immutable)
    batch: int = 8,
    method: compose.Method | None = None,
    drafts: Mapping[str, Any] | None = None,
) -> int:
    """Write the target's text after every prompt to `path`; how many were written now.

    `method` (plain decoding by default) and `batch` may change between sittings.
    Raises `DataError` where `path` holds the text of other prompts, another target or
    other settings, or where a prompt has no room.
    """
    path = pathlib.Path(path)
    rows = [[int(t) for t in prompt] for prompt in prompts]
    _check(lm, rows, settings, batch)
    _claim(lm, rows, path, settings)
    done = _finished(path)
    if done > len(rows):
        raise DataError(f"{path} has {done} lines for {len(rows)} prompts: delete it")
    if done == len(rows):
        return 0
    chosen = method or compose.recipe("plain")
    parts = compose.compose(chosen, lm, settings.temperature, drafts)
    if parts.guarantee == "LOSSY":
        raise DataError(
            f"{chosen.drafter.name} does not write the target's own text here: use a "
            "lossless method"
        )
    engine = decoder.decoder(parts)
    params = {"target": lm.params}
    for name, draft in (drafts or {}).items():
        params[name] = getattr(draft, "params", draft)
    size = decoder.bucket(max(map(len, rows)) + settings.max_new_tokens)
    keys = decoder.request_keys(settings.seed, len(rows), 1)
    with path.open("a", encoding="utf-8") as out:
        for first in range(done, len(rows), batch):
            index = np.arange(first, first + batch)
            last = min(first + batch, len(rows))
            index = np.minimum(index, len(rows) - 1)  # a full batch: one program
            own = [rows[i] for i in index]
            limits = [len(row) + settings.max_new_tokens for row in own]
            state = engine.start(params, parts, own, limits, keys[index], size)
            state = engine.advance(params, state)
            ends, tokens = np.asarray(state.length), np.asarray(state.tokens)
            for i in range(first, last):
                row = tokens[i - first, : ends[i - first]].tolist()
                out.write(_line(lm, i, row, len(rows[i])) + "\n")
            out.flush()
            os.fsync(out.fileno())
            logging.info("%s: %d of %d texts", path.name, last, len(rows))
    return len(rows) - done


def _line(lm: Any, index: int, tokens: list[int], given: int) -> str:
    row: dict[str, Any] = {
        "index": index,
        "prompt_tokens": given,
        "ended": tokens[-1] in lm.model.config.eos and len(tokens) > given,
        "tokens": tokens,
    }
    if lm.tokenizer is not None:
        row["text"] = lm.tokenizer.decode(tokens)
    return json.dumps(row)


def _check(lm: Any, rows: list[list[int]], settings: Settings, batch: int) -> None:
    if not rows or batch < 1 or settings.max_new_tokens < 1:
        raise DataError(
            f"{len(rows)} prompts, batch={batch}, max_new_tokens="
            f"{settings.max_new_tokens}: use at least 1 of each"
        )
    config = lm.model.config
    for i, row in enumerate(rows):
        if not row or not 0 <= min(row) <= max(row) < config.vocab_size:
            raise DataError(
                f"prompt {i} is empty or has tokens outside the vocabulary of "
                f"{config.vocab_size}: encode it with this model's tokenizer"
            )
        if len(row) + settings.max_new_tokens > config.max_positions:
            raise DataError(
                f"prompt {i} has {len(row)} tokens and max_new_tokens="
                f"{settings.max_new_tokens}: the model has {config.max_positions} "
                "positions; shorten one"
            )


def _claim(
    lm: Any, rows: list[list[int]], path: pathlib.Path, settings: Settings
) -> None:
    """Say what the file is of, or check that it says the same."""
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    about = {
        "prompts": digest,
        "count": len(rows),
        "target": files.fingerprint(lm.params),
        **settings._asdict(),
    }
    beside = pathlib.Path(f"{path}.json")
    if beside.exists():
        found = json.loads(beside.read_text(encoding="utf-8"))
        wrong = [f"{k}: {found.get(k)} there, {about[k]} here" for k in about]
        wrong = [w for w, k in zip(wrong, about) if found.get(k) != about[k]]
        if wrong:
            raise DataError(
                f"{path} holds other text ({'; '.join(wrong)}): use another --out"
            )
        return
    if path.exists():
        raise DataError(f"{path} is there without {beside.name}: use another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _finished(path: pathlib.Path) -> int:
    """How many whole lines the file has; what a kill left of one more is cut off."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    for number, line in enumerate(whole.splitlines()):
        try:
            index = json.loads(line)["index"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number + 1}: {error}; delete it") from error
        if index != number:
            raise DataError(f"{path}, line {number + 1} is text {index}: delete it")
    return whole.count(b"\n")


class Text(NamedTuple):
    """One line of a finished file, as training takes it."""

    tokens: np.ndarray  # int32[n]: prompt and answer, without the EOS that ended it
    mask: np.ndarray  # bool[n + 1]: the answer's tokens, and the EOS where it came


def read(path: str | pathlib.Path) -> list[Text]:
    """The texts of a file, for `data.Corpus`, whose separator is the EOS."""
    found = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        tokens = np.asarray(row["tokens"], np.int32)[: -1 if row["ended"] else None]
        mask = np.arange(len(tokens) + 1) >= row["prompt_tokens"]
        mask[-1] = row["ended"]
        found.append(Text(tokens, mask))
    return found


def prompts_of(lm: Any, path: str | pathlib.Path) -> list[list[int]]:
    """The token prompts of a JSONL file; `DataError` names a line that has none."""
    found: list[list[int]] = []
    text = pathlib.Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "tokens" in row:
                found.append([int(t) for t in row["tokens"]])
            elif "messages" in row:
                found.append(lm.chat(row["messages"]))
            else:
                found.append(list(lm.tokenizer.encode(row["prompt"])))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}, line {number}: no object with prompt, messages or tokens "
                f"({type(error).__name__}: {error})"
            ) from error
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    whole = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the target")
    parser.add_argument("--prompts", required=True, help="a JSONL file")
    parser.add_argument("--out", required=True, help="the JSONL file to write")
    for name, value in whole._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--batch", type=int, default=8, help="texts at once")
    parser.add_argument("--method", default="plain", help="a lossless recipe")
    parser.add_argument("--draft", help="its draft model")
    given = parser.parse_args(arguments)
    try:
        lm = models.load(given.model)
        drafts = {"draft": models.load(given.draft)} if given.draft else None
        settings = Settings(given.max_new_tokens, given.temperature, given.seed)
        written = distill(
            lm,
            prompts_of(lm, given.prompts),
            given.out,
            settings,
            given.batch,
            compose.recipe(given.method),
            drafts,
        )
    except (DecodaxError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write(f"{written} texts written to {given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
