"""Generate a target's own text to train its drafts on: batched and resumable.

python -m training.distill --model=tiny --prompts=prompts.jsonl --out=target.jsonl \\
    --max_new_tokens=128 --temperature=0.8 --batch=16

Prompts are lines of `decoding/serving/prompt_set.py` or conversations, whose last
answer is generated anew. Trainings read the resulting file (`data.source`), with the
answers alone in the loss. Every run is resumable: rerun the same command after a kill;
the file's bytes are the same. A text depends on seed and index alone, so any lossless
method may be used to generate it faster.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import models
from decoding import Method, compose, recipes
from decoding.serving import continuous_batching, prompt_set
from models import storage
from models.errors import DataError
from training import command_line, progress_lines
from training.data import conversations
from training.loop import preemption

MODULE = "training.distill"


class Settings(NamedTuple):
    """Settings of the texts; with prompts and target they determine them."""

    max_new_tokens: int = 128
    temperature: float = 0.8
    seed: int = 0


def distill(
    lm: Any,
    prompts: Sequence[Sequence[int]],
    path: str | os.PathLike,
    settings: Settings = Settings(),  # noqa: B008 (immutable)
    batch: int = 8,
    method: Method | None = None,
    drafts: Mapping[str, Any] | None = None,
    most: Sequence[int] | None = None,
) -> int:
    """Generate the target's text after every prompt, and write it to `path`.

    Args:
        lm: the target.
        prompts: token ids.
        path: the JSONL file; a partial one is resumed.
        settings: tokens, temperature and seed.
        batch: texts at once; may change between sittings.
        method: a lossless method, by default plain decoding; may change, too.
        drafts: the method's models and heads.
        most: every prompt's own `max_new_tokens`, where they differ.

    Returns:
        The number of texts written now.

    Raises:
        DataError: `path` holds the text of other prompts, another target or other
            settings, a prompt leaves no room, or the method is lossy.
    """
    if settings.max_new_tokens < 1:
        raise DataError(f"max_new_tokens={settings.max_new_tokens}: use at least 1")
    token_rows = [[int(t) for t in prompt] for prompt in prompts]
    lengths = most or [settings.max_new_tokens] * len(token_rows)
    rows = [prompt_set.Prompt(row, new) for row, new in zip(token_rows, lengths)]
    chosen = method or recipes.method("plain")
    parts = compose.compose(chosen, lm, settings.temperature, drafts)
    if parts.guarantee == "LOSSY":
        raise DataError(
            f"{chosen.drafter} does not reproduce the target's own text here: use a "
            "lossless method"
        )
    params = compose.params(lm, drafts)
    about = settings._asdict()
    seed = about.pop("seed")
    done = prompt_set.finished(path)
    clock, counts = progress_lines.Clock(done), [done, 0]  # texts, tokens written now

    def observe(text: continuous_batching.Finished) -> None:
        counts[0], counts[1] = counts[0] + 1, counts[1] + len(text.tokens)
        clock.reach(counts[0])

    def describe() -> str:
        texts = f"{counts[0]} of {len(rows)} texts, {counts[1]:,} tokens"
        return f"{texts}, {clock.text(len(rows))}"

    with progress_lines.Lines(describe):
        return prompt_set.write(
            lm,
            rows,
            path,
            parts,
            params,
            about=about,
            seed=seed,
            batch=batch,
            observe=observe,
        )


class Text(NamedTuple):
    """One line of a finished file, in training's form."""

    tokens: np.ndarray  # int32[n]: prompt and answer, without the EOS that ended it
    mask: np.ndarray  # bool[n + 1]: the answer's tokens, and the EOS where it came


def read(path: str | os.PathLike) -> list[Text]:
    """Read a file's texts, for `data.Corpus`, whose separator is the EOS."""
    lines = storage.path(path).read_text(encoding="utf-8").splitlines()
    return [text(json.loads(line)) for line in lines]


def text(row: dict[str, Any]) -> Text:
    """Convert one line's object."""
    tokens = np.asarray(row["tokens"], np.int32)[: -1 if row["ended"] else None]
    mask = np.arange(len(tokens) + 1) >= row["prompt_tokens"]
    mask[-1] = row["ended"]
    return Text(tokens, mask)


def prompts(lm: Any, path: str | os.PathLike, new: int) -> list[prompt_set.Prompt]:
    """Read the requests of a file, as `prompt_set.read` does.

    Of a conversation (ShareGPT or messages) the request is the text before its last
    answer, by the model's chat template.
    """

    def request(row: dict[str, Any]) -> dict[str, Any]:
        if "messages" not in row and "conversations" not in row:
            return row
        turns = conversations.messages(row)
        while turns and turns[-1]["role"] == "assistant":
            turns.pop()
        if not turns:
            raise DataError("no turn before the answer: add a user's turn")
        fields = {n: x for n, x in row.items() if n != "conversations"}
        return {**fields, "messages": turns}

    return prompt_set.read(lm, path, new, request)


def body(arguments: list[str]) -> int:
    """Write the texts of a command line."""
    defaults = Settings()
    parser = command_line.Parser(MODULE, __doc__)
    parser.add_argument("--model", required=True, help="the target")
    parser.add_argument("--mesh", default="auto", help="as in data=2,tensor=4")
    parser.add_argument("--prompts", required=True, help="JSONL, parquet, or hf://...")
    parser.add_argument("--out", required=True, help="the JSONL file to write")
    for name, value in defaults._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--batch", type=int, default=8, help="texts at once")
    parser.add_argument("--method", default="plain", help="a lossless recipe")
    parser.add_argument("--draft", help="its draft model")
    options = parser.read(arguments)
    lm = models.load(options.model, mesh=options.mesh)
    drafts = {"draft": models.load(options.draft)} if options.draft else None
    settings = Settings(options.max_new_tokens, options.temperature, options.seed)
    try:
        requests = prompts(lm, options.prompts, settings.max_new_tokens)
        with preemption.watch():
            written = distill(
                lm,
                [p.tokens for p in requests],
                options.out,
                settings,
                options.batch,
                recipes.method(options.method),
                drafts,
                [p.new for p in requests],
            )
    except OSError as error:
        raise DataError(f"{error}: check --prompts and --out") from error
    sys.stderr.write(f"{written} texts written to {options.out}\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments, resumes=True)


if __name__ == "__main__":
    sys.exit(main())
