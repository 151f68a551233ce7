"""JSONSchemaBench and MaskBench: schemas, instances, prompts, and exact scores.

Geng et al., *JSONSchemaBench: A Rigorous Benchmark of Structured Outputs for Language
Models*, 2025, arXiv 2501.10868.

    prompts(lm, read(folder)) -> token prompts;   score(text, schema) -> Score

A folder holds `schemas_<subset>.jsonl[.gz]` (id, schema), `maskbench_tests.jsonl[.gz]`
(the id, features, tests with `data` and `valid`) and, further schemas with their tests
in the same rows, `maskbench_extra.jsonl[.gz]`.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from models import storage
from models.errors import ConfigError, DataError
from models.text import row_files

FURTHER = "MaskBench"  # the subset of `maskbench_extra`
TESTS, EXTRA = "maskbench_tests", "maskbench_extra"
FORMATS = ("ipv4", "ipv6", "uuid")  # that the authors' evaluator asserts


class Instance(NamedTuple):
    """A JSON text, and whether it is an instance of its schema."""

    text: str
    is_valid: bool


class Problem(NamedTuple):
    """A schema and its instances.

    Attributes:
        name: the id.
        subset: of the benchmark.
        schema: JSON text.
        features: keywords that MaskBench lists.
        instances: valid and invalid ones, in the file's order.
    """

    name: str
    subset: str
    schema: str
    features: tuple[str, ...] = ()
    instances: tuple[Instance, ...] = ()


def json_text(value: Any) -> str:
    """Return the JSON text of a value; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def read(folder: str) -> list[Problem]:
    """Read all schemas of a folder, those of the benchmark's subsets first.

    Raises:
        DataError: there are none, or a file has another layout.
    """
    files = {
        path.name.split(".jsonl")[0]: path
        for path in storage.path(folder).glob("*.jsonl*")
    }
    subsets = sorted(name for name in files if name.startswith("schemas_"))
    tests = {}
    if TESTS in files:
        tests = {row["id"]: row for row in _rows(files[TESTS])}
    problems = []
    for name in subsets:
        subset = name.removeprefix("schemas_")
        for row in _rows(files[name]):
            problems.append(_problem(row, subset, tests.get(row["id"], {})))
    if EXTRA in files:
        problems += [_problem(row, FURTHER, row) for row in _rows(files[EXTRA])]
    if not problems:
        raise DataError(
            f"config.data={folder!r} holds no schemas_*.jsonl and no {EXTRA}.jsonl: "
            "give the folder of JSONSchemaBench"
        )
    return problems


def _rows(path: storage.Path) -> Iterator[dict[str, Any]]:
    for where, line in row_files.lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: no JSON ({error})") from error
        if not isinstance(row, dict) or "id" not in row:
            raise DataError(f"{where}: no object with an id")
        yield row


def _problem(row: dict[str, Any], subset: str, tests: dict[str, Any]) -> Problem:
    if "schema" not in row:
        raise DataError(f"{subset}, {row['id']}: the row has no schema")
    instances = tuple(
        Instance(json_text(test["data"]), test["valid"])
        for test in tests.get("tests", ())
        if isinstance(test.get("valid"), bool)
    )
    features = tuple(tests.get("features", ()))
    return Problem(row["id"], subset, json_text(row["schema"]), features, instances)


def drawn(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """Draw `count` problems, 0: all, in an order that only `seed` changes.

    So a smaller draw is the beginning of a larger one.
    """
    order = list(problems)
    random.Random(seed).shuffle(order)
    return order[: count or None]


def tried(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return the first `count` problems of the benchmark's subsets with instances."""
    held = [x for x in problems if x.subset != FURTHER and x.instances]
    return held[:count]


class Score(NamedTuple):
    """What a text is: JSON at all, and an instance of its schema."""

    is_json: bool
    is_instance: bool


def prompt(problem: Problem) -> str:
    """Return the words that ask for an instance of a schema."""
    return f"Write a JSON value that this schema describes.\n{problem.schema}\nJSON: "


def prompts(lm: Any, problems: Sequence[Problem]) -> list[list[int]]:
    """Encode the schemas' prompts with the model's tokenizer."""
    return [lm.tokenizer.encode(prompt(problem)) for problem in problems]


def score(text: str, schema: str) -> Score:
    """Judge a text by python-jsonschema, draft 2020-12 unless the schema says so.

    The formats ipv4, ipv6 and uuid are asserted, as in the authors' evaluator. No text
    is an instance of a schema that the validator refuses, nor of a reference that leads
    nowhere or has no end.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        import jsonschema
        import referencing
    except ImportError as error:
        raise ConfigError(
            'scores of JSONSchemaBench need jsonschema: pip install -e ".[constraints]"'
        ) from error
    try:
        value = json.loads(text)
    except ValueError:
        return Score(False, False)
    rules = json.loads(schema)
    checker = jsonschema.FormatChecker(FORMATS)
    kind = jsonschema.validators.validator_for(rules, jsonschema.Draft202012Validator)
    refusals = (jsonschema.SchemaError, referencing.exceptions.Unresolvable)
    try:
        kind.check_schema(rules)
        return Score(True, kind(rules, format_checker=checker).is_valid(value))
    except (*refusals, RecursionError):
        return Score(True, False)


class Coverage(NamedTuple):
    """The benchmark's three shares.

    Attributes:
        declared: schemas that the engine takes.
        empirical: schemas whose text is an instance.
        compliance: of the taken ones, those whose text is; NaN if none is taken.
    """

    declared: float
    empirical: float
    compliance: float


def coverage(taken: Sequence[bool], right: Sequence[bool]) -> Coverage:
    """Return the shares over schemas that were `taken`, and whose texts are `right`."""
    both = [a and b for a, b in zip(taken, right, strict=True)]
    compliance = sum(both) / sum(taken) if sum(taken) else float("nan")
    return Coverage(sum(taken) / len(taken), sum(both) / len(both), compliance)
