"""Every recipe of a head at the size of Llama 3 8B: its programs, and what it takes."""

import pathlib

import pytest

from experiments.preflight import command, programs
from experiments.recipes import settings
from experiments.trainings import draft_heads
from models.errors import ConfigError
from training.runs import draft_head_run, scaffold

HEADS = pathlib.Path(__file__).parents[2] / "configs" / "heads"
NAMES = sorted(
    {p.stem for p in HEADS.glob("*.py")}
    - {"__init__", "block_ablation", "compare", "eagle_gap", "head_recipes"}
)
D, V, F, GROUPS, DIM = 4096, 128256, 14336, 8, 128
ATTENTION = D * (32 + 2 * GROUPS) * DIM + 32 * DIM * D
LAYER = ATTENTION + 3 * D * F + D  # without its first norm
HYDRA = sum(2 * ((i + 2) * D * D + D) + V * D + V for i in range(4))
MEDUSA = 5 * (D * D + D + V * D)
# Low-rank pairs of the two layers' weights, q to down, and of the LM head.
KV = (D, GROUPS * DIM)
WEIGHTS = ((D, 32 * DIM), KV, KV, (32 * DIM, D), (D, F), (D, F), (F, D))
LORA = 32 * (2 * sum(map(sum, WEIGHTS)) + D + V)
# The closed forms of the papers' architectures; of the rest only that they are built.
PARAMS = {
    "medusa": MEDUSA,
    "medusa2": MEDUSA + LORA,
    "hydra": HYDRA,
    "hydra_pp": HYDRA + 4 * (D * D + D) + LAYER + 2 * D,
    "eagle": 2 * D * D + D + LAYER,
    "eagle2": 2 * D * D + D + LAYER,
    "eagle3": 3 * D * D + LAYER + D * (32 + 2 * GROUPS) * DIM + 3 * D + 32_000 * D,
    "hidden_transfer": 3 * D * D,
    "ppd": 3 * D,
    "lud": 3 * D,
}


def recipe(name: str):
    """On one device, of two layers: what is counted has the whole width."""
    config = settings.load(f"{HEADS / name}.py:llama3_8b")
    config.mesh, config.architecture.num_hidden_layers = "", 2
    return config


def built(config) -> dict[str, programs.Program]:
    flight = command.Preflight(config, "cpu:1", 2**50)
    return {program.name: program for program in flight.own}


@pytest.mark.parametrize("name", NAMES)
def test_recipes_have_their_programs(name):
    config = recipe(name)
    c, t = config.data, config.train
    assert c.batch % t.rows_at_once == 0 and config.context == 8192
    found = built(config)
    drafts = draft_head_run.others(config).items()
    others = [f"{name}_{own}" for own, method in drafts if not method.verifier]
    parts = [f"{p}, {n}" for n in (name, *others) for p in ("prefill", "decode")]
    assert list(found) == ["train", *parts]
    bill, decode = found["train"].bill, found[f"decode, {name}"]
    assert bill.tokens == c.batch * c.window
    assert bill.tokens * (bill.steps - 1) < c.tokens <= bill.tokens * bill.steps
    assert bill.target == 2 * (LAYER + D) + D + V * D
    assert bill.heads == PARAMS.get(name, bill.heads) > 0
    operations = bill.operations / bill.tokens / bill.steps
    assert operations == 2 * bill.target + 6 * bill.heads
    # Keys and values of 16 texts of the context in both layers, and the head's own.
    assert decode.parts["cache"] >= 16 * 8192 * 2 * 2 * GROUPS * DIM * 4


def test_another_vocabulary_is_counted():
    """Planted: EAGLE-3 without its draft vocabulary is another size."""
    config = recipe("eagle3")
    config.draft_vocab = 0
    bill = built(config)["train"].bill
    assert bill.heads - PARAMS["eagle3"] == (V - 32_000) * D


def test_the_numbers_of_documents_are_counted():
    """They are as many as the tokens; planted: without `segments` there are none."""
    config, found = recipe("eagle"), []
    config.data.whole = False
    for segments in (False, True):
        config.data.segments = segments
        found.append(built(config)["train"].parts["batch"])
    c = config.data
    assert found[1] - found[0] == 4 * c.batch * (c.window + 1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_at_scale_are_whole_conversations(name):
    """Planted: the recipe for `tiny`, whose rows begin anywhere in its text."""
    assert settings.load(f"{HEADS / name}.py:llama3_8b").data.whole
    assert not settings.load(f"{HEADS / name}.py").data.whole


@pytest.mark.parametrize("name", NAMES)
def test_no_warm_up_is_cut_at_scale(name):
    """Planted: 400 million tokens for all, of which EAGLE-3 has 12,213 steps."""
    config = settings.load(f"{HEADS / name}.py:llama3_8b")
    c, warmup = config.data, config.train.warmup
    assert warmup <= scaffold.num_steps(c, c.tokens) // 4
    if name == "eagle3":
        assert scaffold.num_steps(c, c.tokens) == 800_000 and warmup == 12_000
        assert scaffold.num_steps(c, 400_000_000) // 4 < warmup


def test_batches_and_adamw_are_the_papers():
    """Of all devices. Planted: those of `tiny`, which all heads share."""
    both = lambda name: [
        settings.load(path)
        for path in (HEADS / f"{name}.py", f"{HEADS / name}.py:llama3_8b")
    ]
    for name in ("eagle", "eagle2", "eagle3", "fspad", "clover"):
        small, large = both(name)
        assert (small.data.batch, large.data.batch) == (2, 16)
        assert large.train.b2 == 0.95
    for name in ("fspad", "clover", "falcon"):  # PyTorch's, with clipping by value
        small, large = both(name)
        fields = lambda c: (c.train.clip, c.train.clip_value, c.train.weight_decay)
        assert (fields(small), fields(large)) == ((0.0, 0.0, 0.0), (0.0, 0.5, 0.01))
    for name in ("medusa", "medusa2", "hydra", "hydra_pp", "chimera", "ppd"):
        small, large = both(name)
        assert (small.train.b2, large.train.b2) == (0.95, 0.999)


def test_targets_of_recipes_are_known():
    with pytest.raises(ConfigError, match=r"'llama4'.*llama3_70b"):
        settings.load(f"{HEADS / 'medusa'}.py:llama4")
    with pytest.raises(ConfigError, match="takes 0 positional"):
        settings.load(f"{HEADS.parent / 'quickstart'}.py:llama3_8b")
    with pytest.raises(ConfigError, match="no such file"):
        settings.load(f"{HEADS / 'medusas'}.py:llama3_8b")
    small = settings.load(HEADS / "medusa.py")
    assert small.model == "tiny" and "architecture" not in small
    large = settings.load(f"{HEADS / 'compare'}.py:llama3_70b")
    found = draft_heads.plan(large)
    assert [name for _, name, _ in found] == list(large.recipes)
    assert {recipe.architecture.hidden_size for _, _, recipe in found} == {8192}
    rates = {name: recipe.train.rate for _, name, recipe in found}
    assert (rates["medusa"], rates["eagle"]) == (1e-3, 3e-5)
