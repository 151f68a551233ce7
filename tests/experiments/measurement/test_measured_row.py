"""What the figures of a row mean."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method
from decoding.catalogue import Spec
from decoding.loops import stats
from experiments.measurement import block_width_cost, bootstrap, machine, workbench
from experiments.measurement.workbench import Bench, Case
from models.errors import ConfigError
from models.synthetic import constant

LOOKUP = Method(Spec("drafters/prompt_lookup"))


def test_loop_share():
    assert stats.loop_share([1, 2, 3] * 10) == 1.0
    assert stats.loop_share(list(range(20))) == 0.0
    # 14 tokens of their own, then `7 8` three times: 6 of 20.
    assert stats.loop_share([*range(100, 114), 7, 8, 7, 8, 7, 8]) == 6 / 20
    # Planted: one token less is below the 30 % that make a loop.
    assert stats.loop_share([*range(100, 115), 7, 8, 7, 8, 7]) == 0.0


def test_repeated_four_grams():
    assert workbench.repeated([1, 2, 3, 4, 5, 6]) == 0.0
    assert workbench.repeated([1] * 10) == 1 - 1 / 7


def test_interval_holds_the_ratio_and_narrows():
    new, calls = [40, 50, 60, 70], [20, 40, 30, 50]
    low, high = bootstrap.tokens_per_call_interval(new, calls)
    assert low < sum(new) / sum(calls) < high
    assert bootstrap.tokens_per_call_interval([40] * 4, [20] * 4) == [2.0, 2.0]


def test_interval_of_a_speed_up():
    """A constant ratio; slow turns of both cancel; planted: slow turns of plain."""
    rng = np.random.default_rng(0)
    plain = rng.uniform(1, 2, (5, 4))
    new = [10, 20, 30, 40]
    interval = bootstrap.speedup_interval
    np.testing.assert_allclose(interval(plain / 1.5, plain, new, new), [1.5, 1.5])
    noisy = plain / 1.5 * rng.uniform(0.9, 1.1, plain.shape)
    low, high = interval(noisy, plain, new, new)
    assert low < np.median(plain.sum(1) / noisy.sum(1)) < high
    slow = np.array([1, 3, 1, 2, 5])[:, None]
    np.testing.assert_allclose(
        interval(slow * noisy, slow * plain, new, new), [low, high]
    )
    assert interval(noisy, slow * plain, new, new)[1] > 1.5 * high
    # Twice the tokens in the same time: a speed-up of 2, as of a LOSSY method.
    twice = [2 * count for count in new]
    np.testing.assert_allclose(interval(plain, plain, twice, new), [2.0, 2.0])
    assert interval([[1.0]], [[2.0]], [3], [3]) is None


def test_text_does_not_depend_on_the_batch(lm):
    prompts = [lm.tokenizer.encode(t) for t in ("one", "two", "three!", "four")]
    case = Case(Method(), 0.8)
    alone = Bench(lm, {}, 32, 24, batch=1).once(case, prompts, 1)
    pairs = Bench(lm, {}, 32, 24, batch=2).once(case, prompts, 1)
    assert alone.tokens == pairs.tokens and alone.calls == pairs.calls
    assert pairs.rounds == alone.rounds / 2 == sum(alone.calls) / 2


def test_batches_must_be_full(lm):
    with pytest.raises(ConfigError, match="batches of 2"):
        Bench(lm, {}, 32, 24, batch=2).batches([[1], [2], [3]], 0)


def test_the_constant_model_reads_any_tree(lm):
    """One wider than its table too: rows come again in their order."""
    table = constant.params(lm.model)["table"]
    wide = jnp.zeros((1, constant.ROWS + 3, 32))
    found = constant.language_model(lm.model).head({"table": table}, wide)[0]
    np.testing.assert_array_equal(found[: constant.ROWS], table)
    np.testing.assert_array_equal(found[constant.ROWS :], table[:3])
    # Planted: the last row for all that are wider, as an index past the end reads.
    assert not np.array_equal(found[constant.ROWS :], [table[-1]] * 3)


def test_constant_model_costs_no_layers_and_writes_no_text_end(lm):
    bench = Bench(lm, {}, 32, 24)
    run = workbench.Run()
    part, keys = bench.batches([[1, 2, 3]], 0)[0]
    bench.decode(Case(LOOKUP, 0.0, constant=True), part, keys, run)
    assert run.new_tokens == 24
    assert not set(run.tokens[0]) & set(lm.model.config.eos)
    # Row i of the table is what node i says: plain decoding always reads row 0.
    plain = workbench.Run()
    bench.decode(Case(Method(), 0.0, constant=True), part, keys, plain)
    table = np.asarray(bench.stub.params["table"])
    assert set(plain.tokens[0]) == {int(table[0].argmax())}


def test_bytes_read(lm, draft):
    bench = Bench(lm, {"draft": draft}, 32, 24)
    method = Method(Spec("drafters/model"), topology=Spec("topologies/chain", length=1))
    prompts = [[1, 2, 3, 4]]
    case = Case(method)
    run = bench.once(case, prompts, 0)
    keys = run.calls[0] * (4 + 12) * 2 * 2 * 2 * 8 * 4  # k and v, layers, groups, d
    weights = workbench.weight_bytes(lm), workbench.weight_bytes(draft)
    assert run.draft_rounds == run.rounds
    expected = run.rounds * (weights[0] + weights[1]) + keys
    assert workbench.bytes_read(bench, case, run, prompts) == expected


def test_call_times_and_suggestion(lm):
    times = block_width_cost.call_times(lm, (1, 2), context=16, size=64, repeats=2)
    assert [t["width"] for t in times] == [1, 2]
    assert times[0]["plain_calls"] == 1.0 and times[1]["ms"] > 0
    for entry in times:
        low, high = entry["ms_quartiles"]
        assert low <= entry["ms"] <= high
    made = [
        {"width": w, "ms": 0.0, "plain_calls": c}
        for w, c in ((1, 1.0), (2, 2.0), (4, 2.5), (8, 8.0))
    ]
    good = block_width_cost.suggest(made, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    assert good["width"] == 4 and good["tokens_per_call"] == pytest.approx(3.4)
    assert good["speedup"] == pytest.approx(3.4 * 0.9 / 2.5)
    assert block_width_cost.suggest(made, [0.1] * 7)["width"] == 1


def test_hardware_and_cache():
    assert machine.last_level_cache() >= 2**15
    found = machine.hardware()
    assert found["cores"] >= 1 and found["platform"]
    assert machine.versions()["jax"]
