"""Read the tests of code benchmarks: public ones for a search, hidden ones to judge it.

An item is a row of the benchmark's own file, as a mapping. Tests are Python sources for
`decoding.execution.tests_runner`; both lists follow the item's order.
"""

import ast
import doctest
import re
from collections.abc import Mapping
from typing import Any

from models.errors import DataError

QUOTES = re.compile(r"[rRuU]*(\"\"\"|'''|\"|')")


def mbpp(item: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Split MBPP's asserts: the first is public, the others are hidden.

    Args:
        item: with `test_list`, and `test_setup_code`, which runs before each test.

    Raises:
        DataError: the item has no such tests.
    """
    tests = item.get("test_list")
    if not isinstance(tests, list) or not tests:
        raise DataError(f"{_name(item)} has no list of asserts under 'test_list'")
    setup = item.get("test_setup_code") or ""
    sources = [f"{setup}\n{test}" if setup else test for test in tests]
    return sources[:1], sources[1:]


def humaneval(item: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Split HumanEval's tests: docstring examples are public, `check` is hidden.

    An example in doctest's format becomes an assert: that the value equals the literal
    below it, or has that text as its repr if it is no literal. With nothing below it, a
    comparison is the assert itself, and another value is None. Statements run before
    the next example. Examples that raise are left out. Many items have examples in
    other formats alone, and no public test.

    Args:
        item: with `prompt`, `entry_point` and `test`.

    Raises:
        DataError: a field is missing, or the prompt does not define the entry point.
    """
    fields = [item.get(field) for field in ("prompt", "entry_point", "test")]
    if not all(isinstance(field, str) for field in fields):
        raise DataError(f"{_name(item)}: give texts as 'prompt', 'entry_point', 'test'")
    prompt, entry, test = map(str, fields)
    public, before = [], ""
    for example in doctest.DocTestParser().get_examples(
        _docstring(item, prompt, entry)
    ):
        if example.exc_msg is not None:
            continue
        try:
            # Without comments, and on one line.
            value = ast.unparse(ast.parse(example.source.strip(), mode="eval"))
        except SyntaxError:
            before += example.source
            continue
        public.append(before + _assert(value, example.want.strip()))
        before = ""
    return public, [f"{test}\ncheck({entry})\n"]


def _assert(value: str, want: str) -> str:
    if not want and isinstance(ast.parse(value, mode="eval").body, ast.Compare):
        return f"assert {value}"
    if not want:
        return f"assert ({value}) is None"
    try:
        ast.literal_eval(want)
    except (SyntaxError, ValueError):
        return f"assert repr({value}) == {want!r}"
    return f"assert ({value}) == ({want})"


def _docstring(item: Mapping[str, Any], prompt: str, entry: str) -> str:
    """Return the entry point's docstring as it stands in the source.

    HumanEval's docstrings have unescaped backslashes in their examples: as values they
    would no longer be examples.
    """
    try:
        tree = ast.parse(prompt)
    except SyntaxError as error:
        raise DataError(f"{_name(item)}: the prompt is no Python: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            if ast.get_docstring(node) is None:
                return ""
            source = ast.get_source_segment(prompt, node.body[0]) or ""
            quotes = QUOTES.match(source)
            assert quotes is not None, source
            return source[quotes.end() : -len(quotes.group(1))]
    raise DataError(f"{_name(item)}: the prompt does not define {entry!r}")


def _name(item: Mapping[str, Any]) -> str:
    return f"item {item.get('task_id', '?')!r}"
