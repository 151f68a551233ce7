"""What the chips of a slice tell each other, read off the real compiler's programs.

The targets of configs/pods at two and three layers of full width, whose difference is
what a layer adds, under a block of eleven nodes; and, with the long marker, their
recipes whole (needs libtpu).
"""

import functools
import math
import pathlib
import types

import jax.numpy as jnp
import pytest

pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

from decoding import base, tree
from decoding.tree_building import grow
from experiments.preflight import command, programs
from experiments.recipes import settings
from kernels import block_traffic, hlo
from models.distributed import axis_rules, device_mesh, sharding
from models.heads.modules import block_layers, decoder_layer

pytestmark = pytest.mark.tpu_aot

PODS = pathlib.Path(__file__).parent.parent.parent / "configs" / "pods"
CANVASES = ("dream_7b", "llada_8b")  # of diffusion models
RECIPES = sorted({p.stem for p in PODS.glob("*_*b.py")} - {*CANVASES})
SLICES = {  # others: v5e:4x4
    "eagle3_llama3_70b": "v5p:2x4x4",
    "hydra_llama3_70b": "v5p:2x4x4",
    "fastdraft_1b": "v5e:16x16",
    "dspark_qwen3_8b": "v5p:2x2x1",
}


def flight_of(name: str, config) -> command.Preflight:
    return command.Preflight(config, SLICES.get(name, "v5e:4x4"))


def recipe(name: str, layers: int = 0, drafter: str = ""):
    """A recipe, its target cut to so many layers, with another drafter perhaps.

    A draft model that is trained stays the drafter, cut to a layer.
    """
    config = settings.load(PODS / f"{name}.py")
    if layers:
        config.architecture.num_hidden_layers = layers
    if layers and config.stage == "draft_models":
        config.draft.n_layers = 1
    elif drafter:
        config.method.drafter = drafter
        config.method.topology = None
        config.beside = {}
        if "tree_nodes" in config:  # no heads, no tree of their hits
            config.tree_nodes = 0
    return config


def text_of(name: str, layers: int, drafter: str = "drafters/prompt_lookup") -> str:
    """The loop's program."""
    config = recipe(name, layers, drafter)
    flight = flight_of(name, config)
    found = [p for p in flight.programs(config) if p.name.startswith("decode")]
    with block_traffic.compiling_for(flight.chip.name):
        return found[0].compile().as_text()


compiled = functools.cache(text_of)


def rows_of(config) -> int:
    """Rows of the batch on a device."""
    mesh = device_mesh.parse(config.mesh)
    return config.batch // math.prod(mesh.get(axis, 1) for axis in ("data", "fsdp"))


def gathered(text: str, config) -> list[hlo.Collective]:
    """Collectives that move logits, or as much as half of a layer's cache.

    Logits are a whole number of vocabularies, whatever their shape.
    """
    longest, vocab = programs.context(config), config.architecture.vocab_size
    cache = rows_of(config) * longest * 64
    found = []
    for one in hlo.collectives(text):
        size = math.prod(one.shape)
        logits = size >= vocab and size % vocab == 0
        if (logits or size >= cache) and one.kind != "all-reduce":
            found.append(one)
    return found


