"""Preflight on virtual devices: memory counted, a config refused with what would do."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from configs.heads import dspark
from experiments import stage
from experiments.preflight import command
from experiments.recipes import settings
from kernels import hlo
from models.distributed import device_mesh, sharding
from models.errors import ConfigError
from models.heads import medusa
from models.heads.formats import native

RECIPE = """
import ml_collections


def get_config():
    c = ml_collections.ConfigDict()
    c.methods = ("plain",)
    c.architecture = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 128,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    c.batch = 8
    c.prompt_tokens = 448
    c.max_new_tokens = 64
    return c
"""
# 8 rows of 528 slots of 2 x 4 heads of 8 float32: keys and values of the one layer.
CACHE = 8 * 528 * 2 * 32 * 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "small.py"
    path.write_text(RECIPE)
    return path


def test_rows_that_wait_are_counted(path):
    """Of a set of prompts: a prefill of four beside eight rows, and the reverse."""
    config = settings.load(path)
    refill = {"stage": "prompt_set", "recipe": "plain", "temperature": 0.0}
    config = ConfigDict({**config.to_dict(), **refill, "drafts": {}})
    flight = command.Preflight(config, "cpu:1", 2**40)
    fill, run = (program.parts for program in flight.own)
    assert CACHE <= run["cache"] < CACHE * 1.1 and fill["cache"] == run["cache"] // 2
    assert fill["waiting"] == run["cache"] + run["rest of the state"]
    assert run["waiting"] == fill["cache"] + fill["rest of the state"]
    (row,) = flight.rows("decode")
    # Planted: a need of the program's own arguments alone.
    own = row["need"] - run["waiting"]
    parts = sum(run.values())
    assert own < parts <= row["need"] == pytest.approx(parts + row["temporaries"], 0.01)


def test_refused_with_the_smallest_change(path, tmp_path, monkeypatch):
    """A device with room for the params and six rows and a half of eight."""
    config = settings.load(path)
    rows = list(command.Preflight(config, "cpu:1", 2**40).rows())
    assert [row["program"] for row in rows] == ["prefill, plain", "decode, plain"]
    decode = rows[1]
    assert CACHE <= decode["parts"]["cache"] < CACHE * 1.1
    parts = sum(decode["parts"].values())
    assert parts <= decode["need"] == pytest.approx(parts + decode["temporaries"], 0.01)
    worst = max(row["need"] for row in rows)
    fixed = decode["parts"]["params"]
    memory = int(fixed + (worst - fixed) * 6.5 / 8)
    chip = command.Chip("cpu", memory, 0.0, 0.0)
    monkeypatch.setattr(command.topologies, "SHARE", 1.0)
    monkeypatch.setattr(
        command.topologies, "devices", lambda t, m: (chip, command.jax.devices()[:1])
    )
    report = tmp_path / "preflight.md"
    with pytest.raises(ConfigError, match=r"--config\.batch=[56]\b"):
        command.run(config, "cpu:1", ["--config=small.py"], str(report))
    kept = json.loads(report.with_suffix(".json").read_text())
    assert kept[0]["verdict"].startswith("It does not fit")
    text = report.read_text()
    assert "decode, plain" in text and kept[0]["commit"] in text
    by_hand = "\n## Not run\n\nNothing.\n"
    report.write_text(text + by_hand)
    command.report.write(report, kept[0])  # planted: all of the file written anew
    assert report.read_text() == text + by_hand
    roomy = command.Chip("cpu", 2 * memory, 0.0, 0.0)  # planted: enough
    assert all(command.fits({**row, "hbm": roomy.hbm}) for row in rows)


def test_programs_of_a_draft_model():
    """A training on raw text, one beside the frozen target for each loss, and the loop.

    Made and measured where neither model has weights.
    """
    config = settings.load("configs/pods/fastdraft_1b.py")
    config.mesh = ""
    config.architecture.update(hidden_size=32, intermediate_size=48, vocab_size=128)
    config.architecture.update(num_hidden_layers=1, num_attention_heads=4)
    config.architecture.update(num_key_value_heads=4, max_position_embeddings=512)
    config.draft.update(d_model=16, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=24)
    config.data.update(batch=4, window=15)
    config.train.rows_at_once = 2
    config.update(batch=2, prompt_tokens=448, max_new_tokens=64)
    flight = command.Preflight(config, "cpu:1", 2**40)
    found = {p.name: p for p in flight.programs(config)}
    trained = ["train, raw text", "train, ce", "train, half_kl"]
    assert list(found) == [*trained, "prefill, fastdraft_1b", "decode, fastdraft_1b"]
    # Embedding, fused qkv and output, gate with up and down, three norms.
    draft = 4 * (128 * 16 + 4 * 16 * 16 + 3 * 16 * 24 + 3 * 16)
    loop = found["decode, fastdraft_1b"].parts
    assert loop["drafts"] == draft
    for name in trained:
        parts = found[name].parts
        assert parts["params"] == draft
        assert 2 * draft < parts["optimiser"] < 2 * draft + 64
        assert parts["frozen target"] == (loop["params"] if "raw" not in name else 0)
    row = command.measure(found["train, half_kl"], flight.chip)
    assert row["rows"] == 4 and row["need"] > 3 * draft + loop["params"]
    # The same with a cache of the target's likeliest tokens in the batch.
    config.teacher, config.features.topk = "offline", 8
    cached = {p.name: p for p in flight.programs(config)}["train, half_kl"]
    more = cached.parts["batch"] - found["train, half_kl"].parts["batch"]
    assert more == 4 * 16 * (8 * 8 + 8)
    row = command.measure(cached, flight.chip)
    assert row["need"] > 3 * draft + loop["params"]


def test_programs_of_a_canvas(path):
    """Its loop, and the read of a prompt whose keys stay; planted: a loop of drafts.

    A diffusion model's rows are whole canvases: no slots beside them.
    """
    config = settings.load(path)
    own = {"mask_token_id": 127, "alignment": "same", "block_size": 4}
    own["visibility"] = ["bidirectional", "block_causal"]
    with config.unlocked():
        config.architecture.update(own)
        config.variants = {
            name: {"schedule": ["diffusion/fast_dllm"], "policy": f"caches/{name}"}
            for name in ("dual", "block_causal")
        }
    config.methods = ("plain", "dual", "block_causal")
    flight = command.Preflight(config, "cpu:1", 2**40)
    found = {p.name: p for p in flight.own}
    loops = [f"decode, {name}" for name in config.methods]
    assert sorted(found) == sorted([*loops, "prefill, block_causal"])
    assert [found[name].tokens for name in loops] == [512, 33, 5]
    assert {found[name].wide for name in loops} == {512}
    cache = 8 * 512 * 2 * 32 * 4
    for program in found.values():
        assert cache <= program.parts["cache"] < cache * 1.1
    row = command.measure(found["decode, dual"], flight.chip)
    assert row["wide"] == 512 and row["need"] >= sum(row["parts"].values())
    row |= {"beside": 8, "free": 100}
    text = command.report.width(row)
    assert "runs 8 x 33 = 264 tokens" in text and "a wide call runs 8 x 512" in text
    with config.unlocked():
        for name in own:
            del config.architecture[name]
    config.methods = ("plain",)
    plain = command.Preflight(config, "cpu:1", 2**40).own
    assert [p.name for p in plain] == ["prefill, plain", "decode, plain"]
    assert plain[1].wide == 0 and "wide" not in command.measure(plain[1], flight.chip)


def test_programs_of_trained_heads(path, tmp_path):
    """Their shapes are read from the export; planted: a method without any."""
    config = settings.load(path)
    shape = command.programs.shape_of(config)
    output = jnp.zeros((shape.vocab_size, shape.d_model))
    params = medusa.init(jax.random.key(0), shape, output, 2)
    tree = {"name": "topologies/static", "choices": "2 | 1"}
    about = {"method": {"drafter": "drafters/medusa", "topology": tree}}
    native.save(tmp_path, params, about)
    with config.unlocked():
        config.trained = {"mine": str(tmp_path)}
    config.methods = ("plain", "mine")
    flight = command.Preflight(config, "cpu:1", 2**40)
    found = {p.name: p for p in flight.programs(config)}
    size = 4 * sum(x.size for x in jax.tree.leaves(params))
    assert found["decode, mine"].parts["drafts"] == size
    config.methods = ("plain", "heads/medusa")
    with pytest.raises(ConfigError, match=r"config\.trained"):
        flight.programs(config)


def test_trained_heads_have_a_program_for_each_draft():
    """The tree beside a chain has its own; a verifier beside it has none."""
    config = dspark.get_config()
    assert set(config.beside) == {"tree", "rejection"}
    names = [p.name for p in command.Preflight(config, "cpu:1", 2**40).own]
    methods = ("dspark", "dspark_tree")
    decoding = [f"{part}, {m}" for m in methods for part in ("prefill", "decode")]
    assert names == ["train", *decoding]


def test_a_stage_brings_its_programs(path, monkeypatch):
    """A new one needs no line of the preflight; planted: a stage that has none."""
    config = settings.load(path)
    found = {}

    def programs(config, mesh, dtype):
        found["mesh"] = mesh.axis_names
        return [config.batch]

    def preset(kind, *sizes):
        found["preset"] = kind
        return {"fsdp": 1}

    shape = command.programs.shape_of
    own = stage.Stage(print, "", preflight=stage.Preflight(programs, shape, "train"))
    monkeypatch.setattr(stage, "find", lambda name: own)
    monkeypatch.setattr(device_mesh, "preset", preset)
    flight = command.Preflight(config, "cpu:1", 2**40)
    assert flight.own == [8]
    assert found == {"mesh": device_mesh.MESH_AXES, "preset": "train"}
    monkeypatch.setattr(stage, "find", lambda name: own._replace(preflight=None))
    with pytest.raises(ConfigError, match="no program of its own"):
        command.Preflight(config, "cpu:1", 2**40).programs(config)


def test_a_stage_without_programs_takes_its_steps(monkeypatch, capsys):
    """Predictors: their networks learn from stored outputs. Planted: with no steps."""
    pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")
    taken = []

    def steps(config):
        taken.append(config.stage)
        return 3.0

    monkeypatch.setattr(command.first_steps, "run", steps)
    flags = ["--config=configs/predictors/specee.py", "--topology=v5e:1"]
    assert command.main(flags) == 0
    assert taken == ["exit_predictors"] and "fine, 3 s" in capsys.readouterr().out
    assert command.main([*flags, "--compile_only"]) == 2
    assert "no program of its own" in capsys.readouterr().err
    monkeypatch.setattr(command.first_steps, "run", lambda config: None)
    assert command.main(flags) == 2


def test_a_program_that_the_compiler_gives_up_on(path):
    """Its memory is named; planted: another error of the compiler is none of these."""
    flight = command.Preflight(settings.load(path), "cpu:1", 2**40)
    (program,) = [p for p in flight.own if p.name.startswith("decode")]

    def refusing(words: str):
        def compile_():
            raise command.jax.errors.JaxRuntimeError(words)

        return compile_

    full = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, 128.26G exceed 95.74G"
    with pytest.raises(ConfigError, match=r"does not fit: .*128\.26G"):
        command.measure(replace(program, compile=refusing(full)), flight.chip)
    with pytest.raises(command.jax.errors.JaxRuntimeError, match="a bug"):
        command.measure(
            replace(program, compile=refusing("INTERNAL: a bug")), flight.chip
        )


def test_topologies_and_meshes_are_checked(path):
    config = settings.load(path)
    for wrong in ("v5e", "v9:2x2", "cpu:512"):
        with pytest.raises(ConfigError, match="topology"):
            command.Preflight(config, wrong)
    with pytest.raises(ConfigError, match="whose product is 1"):
        device_mesh.mesh_of({"data": 3})
    with pytest.raises(ConfigError, match="'data=2,tensor=8'"):
        device_mesh.parse("data2")
    with pytest.raises(ConfigError, match="vocabulary"):
        sharding.on("data=1", rules="vocabulary=tensor")
    with pytest.raises(ConfigError, match="no program of its own"):
        command.programs.of(settings.load("configs/studies/kernels.py"))


def test_a_mesh_of_another_slice_is_auto(path):
    """Planted: a mesh of this slice, which stays; sizes beside -1 that divide it."""
    config = settings.load(path)
    flight = command.Preflight(config, "cpu:1", 2**40)
    config.mesh = "fsdp=2,tensor=8"
    assert set(flight.mesh(config).shape.values()) == {1}
    cases = {"tensor=8": 8, "data=-1,tensor=4": 8, "auto": 3, "": 3}
    assert all(device_mesh.covers(text, count) for text, count in cases.items())
    assert not device_mesh.covers("fsdp=2,tensor=8", 8)
    assert not device_mesh.covers("data=-1,tensor=3", 8)


TEXT = """
  %all-reduce.1 = bf16[8,64,4096]{2,1,0:T(8,128)(2,1)} all-reduce(%a), channel_id=1
  %ag = (f32[2,4]{1,0}, f32[2,16]{1,0}) all-gather-start(f32[2,4]{1,0} %b), channel_id=2
  %done = f32[2,16]{1,0} all-gather-done(%ag)
  %pair = (f32[8]{0}, s32[8]{0}) all-reduce(%c, %d), channel_id=3
  %cs = (bf16[8,1,64,4]{3,2,0,1}, bf16[8,1,64,4]{3,2,0,1:S(1)}, u32[]) copy-start(%e)
  %turn = f32[64,32]{0,1} transpose(%f), dimensions={1,0}
  %use = f32[64,32]{0,1} fusion(%turn), kind=kLoop
"""


def test_collectives_by_hand():
    """Starts count and ends do not; a pair reduced together is one, of both's bytes."""
    assert hlo.summary(TEXT) == {
        "all-reduce": {"count": 2, "bytes": 8 * 64 * 4096 * 2 + 64},
        "all-gather": {"count": 1, "bytes": 2 * 16 * 4},
    }
    assert hlo.collectives(TEXT)[1].shape == (2, 16)
    assert [line.split()[0] for line in hlo.copies(TEXT, {2048})] == ["%cs", "%turn"]
    assert hlo.copies(TEXT, {2047, 64}) == []
