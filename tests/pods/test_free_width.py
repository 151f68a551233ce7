"""Trees and blocks of the recipes on slices fit into the tokens that are free."""

import math
import pathlib
import re

import pytest

from experiments.preflight import command
from experiments.recipes import settings
from kernels.chips import TPUS
from models.distributed import device_mesh

PODS = pathlib.Path(__file__).parents[2] / "configs" / "pods"
CANVASES = {"dream_7b": "num_hidden_layers", "llada_8b": "n_layers"}
NAMES = sorted({p.stem for p in PODS.glob("*_*b.py")} - {*CANVASES})
TREES = {"eagle3": {"method.topology.nodes": 60}, "hydra": {"tree_nodes": 0}}


def verified(name: str, changes: dict[str, int] | None = None) -> tuple[int, int]:
    """Return the most tokens that a copy verifies in a call, and those that are free.

    The target has one layer and no slice: neither changes the counts.
    """
    config = settings.load(PODS / f"{name}.py")
    config.update_from_flattened_dict(changes or {})
    chip = TPUS[re.findall(r"--topology=(\w+):", (PODS / f"{name}.py").read_text())[0]]
    mesh = device_mesh.parse(config.mesh)
    copies = math.prod(mesh.get(axis, 1) for axis in ("data", "fsdp"))
    config.mesh, config.architecture.num_hidden_layers = "", 1
    loops = [p for p in command.Preflight(config, "cpu:1", 2**50).own if p.beside]
    for loop in loops:
        assert loop.name.startswith("decode") and loop.beside == loop.rows
    return max(loop.rows // copies * loop.tokens for loop in loops), chip.free


@pytest.mark.parametrize("name", NAMES)
def test_trees_are_free(name):
    """Planted: the papers' trees, of which a header names the option."""
    tokens, free = verified(name)
    assert tokens <= free
    papers = TREES.get(name.partition("_")[0])
    if papers:
        assert tokens > 0.9 * free
        assert verified(name, papers)[0] > 1.9 * free
        ((option, value),) = papers.items()
        text = (PODS / f"{name}.py").read_text()
        assert f"--config.{option}={value}" in text


@pytest.mark.parametrize("name", CANVASES)
def test_blocks_of_a_canvas_are_free(name):
    """Planted: plain decoding, which runs the whole canvas in every step."""
    config = settings.load(PODS / f"{name}.py")
    copies = device_mesh.parse(config.mesh)["data"]
    config.mesh, config.architecture[CANVASES[name]] = "", 1
    plain, fast = command.Preflight(config, "cpu:1", 2**50).own
    assert fast.name == "decode, fast_dllm" and (fast.rows, fast.wide) == (16, 1024)
    assert fast.rows // copies * fast.tokens <= TPUS["v5e"].free
    assert plain.rows // copies * plain.tokens > 16 * TPUS["v5e"].free