def matrices(name: str) -> set[int]:
    """Sizes of a device's part of a layer's gate and up, and of each alone.

    Of a mixture those of all its experts.
    """
    config = recipe(name)
    shape, cut = config.architecture, device_mesh.parse(config.mesh).get("tensor", 1)
    experts = shape.get("num_experts", shape.get("num_local_experts", 1))
    width = experts * shape.get("moe_intermediate_size", shape.intermediate_size)
    return {n * shape.hidden_size * width // cut for n in (1, 2)}


def layer(name: str) -> dict[str, int]:
    """How many collectives of each kind one layer has."""
    few, more = (hlo.summary(compiled(name, n)) for n in (2, 3))
    kinds = few.keys() | more.keys()
    count = lambda s, kind: s.get(kind, {}).get("count", 0)
    each = {kind: count(more, kind) - count(few, kind) for kind in kinds}
    return {kind: n for kind, n in each.items() if n}


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_layer_sums_twice_and_nothing_is_gathered(name):
    """But queries, keys and values, where devices share a KV head."""
    config = recipe(name)
    cut = device_mesh.parse(config.mesh).get("tensor", 1)
    shared = {"all-gather": 1} if cut > config.architecture.num_key_value_heads else {}
    assert layer(name) == {"all-reduce": 2, **shared}
    assert gathered(compiled(name, 2), config) == []


def test_a_cache_stays_where_it_lies():
    """Of one layer of 70B: its keys are larger than a chip's vector memory.

    Those of 8B on v5e fit there, and the compiler carries some of them through it.
    """
    config = recipe("eagle3_llama3_70b")
    longest = programs.context(config)
    text, rows = compiled("eagle3_llama3_70b", 1), rows_of(config)
    # The cache has room for the nodes of a block as well.
    sizes = {rows * n * 128 for n in range(longest, longest + 128, 16)}
    assert hlo.copies(text, sizes) == []


MOVES = ("collective-permute", "all-to-all")


def large(text: str, least: int = 2**20) -> set[tuple[int, ...]]:
    """The shapes of gathers of more than a megabyte."""
    gathers = [c for c in hlo.collectives(text) if c.kind == "all-gather"]
    return {c.shape for c in gathers if c.bytes > least}


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_round_exchanges_little_and_copies_no_weights(name):
    """Of every pod, its own drafter and tree among it."""
    text = compiled(name, 2, "")
    assert not set(hlo.summary(text)) & set(MOVES)
    assert large(text) == set()
    assert gathered(text, recipe(name)) == []
    assert hlo.copies(text, matrices(name)) == []


@pytest.mark.long
def test_fault_sums_that_are_left_in_pieces(monkeypatch):
    """Planted: sums of the heads, in whatever pieces the compiler likes."""
    monkeypatch.setattr(decoder_layer, "summed", lambda x: x)
    assert set(hlo.summary(text_of("hydra_llama3_8b", 1, ""))) & set(MOVES)


@pytest.mark.long
def test_fault_drafts_that_are_placed_among_all_tokens(monkeypatch):
    """Planted: EAGLE-3's 32,000 scores are gathered to be made the target's 128,256."""
    monkeypatch.setattr(grow, "LAWS", base.DRAWS)
    assert large(text_of("eagle3_llama3_8b", 1, "")) == {(8, 10, 32000)}


@pytest.mark.long
def test_fault_keys_that_are_written_in_pieces(monkeypatch):
    """Planted: a block's keys where they fall; the caches that they go to gather."""
    name = "qwen3_30b_a3b"  # its four KV heads are shared by two devices each
    unplaced = types.SimpleNamespace(constrain=lambda x, axes: x)
    monkeypatch.setattr(block_layers, "sharding", unplaced)
    assert gathered(text_of(name, 2, ""), recipe(name))


@pytest.mark.long
def test_fault_groups_that_cross_devices(monkeypatch):
    """Planted: the best tokens are sought in groups that the pieces do not respect."""
    monkeypatch.setattr(sharding, "pieces", lambda size, axis: 1)
    name = "hydra_llama3_8b"
    assert gathered(text_of(name, 1, ""), recipe(name))


def test_weights_stay_as_they_lie(monkeypatch):
    """No copy of a layer's matrix. Planted: gate and up in the order of their shape."""
    name, plain = "hydra_llama3_8b", "drafters/plain"
    sizes = matrices(name)
    assert hlo.copies(compiled(name, 1, plain), sizes) == []
    monkeypatch.setattr(axis_rules, "ORDER", {})
    assert hlo.copies(text_of(name, 1, plain), sizes)


@pytest.mark.long
def test_fault_rows_named_by_an_array(monkeypatch):
    """Planted: the logits of a row's nodes are picked as if they were another's."""

    def pick(x, index):
        rows = jnp.arange(x.shape[0]).reshape(-1, *[1] * (index.ndim - 1))
        return x[rows, index]

    name, plain = "hydra_llama3_8b", "drafters/plain"
    assert gathered(compiled(name, 1, plain), recipe(name)) == []
    monkeypatch.setattr(tree, "pick", pick)
    assert gathered(text_of(name, 1, plain), recipe(name))


@pytest.mark.long
@pytest.mark.parametrize("name", [*RECIPES, *CANVASES])
def test_recipes_fit_their_slices(name):
    """The whole programs, training among them, within the HBM of a chip."""
    flight = flight_of(name, recipe(name))
    for row in flight.rows():
        assert command.fits(row), (row["program"], row["need"] / 2**30)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "part"), [("eagle3_llama3_8b", 2048), ("hydra_llama3_8b", 256)]
)
def test_heads_of_8b_train_on_one_chip(name, part):
    """8 rows of 2,048 tokens, a vocabulary of 128,256: 80 of the 102 GB of a v5p."""
    config = recipe(name)
    config.mesh, config.data.batch, config.train.rows_at_once = "data=1", 8, 0
    config.objective.part = part
    (row,) = command.Preflight(config, "v5p:1").rows("train")
    assert row["need"] <= 80e9, row["need"] / 1e9
