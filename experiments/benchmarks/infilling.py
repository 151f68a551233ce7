"""Infilling: holes of known length in code, between a given beginning and a given end.

Bavarian et al., *Efficient Training of Language Models to Fill in the Middle*, 2022,
arXiv 2207.14255, for HumanEval's infilling files.

    humaneval(lm, folder, ..) -> holes;   identifiers(lm, sources, ..) -> holes
    fill(lm, holes) -> token lists;   score(hole, tokens) -> Score

A diffusion model sees both sides of a hole. An autoregressive one writes it from left
to right behind the prompt alone: the baseline. Neither may end the text in a hole.
"""

import io
import json
import keyword
import random
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import decoding
from decoding import Spec
from decoding.denoising import composed
from models import storage
from models.errors import DataError
from models.text import row_files

FILES = {  # kind -> file of the folder
    "single_line": "HumanEval-SingleLineInfilling.jsonl.gz",
    "multi_line": "HumanEval-MultiLineInfilling.jsonl.gz",
    "random_span": "HumanEval-RandomSpanInfilling.jsonl.gz",
    "random_span_light": "HumanEval-RandomSpanInfillingLight.jsonl.gz",
}
NEITHER, BEFORE, AFTER, BOTH = "neither", "before", "after", "both"
Tokens = tuple[int, ...]


class Hole(NamedTuple):
    """A hole and what belongs there; all three are tokens.

    Attributes:
        name: of the task, or the file and the identifier.
        prompt: what stands before it.
        suffix: what stands behind it.
        middle: what belongs there, one token or more.
        seen: of an identifier, on which sides it stands too: NEITHER, BEFORE, AFTER or
            BOTH; of others NEITHER.
    """

    name: str
    prompt: Tokens
    suffix: Tokens
    middle: Tokens
    seen: str = NEITHER


class Score(NamedTuple):
    """How well a hole is filled: 1.0 if all tokens are right, and their share."""

    exact: float
    hits: float


def humaneval(
    lm: Any,
    folder: str,
    kind: str = "single_line",
    count: int = 0,
    around: int = 0,
    most: int = 0,
) -> list[Hole]:
    """Read holes of HumanEval's functions; the three parts are encoded apart.

    Args:
        lm: the model, for its tokenizer.
        folder: of the four files.
        kind: of `FILES`.
        count: the first holes that fit; 0: all.
        around: tokens of a prompt and of a suffix, those next to the hole; 0: all.
        most: tokens of a hole; longer ones are left out; 0: none is.

    Raises:
        DataError: an unknown kind, or a file that cannot be read or has too few holes.
    """
    if kind not in FILES:
        raise DataError(f"kind={kind!r}: use one of {[*FILES]}")
    encode, found = lm.tokenizer.encode, []
    for where, line in row_files.lines(storage.path(folder) / FILES[kind]):
        try:
            row = json.loads(line)
            parts = (row["prompt"], row["suffix"], row["canonical_solution"])
            name = row["task_id"]
            prompt, suffix, middle = (
                tuple(encode(text, not i)) for i, text in enumerate(parts)
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{where}: not a row of a {kind} file ({error!r})"
            ) from error
        if middle and not 0 < most < len(middle):
            found.append(Hole(name, *beside(prompt, suffix, around), middle))
        if len(found) == count:
            break
    if len(found) < max(count, 1):
        raise DataError(
            f"{folder}/{FILES[kind]} has {len(found)} holes of at most {most} tokens, "
            f"not {count}: ask for fewer"
        )
    return found


def identifiers(
    lm: Any,
    sources: Sequence[tuple[str, str]],
    count: int,
    around: int = 64,
    most: int = 8,
    seed: int = 0,
) -> list[Hole]:
    """Cut `count` identifiers out of Python files, in the order of the files.

    A hole is a use of a name, whose tokens hold the name and the blanks before it, and
    nothing else. A round takes one name of each file, at random; no name of a file is
    taken twice.

    Args:
        lm: the model, for its tokenizer.
        sources: (path, text) of held-out files, of `builtin_tasks.held_out`.
        count: holes.
        around: tokens before the hole at most, and behind it.
        most: tokens of a hole.
        seed: of the choice.

    Raises:
        DataError: the files have fewer.
    """
    found: list[Hole] = []
    rng, streams = random.Random(seed), []
    for path, text in sources:
        streams.append(_of_file(lm, path, text, around, most, rng))
    while streams and len(found) < count:
        alive = []
        for stream in streams:
            hole = next(stream, None)
            if hole is not None:
                found.append(hole)
                alive.append(stream)
            if len(found) == count:
                break
        streams = alive
    if len(found) < count:
        raise DataError(
            f"the files have {len(found)} identifiers of at most {most} tokens, not "
            f"{count}: use a smaller count or more files"
        )
    return found


