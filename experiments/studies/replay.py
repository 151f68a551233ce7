"""The stage `replay`: drafters judged on recorded texts, with no model at all.

A record is a prompt and the response of some model (or person). Every method decodes
it with `models.synthetic.recorded` as the target. So its tokens per call equal those of
greedy decoding by that model, as far as drafts depend on the text alone. Records are
replayed in order, one at a time, and a method keeps its memory from one to the next, as
in serving.
"""

import functools
import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import models
from decoding import Method, base, compose
from decoding.loops import engines, initial_state
from experiments import console
from experiments.measurement import bootstrap, paired_difference
from experiments.measurement.workbench import Model
from experiments.run_folder import RunFolder
from experiments.stage import Section, Stage
from experiments.studies import common
from models import storage
from models.checkpoints import hub
from models.errors import ConfigError, DataError
from models.synthetic import recorded
from models.text import hf_tokenizer, row_files


class Record(NamedTuple):
    """One request as tokens."""

    prompt: list[int]
    response: list[int]


def read(config: Any, tokenizer: Any) -> list[Record]:
    """Read the first `config.records` records of the file `config.data`.

    The file is JSONL, or one JSON list (`.json`), plain or in `.gz`; or it is parquet;
    also at an address `hf://...`. A field is a list
    of token ids (`[1, 2]`) or a text, which `tokenizer` encodes. Records with an empty
    field, or of more than `config.longest` tokens, are left out.

    Raises:
        ConfigError: the file does not exist.
        DataError: a line is no JSON, or lacks a field; or no record is left.
    """
    path = config.data
    if not hub.is_data(path) and not storage.path(path).is_file():
        raise ConfigError(
            f"config.data={path!r} is no file: give JSONL or parquet with the fields "
            f"{config.prompt_field!r} and {config.response_field!r}"
        )
    records: list[Record] = []
    for place, whole in _objects(path):
        if len(records) == config.records:
            break
        fields = (config.prompt_field, config.response_field)
        texts = [_tokens(_field(whole, f, place), tokenizer, place) for f in fields]
        if all(texts) and sum(map(len, texts)) <= config.longest:
            records.append(Record(*texts))
    if not records:
        raise DataError(
            f"{path} holds no record with a prompt, a response and at most "
            f"config.longest={config.longest} tokens"
        )
    return records


