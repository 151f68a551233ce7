"""The stage `replay` and the model that says what a record says."""

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from decoding import Method, Spec
from experiments import run
from experiments.measurement import paired_difference
from experiments.recipes import settings
from experiments.studies import common, replay
from models.errors import ConfigError, DataError
from models.synthetic import recorded


class Numbers:
    """A tokenizer of 64 ids that texts are not needed for."""

    vocab_size = 64

    def encode(self, text, add_special=True):
        return [ord(c) % 64 for c in text]


RANDOM = np.random.default_rng(0).integers(0, 64, 60).tolist()
REPEATED = [*range(10), *range(10), *range(10)]
RECORDS = [
    replay.Record(RANDOM[:20], RANDOM[20:]),
    replay.Record(REPEATED[:10], REPEATED[10:]),
    replay.Record(REPEATED[:10], REPEATED[10:]),
]


def test_logits_of_a_record_by_hand():
    """Text 3 5 3 6 3 5: at the third 3 comes 5 (told), then 6 before 5 (recency)."""
    text = jnp.asarray([[3, 5, 3, 6, 3, 5]], jnp.int32)
    lm = recorded.language_model(8)
    at = lambda token, position: np.asarray(
        lm.embed({"text": text}, jnp.asarray([[token]]), jnp.asarray([[position]]))
    )[0, 0]
    third = at(3, 4)
    assert third.argmax() == 5 and third[5] >= recorded.SURE
    assert third[6] == pytest.approx(3 / 6) and (third > 0).sum() == 2
    other = at(5, 4)  # the record has 3 there: only what followed 5 before
    assert other.max() < 1 and other.argmax() == 3 and (other > 0).sum() == 1
    assert at(7, 4).max() == 0  # never seen


def test_calls_by_hand():
    """Ten new tokens twice over, copied by drafts of three: a call for four."""
    method = Method(Spec("drafters/prompt_lookup", n_max=1, k=3))
    row = replay.replay(method, RECORDS[1:2], Numbers())
    assert row["new_tokens"] == 20 and row["target_calls"] == 6  # 1 alone, then by 4
    plain = replay.replay(Method(), RECORDS, Numbers())
    assert plain["tokens_per_call"] == 1.0 and plain["new_tokens"] == 80
    assert plain["wasted"] == 0.0 and plain["accepted_by_depth"] == []


def test_copies_and_an_inner_drafter():
    """Ten tokens come again twice: copied after five of them, fewer calls than alone.

    Planted: no match is long enough, so that Token Recycling drafts every round.
    """
    calls = lambda *arguments: replay.replay(
        Method(*arguments), RECORDS[1:2], Numbers()
    )["target_calls"]
    copies = calls(Spec("drafters/sam_decoding"))
    alone = calls(Spec("drafters/token_recycling"))
    assert copies < alone
    assert calls(Spec("drafters/sam_decoding", least=64)) == alone


def test_methods_of_the_recipe():
    """All of them run without a model; those of a corpus once there is one."""
    config = settings.load("configs/replay.py")
    assert {"sam_decoding", "token_recycling"} < set(config.methods)
    named = common.methods(config)
    assert not {"draft", "heads"} & {n for m in named.values() for n in m.needs}
    compared = {name for pair in config.directions for name in pair}
    assert compared <= {*named, *config.variants}
    # Planted: a pair of a method that the recipe does not have.
    assert not compared | {"logitspec"} <= {*named, *config.variants}


def test_memory_goes_from_record_to_record():
    method = Method(Spec("drafters/token_recycling"))
    alone = replay.replay(method, RECORDS[1:2], Numbers())
    both = replay.replay(method, RECORDS[1:], Numbers())
    assert both["target_calls"] < 2 * alone["target_calls"]


def test_fault_a_record_that_is_not_told():
    """Planted: the text of another record; what is written is compared with it."""
    lm = recorded.language_model(64)
    wrong = lm._replace(head=lambda params, x: jnp.roll(x, 1, -1))
    with pytest.raises(AssertionError, match="changed"):
        sound = recorded.language_model
        try:
            recorded.language_model = lambda vocab: wrong
            replay.replay(Method(), RECORDS[:1], Numbers())
        finally:
            recorded.language_model = sound