def names(text: str) -> dict[str, list[int]]:
    """Return where in a Python file each of its names stands; {} for another file."""
    starts = [0]
    for line in io.StringIO(text):  # the lines of `tokenize`
        starts.append(starts[-1] + len(line))
    places: dict[str, list[int]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                row, column = token.start
                places.setdefault(token.string, []).append(starts[row - 1] + column)
    except (tokenize.TokenError, SyntaxError):
        return {}
    return places


def _of_file(
    lm: Any, path: str, text: str, around: int, most: int, rng: random.Random
) -> Iterator[Hole]:
    """Yield a hole of each name of a file, at random places, in random order."""
    places = names(text)
    order = sorted(places)
    rng.shuffle(order)
    encoding = lm.tokenizer.inner.encode(text, add_special_tokens=False)
    ids, spans = encoding.ids, np.asarray(encoding.offsets).reshape(-1, 2)
    for name in order:
        place = rng.choice(places[name])
        end = place + len(name)
        first = int(np.searchsorted(spans[:, 1], place, side="right"))
        last = int(np.searchsorted(spans[:, 1], end, side="left"))
        covered = text[spans[first, 0] : spans[last, 1]]
        if covered.lstrip(" ") != name or last - first >= most or not first:
            continue
        parts = tuple(ids[:first]), tuple(ids[last + 1 :])
        prompt, suffix = beside(*parts, around)
        if not suffix:
            continue
        low, high = spans[first - len(prompt), 0], spans[last + len(suffix), 1]
        sides = (
            any(low <= p and p + len(name) <= place for p in places[name]),
            any(end <= p and p + len(name) <= high for p in places[name]),
        )
        seen = {(1, 1): BOTH, (1, 0): BEFORE, (0, 1): AFTER}.get(sides, NEITHER)
        middle = tuple(ids[first : last + 1])
        yield Hole(f"{path}: {name}", prompt, suffix, middle, seen)


def beside(prompt: Tokens, suffix: Tokens, around: int) -> tuple[Tokens, Tokens]:
    """Return the `around` tokens next to a hole on both sides; 0: all."""
    return (prompt[-around:], suffix[:around]) if around else (prompt, suffix)


def fill(
    lm: Any, holes: Sequence[Hole], batch: int = 32, **settings: Any
) -> list[list[int]]:
    """Write tokens into holes; a model without a mask token sees the prompts alone.

    Args:
        lm: the model.
        holes: to fill.
        batch: holes of a call.
        settings: of `decoding.generate`, such as `method`; greedy unless they differ.

    Returns:
        The tokens of each hole, as many as belong there.
    """
    ends = tuple(lm.config.eos)
    bans = (Spec("transforms/ban_tokens", bans=ends),) if ends else ()
    transforms = (*bans, *settings.pop("transforms", ()))
    is_canvas = composed.is_canvas(lm)
    written: list[list[int]] = []
    for begin in range(0, len(holes), batch):
        part = holes[begin : begin + batch]
        if is_canvas:
            settings["suffix"] = [list(hole.suffix) for hole in part]
        out = decoding.generate(
            lm,
            [list(hole.prompt) for hole in part],
            max_new_tokens=[len(hole.middle) for hole in part],
            transforms=transforms,
            **settings,
        )
        written += [[*map(int, tokens)] for tokens in out.tokens]
    return written


def score(hole: Hole, tokens: Sequence[int]) -> Score:
    """Compare tokens with those that belong into a hole."""
    hits = [a == b for a, b in zip(hole.middle, tokens)]
    share = sum(hits) / len(hole.middle)
    return Score(float(tuple(tokens) == hole.middle), share)
