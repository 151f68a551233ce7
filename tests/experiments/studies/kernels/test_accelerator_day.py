"""The stage `accelerator_day`: pieces that fail alone, calls in a chain, the report."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.studies import accelerator_day as recipe
from experiments.run_folder import RunFolder
from experiments.studies.kernels import (
    accelerator_day,
    chained_timing,
    model_timing,
    parity,
)
from kernels import block_traffic, tree_attention, verify
from kernels.tree_attention import reference

pytestmark = pytest.mark.kernels


def test_calls_wait_for_each_other_and_read_every_operand(monkeypatch):
    """The state that a program returns is that of a loop by hand; planted: a program
    that reads the first operand alone."""
    ran = []
    jit = jax.jit
    keep = lambda f: lambda *a: ran.append(jit(f)(*a)) or ran[-1]
    monkeypatch.setattr(jax, "jit", keep)
    operands = [jnp.float32(x) for x in (2, 3, 5)]
    step = lambda state, x: state * x + 1
    args = (step, jnp.float32(1), operands, 2, 1)
    assert chained_timing.seconds_a_call(*args) > 0
    expected = 1.0
    for x in [2, 3, 5] * 2:
        expected = expected * x + 1
    assert len(ran) == 2 and float(ran[0]) == float(ran[1]) == expected
    chained_timing.seconds_a_call(step, jnp.float32(1), operands[:1] * 3, 2, 1)
    assert float(ran[-1]) != expected


def test_distance_of_what_is_no_number():
    one, bad = np.array([1.0, -np.inf]), np.array([np.nan, -np.inf])
    assert parity.apart(one, one) == 0
    assert parity.apart(bad, one) == parity.apart(one, bad) == 1e30
    assert parity.apart(one, np.array([1.0, 0.0])) == 1e30
    assert parity.apart(np.array([300.0]), np.array([200.0])) == 0.5  # relative


def test_a_wrong_kernel_is_told_from_a_right_one(monkeypatch):
    """Planted: a kernel that forgets the first slot, and a fault that changes nothing
    (then the case proves nothing)."""
    settings = recipe.rehearsal().parity
    case = functools.partial(parity.attention, settings, "xla", 8, jnp.float32)
    cases = [case()]
    monkeypatch.setattr(parity, "cases", lambda settings: cases)
    (row,) = parity.rows(settings)
    assert row["equal"] and row["form"] == "xla" and row["fault"] > 1

    right = cases[0]
    cases[:] = [right._replace(faulty=right.call)]
    assert not next(parity.rows(settings))["equal"]

    def forgetful(q, k, v, *arrays, kernel, **options):
        return reference.tree_attention(q, k.at[:, :, 0].set(0), v, *arrays, **options)

    monkeypatch.setattr(tree_attention.api, "tree_attention", forgetful)
    cases[:] = [case()]
    assert not next(parity.rows(settings))["equal"]


def test_a_row_names_the_form_that_ran(monkeypatch):
    """Logits of too few tokens on a Hopper, and a GPU that is none."""
    monkeypatch.setattr(block_traffic, "platform", lambda: "hopper")
    taken = functools.partial(parity.taken, "pallas", verify.choose)
    few = verify.Shape(1, 1, 300, jnp.dtype(jnp.float32))
    many = verify.Shape(1, 1, 4096, jnp.dtype(jnp.float32))
    assert (taken(many), taken(few)) == ("gpu", "xla")
    monkeypatch.setattr(block_traffic, "platform", lambda: "gpu")
    assert taken(many) == "xla"


def test_a_round_reads_the_params_it_is_given(monkeypatch):
    """Params are an argument of the timed program, not 16 GB of constants in it."""
    settings = recipe.rehearsal().models
    config, params = model_timing.model(settings.shapes["8B"])
    lm = model_timing.transformer.transformer(config, jnp.bfloat16, "xla")
    traced = []
    jit = jax.jit

    def spy(function, **options):
        compiled = jit(function, **options)
        if function.__name__ == "run":
            shapes = lambda *a: jax.make_jaxpr(function)(*a)
            return lambda *a: traced.append(shapes(*a)) or compiled(*a)
        return compiled

    monkeypatch.setattr(jax, "jit", spy)
    model_timing.seconds_a_round(lm, params, lm.init_cache(1, 64), 8, settings)
    constants = sum(np.asarray(x).nbytes for x in traced[0].consts)
    assert constants < min(x.nbytes for x in jax.tree.leaves(params) if x.ndim == 2)


@pytest.fixture
def pieces(monkeypatch):
    """Three pieces in place of the day's: one that fails after its first row."""
    made = []

    def fails(gb_s):
        made.append(gb_s)
        yield {
            "form": "xla",
            "size": 64,
            "nodes": 1,
            "us": 2.0,
            "gb_s": 1.0,
            "share": 0.5,
        }
        raise ValueError("no such kernel")

    top = {"copy": 2.0, "sum": 3.0, "matrix_vector": 1.0, "gb_s": 3.0}
    top |= {"flops": 1e12, "sheet_gb_s": 0.0, "sheet_flops": 0.0}
    planned = {
        "ceilings": lambda gb_s: [top],
        "attention": fails,
        "training": lambda gb_s: [],
    }
    monkeypatch.setattr(accelerator_day, "planned", lambda settings: planned)
    return made


