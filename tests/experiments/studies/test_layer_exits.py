"""Nats by gates against decoding's, equal sizes of controls, and both stages."""

import jax
import numpy as np
import pytest

from configs.studies import first as routed_recipe
from configs.studies import skipdecode as scheduled_recipe
from decoding import Method, Spec
from experiments.benchmarks import long_context, long_nats
from experiments.run_folder import RunFolder, write
from experiments.studies import layer_exits, routed_exits, scheduled_exits
from experiments.studies.layer_exits import Bench
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import layer_router
from models.surgery import lora
from tests.experiments import conftest

DEPTH, PROMPT, NEW = 3, 7, 6


@pytest.fixture(scope="module")
def lm():
    return conftest.make(DEPTH, 0)


@pytest.fixture(autouse=True)
def files(monkeypatch):
    rng = np.random.default_rng(0)
    texts = [(str(i), tuple(rng.integers(1, 99, 60).tolist())) for i in range(9)]
    monkeypatch.setattr(long_context, "files", lambda lm, data="": texts)


def small(recipe, **fields):
    c = recipe.get_config()
    c.drafter, c.seeds, c.cases, c.prompt, c.new = "", (0, 1), 4, PROMPT, NEW
    c.draws = 2
    for name, value in fields.items():
        c[name] = value
    return c


@pytest.fixture
def bench(lm):
    return Bench(small(routed_recipe), lm)


@pytest.fixture(scope="module")
def routers():
    weight = jax.random.normal(jax.random.key(1), (DEPTH, 32))
    return {"weight": 0.3 * weight, "bias": np.zeros(DEPTH, np.float32)}


def forced(lm, tokens, method, **fields):
    cases = [
        long_context.Case(tuple(row[:PROMPT]), PROMPT, tuple(row[PROMPT:]))
        for row in tokens.tolist()
    ]
    return long_nats.nats(lm, cases, method=method, **fields)


def test_nats_are_those_of_decoding(bench, lm, routers):
    """Of votes, of a fixed set and of a schedule. Planted: the whole model's."""
    tokens, rng = bench.tokens(0), np.random.default_rng(0)
    votes = bench.votes(lm.params, routers, tokens)
    assert len({tuple(v) for v in votes.tolist()}) > 1  # rows differ
    own = {
        "first": bench.constant(votes, tokens),
        "fixed": bench.fixed([0, 2]).gates(tokens, rng),
    }
    c = small(scheduled_recipe, tokens=4)
    schedule = scheduled_exits.schedule(c, bench, 3, 2, None)
    method = Method(exit=Spec("exits/first"))
    fixed = bench.fixed([0, 2]).routers
    due = {
        "first": forced(lm, tokens, method, drafts={"exits": routers}),
        "fixed": forced(lm, tokens, method, drafts={"exits": fixed}),
        "schedule": forced(lm, tokens, Method(exit=schedule.exit)),
    }
    own["schedule"] = schedule.gates(tokens, rng)
    whole, _ = bench.grade(lm.params, tokens, bench.every(tokens))
    for name, gates in own.items():
        nats, _ = bench.grade(lm.params, tokens, gates)
        np.testing.assert_allclose(nats, due[name], atol=1e-4)
        assert np.abs(nats - whole).max() > 1e-3, name


def test_controls_have_as_many_layers(bench, lm, routers):
    """Row by row, and the sets are drawn anew. Planted: a size for all rows."""
    tokens = bench.tokens(0)
    votes = bench.votes(lm.params, routers, tokens)
    own = bench.constant(votes, tokens).sum(0)
    arm = bench.random(lambda tokens: votes.sum(1), None)
    one, two = (arm.gates(tokens, np.random.default_rng(i)) for i in range(2))
    np.testing.assert_array_equal(one.sum(0), own)
    np.testing.assert_array_equal(two.sum(0), own)
    assert (one != two).any() and one[:, :, :PROMPT].all()
    held = bench.random(lambda tokens: votes.sum(1), None, 1)
    gates = held.gates(tokens, np.random.default_rng(0))
    np.testing.assert_array_equal(gates.sum(0), own)
    assert gates[0][votes.sum(1) > 0].all()
    size = round(float(votes.sum(1).mean()))
    planted = bench.random(lambda tokens: np.full(len(tokens), size), None)
    counts = planted.gates(tokens, np.random.default_rng(0)).sum(0)
    assert (counts != own).any()


