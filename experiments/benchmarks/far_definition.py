"""Code completion with the definition far back: the call of a function by its name.

    cases(lm, files, ..) -> cases;   score(case, tokens) -> 0.0 to 1.0

A prompt is a piece of a held-out Python file. It ends behind the first token of a
function's name, where the file calls it, and holds the name at one other place: its
definition. The rest of the name and what follows up to the closing bracket are
expected, `NEW_TOKENS` at most.
"""

import ast
import bisect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.benchmarks.long_context import Case, share_right
from models.errors import DataError

NEW_TOKENS = 8
score = share_right


def cases(
    lm: Any,
    sources: Sequence[tuple[str, str]],
    length: int,
    least: int,
    count: int = 16,
) -> list[Case]:
    """Find `count` calls, one of each function, in the order of the files.

    Args:
        lm: the model, for its tokenizer.
        sources: (path, text) of held-out Python files, of `builtin_tasks.held_out`.
        length: tokens of a prompt at most.
        least: tokens from the definition to the call at least.
        count: cases.

    Raises:
        DataError: the files have fewer.
    """
    made: list[Case] = []
    for _, text in sources:
        encoding = lm.tokenizer.inner.encode(text, add_special_tokens=False)
        for name, places in names(text):
            case = _case(text, encoding, name, places, length, least)
            if case is not None:
                made.append(case)
            if len(made) == count:
                return made
    raise DataError(
        f"the files have {len(made)} calls whose definition is {least} to {length} "
        f"tokens back, not {count}: use a smaller count or distance"
    )


def names(text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield each function of a file, and where in the text its name stands."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined = [node.name for node in ast.walk(tree) if isinstance(node, kinds)]
    for name in dict.fromkeys(defined):
        if defined.count(name) == 1:
            pattern = rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])"
            yield name, [match.start() for match in re.finditer(pattern, text)]


def _case(
    text: str, encoding: Any, name: str, places: Sequence[int], length: int, least: int
) -> Case | None:
    """Make the case of a name's first call, if its definition is the only other use."""
    if len(places) < 2:
        return None
    defined, called = places[:2]
    is_call = text.startswith(f"{name}(", called)
    if not text[:defined].endswith("def ") or not is_call:
        return None
    ids, ends = encoding.ids, [end for _, end in encoding.offsets]
    at = lambda place: bisect.bisect_right(ends, place)  # the token of a character
    start, asked = at(defined), at(called)
    line, last = at(text.rfind("\n", 0, called) + 1), at(_closed(text, called) - 1)
    if ends[asked] >= called + len(name) or not least <= asked - start < length:
        return None
    first = max(0, asked + 1 - length)
    stop = at(defined + len(name) - 1) + 1
    expected = ids[asked + 1 : min(last, asked + NEW_TOKENS) + 1]
    prompt, depth = tuple(ids[first : asked + 1]), (start - first) / (asked - first)
    place = (depth, start - first, stop - first)
    return Case(prompt, line - first, tuple(expected), *place)


def _closed(text: str, start: int) -> int:
    """Return the place behind the bracket that closes the first one after `start`."""
    depth = 0
    for place in range(text.index("(", start), len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place + 1
    return len(text)