def test_a_piece_that_fails_costs_no_other(pieces, tmp_path):
    """It keeps its rows, tells why in the report, and is not measured twice."""
    store = RunFolder(tmp_path)
    found = accelerator_day.run(recipe.get_config(), store)
    assert found["rehearsal"] and pieces == [3.0]  # the best reader's GB/s
    assert accelerator_day.run(recipe.get_config(), store) == found
    assert pieces == [3.0]
    accelerator_day.write_report(store, {}, {**found, "commands": ["the command"]})
    text = (tmp_path / "report.md").read_text()
    assert "no accelerator took part" in text and "`the command`" in text
    assert "| xla | 64 | 1 | 2.0 | 1 | 0.50 | 1.00 | 1.00 |" in text
    assert "`attention` ended early" in text and "no such kernel" in text
    assert json.loads((tmp_path / "report.json").read_text())["pieces"].keys() == {
        "ceilings",
        "attention",
        "training",
    }


def test_ratios_are_of_the_same_call():
    """By hand: to one node of its own size, and to XLA's form, pages to pages."""
    row = {"batch": 1, "gb_s": 1.0, "share": 0.5}
    calls = [
        ("xla", 64, 1, 4.0),
        ("gpu", 64, 1, 2.0),
        ("gpu", 64, 8, 3.0),
        ("xla, pages", 64, 8, 9.0),
        ("gpu, pages", 64, 8, 6.0),
        ("gpu", 128, 8, 5.0),
    ]
    rows = [
        {"form": f, "size": s, "nodes": n, "us": us, **row} for f, s, n, us in calls
    ]
    lines = accelerator_day._kernel_table(rows).splitlines()[2:]
    last = [[x.strip() for x in line.split("|")[-3:-1]] for line in lines[:6]]
    assert last == [
        ["1.00", "1.00"],
        ["1.00", "0.50"],
        ["1.50", ""],
        ["", "1.00"],
        ["", "0.67"],
        ["", ""],
    ]


@pytest.mark.long
def test_the_rehearsal_fills_every_table(tmp_path):
    config = recipe.get_config()
    found = accelerator_day.run(config, RunFolder(tmp_path))
    assert [n for n, p in found["pieces"].items() if p["error"] or not p["rows"]] == []
    assert all(row["equal"] for row in found["pieces"]["parity"]["rows"])
    text = accelerator_day.markdown({**found, "command": ""})
    assert "nan" not in text and "inf" not in text and "DIFFERENT" not in text
    assert set(accelerator_day.planned(config.chip)) == set(found["pieces"])