def test_differences_are_paired():
    """Planted: cases of another order."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(2, 4, 30)
    make = lambda nats: [{"nats": nats.tolist(), "layers": [5.0] * 30}]
    rows = {"a": make(hard), "b": make(hard + 0.1), "c": make((hard + 0.1)[::-1])}
    line = lambda pair: layer_exits.directions("", [pair], rows, (0,))["lines"][0]
    assert line(("a", "b"))[2:] == ["+0.100 ± 0.000", "+0.100", "yes"]
    assert line(("b", "a"))[-1] == "no" and line(("a", "c"))[-1] == "even"


def test_texts_part():
    assert layer_exits.parting([1, 2, 3], [1, 2, 4]) == 2
    assert layer_exits.parting([1, 2], [1, 2, 4]) == 2


@pytest.mark.parametrize(
    ("field", "value"), [("cases", 0), ("prompt", 1), ("seeds", ()), ("draws", 0)]
)
def test_what_cannot_run_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"config.{field}="):
        layer_exits.check(small(routed_recipe, **{field: value}))


def save(folder, lm, name, params):
    about = {"target": "small", "fingerprint": native.fingerprint(lm.params)}
    native.save(folder / "export" / name, params, about)


def changes(lm):
    own = lora.init(jax.random.key(2), lm.params, 2, head=False)
    return jax.tree.map(lambda x: x + 0.05, own)


@pytest.mark.long
def test_the_study_of_routers(lm, draft, routers, tmp_path):
    """Sure routers are the whole model; drafts keep the text; pieces are resumed."""
    trained = tmp_path / "trained"
    save(trained, lm, "1", routers)
    save(trained, lm, "2", layer_router.fixed(DEPTH, 32, range(DEPTH)))
    save(trained, lm, "1_lora", changes(lm))
    write(trained / "figures.json", {"sets": [[0, 1, 2], [0, 2], [0]]})
    c = small(routed_recipe, trained=str(trained), prices=(1.0, 2.0))
    c.drafter = "model_tree"
    found = routed_exits.run(c, RunFolder(tmp_path / "run"), lm, draft)
    quality = {line[0]: line for line in found["tables"][0]["lines"]}
    assert quality["routers 2"][3] == "+0.000 ± 0.000"
    assert quality["routers 2"][5] == "100 %"
    assert quality["routers 1"][1] == quality["random 1"][1]
    assert quality["routers 1"][1] == quality["best fixed 1"][1]
    assert quality["routers 1, adapted"][3] != quality["routers 1"][3]
    drafted = {line[0]: line for line in found["tables"][3]["lines"]}
    assert all(line[1] == "8 of 8" for line in drafted.values())
    again = routed_exits.run(c, RunFolder(tmp_path / "run"), lm, draft)
    assert again["tables"] == found["tables"]


@pytest.mark.long
def test_the_study_of_schedules(lm, tmp_path):
    """max = min = all is the whole model; trained arms occur where there are any."""
    trained = tmp_path / "trained"
    save(trained, lm, "3_1", changes(lm))
    save(trained, lm, "fixed_2", changes(lm))
    figures = {
        "sets": [[0, 1, 2], [0, 2], [0]],
        "budgets": {"3_1": {"count": 2}},
        "fixed": {"2": {"set": [0, 2]}},
    }
    write(trained / "figures.json", figures)
    c = small(scheduled_recipe, trained=str(trained), tokens=NEW, warm=0)
    c.budgets = ((3, 3), (3, 1))
    found = scheduled_exits.run(c, RunFolder(tmp_path / "run"), lm)
    quality = {line[0]: line for line in found["tables"][0]["lines"]}
    assert quality["schedule 3 to 3"][3] == "+0.000 ± 0.000"
    assert quality["schedule 3 to 1"][1] == "2.00"
    assert {"schedule 3 to 1, trained", "best fixed 2, trained"} <= {*quality}
    assert quality["constant 3"][3] == "+0.000 ± 0.000"
    claims = {line[0] for line in found["tables"][1]["lines"]}
    assert "schedule 3 to 1, trained ≥ best fixed 2, trained" in claims
