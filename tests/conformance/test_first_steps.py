"""Every recipe that trains takes two steps and decodes, before a slice is rented.

What compiles need not run: Hydra++ with `objective.part` once died at its first step
after `experiments.preflight` had found that it fits.
"""

import pathlib

import jax
import jax.numpy as jnp
import pytest

import decoding
from experiments.preflight import command, first_steps
from experiments.recipes import settings
from models.errors import TrainingError
from training.loop import throughput
from training.objectives.heads import medusa

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
# A draft model's stage runs whole in tests/training; a pod's recipe is a head's on a
# mesh.
QUICK = ("heads/medusa.py", "predictors/specdec_pp.py")
TARGET = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
}


COMPARISONS = ("block_ablation", "compare", "eagle_gap", "head_recipes")
CANVASES = ("dream_7b", "llada_8b")  # of pods: decoding alone


def recipes() -> list:
    """Every recipe as a parameter; those of heads for `tiny` and at scale."""
    names = [
        f"{folder}/{path.name}{target}"
        for folder in ("heads", "draft_models", "predictors", "pods")
        for path in sorted((CONFIGS / folder).glob("*.py"))
        # Comparisons train the recipes beside them, others nothing.
        if path.stem not in (*COMPARISONS, "__init__", *CANVASES)
        for target in (("", ":llama3_8b") if folder == "heads" else ("",))
    ]
    assert set(QUICK) < set(names)
    marks = lambda name: [pytest.mark.long] * (name not in QUICK)
    return [pytest.param(name, id=name, marks=marks(name)) for name in names]


def recipe(name: str):
    """Load a recipe; at scale its losses are computed in parts, as users set them."""
    config = settings.load(str(CONFIGS / name))
    if "part" in config.get("objective", {}):
        config.objective.part = config.data.window // 4
    elif "part" in config.get("train", {}):
        config.train.part = config.data.window // 4
    return config


@pytest.fixture(autouse=True)
def quick_rate(monkeypatch):
    """Time a small product: no test reads the operations a second."""
    monkeypatch.setattr(throughput, "SIDE", 64)


@pytest.mark.parametrize("name", recipes())
def test_first_steps(name):
    assert first_steps.run(recipe(name)) > 0


def planted(monkeypatch, change):
    """Medusa's recipe on a target of a few params, its loss changed."""
    sound = medusa.objective

    def objective(model, **fields):
        return change(sound(model, **fields))

    monkeypatch.setattr(medusa, "objective", objective)
    config = settings.load(CONFIGS / "heads" / "medusa.py")
    config.init.heads, config.train.rows_at_once = 1, 0
    config.objective.part = 64
    with config.unlocked():
        config.architecture = TARGET
        config.context = 64
    return config


def test_first_steps_catch_what_a_compiler_does_not(monkeypatch):
    """Planted: a loss that keeps a tracer. It is traced once by a compilation."""

    def leaking(objective):
        kept = []

        def loss(params, batch, teacher):
            total, metrics = objective.loss(params, batch, teacher)
            kept.append(total)
            return total + 0 * kept[0], metrics

        return objective._replace(loss=loss)

    config = planted(monkeypatch, leaking)
    flight = command.Preflight(config, "cpu:1", 2**40)
    assert [row["program"] for row in flight.rows("train")] == ["train"]
    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        command.run(config, "cpu:1", only="train")
    notes = caught.value.__notes__  # JAX's own are among them
    assert any(note.startswith("medusa, the first 2 steps") for note in notes)
    entry = command.run(config, "cpu:1", only="train", compile_only=True)
    assert entry["verdict"] == "It fits."


@pytest.mark.parametrize(
    ("factor", "message"),
    [(jnp.nan, r"steps \(heads\).* nan, gradient"), (0.0, "no param changed")],
)
def test_first_steps_check_losses_and_params(factor, message, monkeypatch):
    """Planted: a loss that is not finite, and one without a gradient."""

    def scaled(objective):
        def loss(params, batch, teacher):
            total, metrics = objective.loss(params, batch, teacher)
            return factor * total, metrics

        return objective._replace(loss=loss)

    with pytest.raises(TrainingError, match=message):
        first_steps.run(planted(monkeypatch, scaled))


def test_first_steps_decode_with_what_they_trained(monkeypatch):
    """Planted: a decoding that fails; the error names where it did."""
    config = planted(monkeypatch, lambda objective: objective)

    def failing(*arguments, **fields):
        raise ValueError("planted")

    monkeypatch.setattr(decoding, "generate", failing)
    with pytest.raises(ValueError, match="planted") as caught:
        first_steps.run(config)
    assert any("medusa, decoding after them" in n for n in caught.value.__notes__)


def test_first_steps_keep_all_but_widths(tmp_path):
    """Planted: a recipe without parts, whose shrunk copy has none."""
    config = recipe("pods/eagle3_llama3_8b.py")
    small = first_steps.shrunk(config, tmp_path / "parts")
    assert small.objective.part == 15 and small.train.rows_at_once == 1
    assert small.draft_vocab == 32_000 * 4096 // 128_256
    names = {
        line.split(":")[0]
        for line in settings.diff(*map(settings.plain, (config, small)))
    }
    groups = ("data.", "evaluate.", "train.")
    assert all(n.startswith(groups) for n in names - {"objective.part", "draft_vocab"})
    assert {n for n in names if n.startswith("train.")} == {
        "train.warmup",
        "train.evaluate_every",
        "train.rows_at_once",
    }
    config.objective.part = 0
    assert first_steps.shrunk(config, tmp_path / "whole").objective.part == 0
    falcon = settings.load(CONFIGS / "heads" / "falcon.py")
    rows = falcon.objective.rows
    assert first_steps.shrunk(falcon, tmp_path / "falcon").objective.rows == 4
    assert falcon.objective.rows == rows  # its own fields stay
