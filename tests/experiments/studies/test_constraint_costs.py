"""Costs of grammars: rows of a schema on a small vocabulary."""

import json

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from decoding.automata import arena, compiled, machine
from experiments.benchmarks.jsonschemabench import Instance, Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_costs
from experiments.studies.constraint_workers import Outcome

SCHEMA = json.dumps(
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
)
PROBLEM = Problem(
    "one", "s", SCHEMA, (), (Instance("3", False), Instance('{"name": "abc"}', True))
)


def test_a_row_of_a_schema(trained):
    """Planted: a schema that is refused has no times of masks."""
    row = constraint_costs.measure(trained.file, trained.eos, PROBLEM, True, 1)
    assert row["states"] > 22 and row["device_bytes"] > 0 and row["disk_bytes"] > 0
    for name in ("cold", "machine", "warm", "tables", "mask", "logsumexp", "advance"):
        assert row[name] >= 0, name
    refused = PROBLEM._replace(schema='{"type": "array", "uniqueItems": true}')
    row = constraint_costs.measure(trained.file, trained.eos, refused, True, 1)
    assert "refused" in row and "mask" not in row


def test_texts_are_those_that_the_machine_accepts():
    """Planted: an invalid instance is longer."""
    built = compiled.machine(compiled.Grammar("json_schema", SCHEMA))
    longer = Instance('{"name": 1, "also": 123456}', True)
    problem = PROBLEM._replace(instances=(*PROBLEM.instances, longer))
    assert constraint_costs.accepted_text(built, problem) == '{"name": "abc"}'


def test_setup_from_the_disk(trained):
    row = constraint_costs.setup(trained.file, trained.eos)
    assert row["scratch"] > 0 and row["disk"] > 0


def test_rows_and_masks_are_those_of_the_text(trained):
    """Planted: rows behind a token instead of before it."""
    compiler = constraint_costs.ready(trained.file, trained.eos)
    held = arena.Arena(compiler.vocabulary, compiler.strings)
    first = held.add(compiler.lifted(compiled.Grammar("json_schema", SCHEMA)))
    tables = jax.tree.map(jnp.asarray, held.tables())
    row = machine.init(
        first, constraint_costs.MOST_TOKENS, constraint_costs.DEPTH, False
    )
    tokens = jnp.array([1 + compiler.vocabulary.tokens[1:].index(b"{")] * 2, jnp.int32)
    rows = constraint_costs.walked(tables, row, tokens)
    assert int(rows.state[0]) == first and int(rows.state[1]) != first
    nodes = jax.tree.map(lambda leaf: leaf[None, :1], rows)
    parity = constraint_costs.masks(tables, nodes)
    expected = machine.allowed(tables, row)
    assert np.array_equal(parity[0], expected) and expected.any()
    after = machine.allowed(tables, jax.tree.map(lambda leaf: leaf[1], rows))
    assert not np.array_equal(parity[0], after)


def test_sums_are_repeated():
    """Each batch adds to the last one's sums, so that none can be left out."""
    logits = jnp.log(jnp.ones((2, 4)))
    one = constraint_costs.sums(logits, 1)
    assert np.allclose(one, 1e-6 * np.log(4))
    assert (constraint_costs.sums(logits, 2) > one).all()


class Here:
    """A worker in this process, which stops at one schema."""

    is_running = True

    def __init__(self, *about, **fields):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def call(self, limit, function, *arguments):
        named = [x.name for x in arguments if isinstance(x, Problem)]
        if named == ["slow"]:
            return Outcome(None, "over 9 s")
        return Outcome(function(*arguments))


def test_chunks_are_resumed(trained, tmp_path, monkeypatch):
    """Planted: a worker that is asked again fails."""
    monkeypatch.setattr(constraint_costs, "Worker", Here)
    fields = {"cost_chunk": 2, "timed": 0, "repeats": 1, "limit": 9.0}
    config = ml_collections.ConfigDict(fields)
    problems = [PROBLEM, PROBLEM._replace(name="slow"), PROBLEM._replace(name="two")]
    store = RunFolder(tmp_path)
    start, rows = constraint_costs.measured(config, store, trained, problems)
    assert [row["name"] for row in rows] == ["one", "slow", "two"]
    assert rows[1]["stopped"] == "over 9 s" and start["disk"] > 0
    monkeypatch.setattr(Here, "call", None)
    assert constraint_costs.measured(config, store, trained, problems) == (start, rows)