def test_from_the_command_line(tmp_path):
    data = tmp_path / "log.jsonl"
    code = "def add(a, b):\n    return a + b\n"
    lines = [{"q": "write add", "a": code * 2}, {"q": "again", "a": code}]
    data.write_text("\n".join(json.dumps(x) for x in lines) + "\n\n")
    config = settings.load("configs/replay.py")
    config.data, config.prompt_field, config.response_field = str(data), "q", "a"
    config.methods = ("prompt_lookup",)
    config.directions = (("prompt_lookup", "plain"), ("prompt_lookup", "absent"))
    found = run.run(config, str(tmp_path / "run"))
    plain, lookup = found["replay"]
    assert len(found["tables"][0]["lines"]) == 1
    assert plain["tokens_per_call"] == 1.0 and lookup["tokens_per_call"] > 1.0
    assert plain["new_tokens"] == lookup["new_tokens"]
    assert "Recorded texts" in (tmp_path / "run" / "report.md").read_text()
    assert "Recorded texts" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.long
def test_repeated_requests():
    """The second time counts, and what was remembered of the first serves it."""
    method = Method(Spec("drafters/suffix_decoding"))
    once = replay.replay(method, RECORDS[:1], Numbers())
    twice = replay.replay(method, RECORDS[:1], Numbers(), times=2)
    assert once["new_tokens"] == twice["new_tokens"] == 40 == once["target_calls"]
    assert twice["target_calls"] < 10
    node = twice["new_tokens"] / (
        twice["target_calls"] * (1 + twice["drafted_per_call"])
    )
    assert twice["tokens_per_node"] == pytest.approx(node)
    gap = paired_difference.table(
        [{"method": "a", **twice}, {"method": "b", **once}],
        [("a", "b"), ("b", "a")],
        by={},
    )
    assert [line[-1] for line in gap["lines"]] == ["yes", "no"]


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.json", "log.json.gz"])
def test_composed_fields_of_other_files(tmp_path, name):
    rows = [{"a": {"b": ["x", "y"]}, "c": "say"}, {"a": {"b": ["z", "zz"]}, "c": "x"}]
    whole = json.dumps(rows)
    if "jsonl" in name:
        whole = "\n".join(json.dumps(r) for r in rows)
    raw = whole.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    config = settings.load("configs/replay.py")
    config.data = str(tmp_path / name)
    config.prompt_field, config.response_field = "{c}: {a[b][0]}", "{a[b][1]}"
    first, second = replay.read(config, Numbers())
    assert first.prompt == Numbers().encode("say: x") and len(second.response) == 2
    config.longest = 6
    assert replay.read(config, Numbers()) == [second]
    config.prompt_field = "{a[d]}"
    with pytest.raises(DataError, match="lacks"):
        replay.read(config, Numbers())


@pytest.mark.parametrize(
    "line,words",
    [
        ("{", "1 is no JSON"),
        ('{"prompt": "a"}', "lacks 'response'"),
        ('{"prompt": "a", "response": [99999]}', "outside the tokenizer"),
        ('{"prompt": "a", "response": 3}', "a text or a list"),
        ('{"prompt": "a", "response": ""}', "no record"),
    ],
)
def test_bad_records(tmp_path, line, words):
    data = tmp_path / "log.jsonl"
    data.write_text(line + "\n")
    config = settings.load("configs/replay.py")
    config.data = str(data)
    with pytest.raises(DataError, match=words):
        replay.read(config, models.load("tiny").tokenizer)


def test_bad_settings(tmp_path):
    config = settings.load("configs/replay.py")
    with pytest.raises(ConfigError, match=r"config\.data=''"):
        run.run(config, str(tmp_path / "a"))
    config.tokenizer = str(tmp_path)
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        run.run(config, str(tmp_path / "b"))
    config = settings.load("configs/replay.py")
    config.methods = ("model_chain",)
    with pytest.raises(ConfigError, match="drafts with a model"):
        run.run(config, str(tmp_path / "c"))


def test_rows_are_kept_apart():
    """The record of a row is that row's: two rows, two texts."""
    lm = recorded.language_model(8)
    text = jnp.asarray([[1, 2, 3], [1, 5, 6]], jnp.int32)
    ones, zeros = jnp.ones((2, 1), jnp.int32), jnp.zeros((2, 1), jnp.int32)
    best = jax.jit(lm.embed)({"text": text}, ones, zeros).argmax(-1)
    assert best[:, 0].tolist() == [2, 5]