def _objects(source: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, JSON value) for every record of a file."""
    for path in row_files.paths(source):
        if path.name.removesuffix(".gz").endswith(".json"):
            opened = gzip.open if path.suffix == ".gz" else open
            with storage.local_copy(path) as copy, opened(copy, "rb") as file:
                records = json.load(file)
            yield from ((f"{path}:{i}", x) for i, x in enumerate(records, 1))
            continue
        for where, line in row_files.lines(path):
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{where} is no JSON: {error}") from error


def _field(whole: Any, field: str, where: str) -> Any:
    """Get a field by name, or fill a text that has fields in braces (`str.format`)."""
    try:
        return field.format(**whole) if "{" in field else whole[field]
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"{where} lacks {field!r}: set config.prompt_field and "
            "config.response_field to the file's names"
        ) from error


def read_tokenizer(given: str) -> Any:
    """Load the tokenizer of a model directory, of a repository, or a tokenizer.json."""
    path = hub.local(given, files=hub.TOKENIZER)
    tokenizer = hf_tokenizer.load(path.parent if path.is_file() else path, ())
    if tokenizer is None:
        raise ConfigError(f"config.tokenizer={given!r} holds no tokenizer.json")
    return tokenizer


def _tokens(value: Any, tokenizer: Any, where: str) -> list[int]:
    """Encode a text, or check a list of token ids; DataError otherwise."""
    if isinstance(value, str):
        return tokenizer.encode(value, add_special=False)
    if isinstance(value, list) and all(isinstance(t, int) for t in value):
        wrong = [t for t in value if not 0 <= t < tokenizer.vocab_size]
        if not wrong:
            return value
        raise DataError(
            f"{where} has token {wrong[0]}, outside the tokenizer's "
            f"{tokenizer.vocab_size}: give the tokenizer that wrote it"
        )
    raise DataError(f"{where}: give a text or a list of token ids, not {value!r}")


def replay(
    method: Method, records: Sequence[Record], tokenizer: Any, times: int = 1
) -> dict[str, Any]:
    """Decode all records in order with one method, `times` over; count the last."""
    lm = Model(recorded.language_model(tokenizer.vocab_size), None, tokenizer)
    parts = compose.compose(method, lm)
    engine = engines.engine(parts)
    new, calls, accepted, offered, candidates = [], [], [], [], 0
    memory = None
    keys = engines.request_keys(0, 1, 1)
    earlier = len(records) * (times - 1)
    # One buffer size for all records, hence one program: compilation dominates.
    size = initial_state.bucket(max(len(r.prompt) + len(r.response) for r in records))
    for i, record in enumerate([*records] * times):
        text = [*record.prompt, *record.response]
        recorded_text = jnp.asarray([text + [0] * (size - len(text))], jnp.int32)
        params = base.Params(target={"text": recorded_text})
        state = engine.start(
            params, parts, [record.prompt], [len(text)], keys, size, memory
        )
        state = engine.advance(params, state)
        written = np.asarray(state.tokens)[0, : len(text)].tolist()
        assert written == text, "a drafter changed what greedy decoding writes"
        memory = state.drafter.shared
        if i < earlier:
            continue
        counters = state.counters
        new.append(len(record.response))
        calls.append(int(counters.target_calls[0]))
        accepted.append(np.asarray(counters.accepted)[0])
        offered.append(np.asarray(counters.offered)[0])
        candidates += int(counters.candidates[0])
    accepted_sums, offered_sums = np.sum(accepted, 0), np.sum(offered, 0)
    return {
        "records": len(records),
        "new_tokens": sum(new),
        "target_calls": sum(calls),
        "tokens_per_call": sum(new) / sum(calls),
        "ci95": bootstrap.tokens_per_call_interval(new, calls),
        "accepted_by_depth": (
            accepted_sums[offered_sums > 0] / offered_sums[offered_sums > 0]
        ).tolist(),
        "drafted_per_call": candidates / sum(calls),
        "tokens_per_node": sum(new) / (candidates + sum(calls)),
        "wasted": 1 - float(accepted_sums.sum()) / candidates if candidates else 0.0,
        "new": new,
        "calls": calls,
    }


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Replay missing methods, and return all rows for the report."""
    named = common.methods(config)
    for name, method in named.items():
        needs = {"draft", "heads"} & method.needs
        if needs:
            raise ConfigError(
                f"{name} drafts with a model ({sorted(needs)}), and a record has none: "
                "leave it out of config.methods"
            )
    if config.tokenizer:
        tokenizer = read_tokenizer(config.tokenizer)
    else:
        tokenizer = models.load("tiny").tokenizer
    records = read(config, tokenizer)
    rows = []
    with console.bar(len(named), "replaying") as bar:
        for name, method in named.items():
            bar.doing(name)
            one = functools.partial(replay, method, records, tokenizer, config.times)
            row = store.make("rows", name, one)
            rows.append({"method": name, **row})
            bar.done(f"{name:24} {row['tokens_per_call']:5.2f} tokens/call")
    tables = []
    if config.directions:
        tables.append(paired_difference.table(rows, config.directions, by={}))
    return common.study(store, replay=rows, tables=tables)


HEADS = (
    "method",
    "records",
    "tokens",
    "tokens/call",
    "drafted/call",
    "tokens/node",
    "wasted",
    "acceptance by depth",
)

NOTE = (
    "The target says what the record says: tokens/call are those of greedy decoding by "
    "the model that wrote it. *tokens/node*: tokens ÷ "
    "verified nodes, the root counted. *wasted*: share of the drafts verified in "
    "vain. Methods that read the target's runners-up see the text's own bigrams in "
    "their place."
)


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells, in the order of HEADS."""
    low, high = row["ci95"]
    depths = " ".join(f"{100 * a:.0f}" for a in row["accepted_by_depth"][:8])
    return [
        row["method"],
        f"{row['records']}",
        f"{row['new_tokens']}",
        f"{row['tokens_per_call']:.2f} ({low:.2f}–{high:.2f})",
        f"{row['drafted_per_call']:.1f}",
        f"{row['tokens_per_node']:.2f}",
        f"{100 * row['wasted']:.0f} %",
        f"{depths} %" if depths else "–",
    ]


def sections(report: dict[str, Any]) -> list[Section]:
    """Build the table of the methods side by side."""
    lines = [cells(row) for row in report["replay"]]
    return [Section("Recorded texts", HEADS, lines, [NOTE])]


STAGE = Stage(
    run,
    "Drafting on recorded texts",
    ("methods", "variants", "directions"),
    parts=("replay",),
    sections=sections,
)
