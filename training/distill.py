"""Text that the target itself wrote, to train its drafts on: refilled and resumable.

python -m training.distill --model=tiny --prompts=prompts.jsonl --out=target.jsonl \\
    --max_new_tokens=128 --temperature=0.8 --batch=16

Prompts are lines of `decoding/serving/prompt_set.py` or conversations, whose last
answer is written anew. Heads learn from the file that comes out (`data.source`), and of
each line the answer alone. Killed and started again, the command goes on where it was
and writes the same bytes. A text depends on seed and index alone, so any lossless
method may be used to write it faster.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import models
from decoding import Method, compose, recipes
from decoding.serving import prompt_set
from models.errors import DataError, DecodaxError
from training.data import conversations


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
    method: Method | None = None,
    drafts: Mapping[str, Any] | None = None,
    most: Sequence[int] | None = None,
) -> int:
    """Write the target's text after every prompt to `path`; how many were written now.

    `most` is every prompt's own `max_new_tokens`, where they differ. `method` (plain
    decoding by default) and `batch` may change between sittings.
    Raises `DataError` where `path` holds the text of other prompts, another target or
    other settings, or where a prompt has no room.
    """
    if settings.max_new_tokens < 1:
        raise DataError(f"max_new_tokens={settings.max_new_tokens}: use at least 1")
    given = [[int(t) for t in prompt] for prompt in prompts]
    lengths = most or [settings.max_new_tokens] * len(given)
    rows = [prompt_set.Prompt(row, new) for row, new in zip(given, lengths)]
    chosen = method or recipes.method("plain")
    parts = compose.compose(chosen, lm, settings.temperature, drafts)
    if parts.guarantee == "LOSSY":
        raise DataError(
            f"{chosen.drafter} does not write the target's own text here: use a "
            "lossless method"
        )
    params = compose.params(lm, drafts)
    about = settings._asdict()
    seed = about.pop("seed")
    return prompt_set.write(
        lm, rows, path, parts, params, about=about, seed=seed, batch=batch
    )


class Text(NamedTuple):
    """One line of a finished file, as training takes it."""

    tokens: np.ndarray  # int32[n]: prompt and answer, without the EOS that ended it
    mask: np.ndarray  # bool[n + 1]: the answer's tokens, and the EOS where it came


def read(path: str | pathlib.Path) -> list[Text]:
    """The texts of a file, for `data.Corpus`, whose separator is the EOS."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [text(json.loads(line)) for line in lines]


def text(row: dict[str, Any]) -> Text:
    """One line's object."""
    tokens = np.asarray(row["tokens"], np.int32)[: -1 if row["ended"] else None]
    mask = np.arange(len(tokens) + 1) >= row["prompt_tokens"]
    mask[-1] = row["ended"]
    return Text(tokens, mask)


def prompts(lm: Any, path: str | pathlib.Path, new: int) -> list[prompt_set.Prompt]:
    """The requests of a file, as `prompt_set.read`; of a conversation (ShareGPT or
    messages) what stands before its last answer, by the model's chat template.
    """

    def asked(row: dict[str, Any]) -> dict[str, Any]:
        if "messages" not in row and "conversations" not in row:
            return row
        said = conversations.messages(row)
        while said and said[-1]["role"] == "assistant":
            said.pop()
        if not said:
            raise DataError("nobody asks anything: no turn before the answer")
        kept = {n: x for n, x in row.items() if n != "conversations"}
        return {**kept, "messages": said}

    return prompt_set.read(lm, path, new, asked)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    whole = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the target")
    parser.add_argument("--mesh", default="auto", help="as in data=2,tensor=4")
    parser.add_argument("--prompts", required=True, help="a JSONL file")
    parser.add_argument("--out", required=True, help="the JSONL file to write")
    for name, value in whole._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--batch", type=int, default=8, help="texts at once")
    parser.add_argument("--method", default="plain", help="a lossless recipe")
    parser.add_argument("--draft", help="its draft model")
    given = parser.parse_args(arguments)
    try:
        lm = models.load(given.model, mesh=given.mesh)
        drafts = {"draft": models.load(given.draft)} if given.draft else None
        settings = Settings(given.max_new_tokens, given.temperature, given.seed)
        requests = prompts(lm, given.prompts, settings.max_new_tokens)
        written = distill(
            lm,
            [p.tokens for p in requests],
            given.out,
            settings,
            given.batch,
            recipes.method(given.method),
            drafts,
            [p.new for p in requests],
        )
    except (DecodaxError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write(f"{written} texts written to {given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
