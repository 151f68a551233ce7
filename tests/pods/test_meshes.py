"""Eight virtual devices give what one gives: texts, and loss curves to 1e-5.

In a process of its own, because the number of devices is fixed when JAX starts.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.conformance.test_families import FAMILIES

HERE = pathlib.Path(__file__).parent


def ran(script: str, *arguments: str, flags: str = "") -> dict:
    """What a script of this folder prints, as JSON."""
    root = str(HERE.parent.parent)
    flags += f" {os.environ['XLA_FLAGS']} --xla_backend_optimization_level=1"
    told = {"PYTHONPATH": root, "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **told},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("cases", ["most", pytest.param("all", marks=pytest.mark.long)])
def test_meshes_agree_with_one_device(cases):
    """Data, fully sharded and tensor parallel, and all three at once."""
    found = ran("meshes.py", cases)
    for case, texts in found["decode"].items():
        assert len(set(map(tuple, texts["one"]))) == 8, "rows that cannot differ"
        for mesh, text in texts.items():
            same = text == texts["one"]
            assert same != mesh.startswith("fault"), (case, mesh)
    curves = found["train"]
    assert curves["one"][-1] < curves["one"][0] - 1e-3, "nothing was learned"
    check(curves)


def check(curves: dict[str, list[float]]) -> None:
    """Losses on every mesh are those on one device, but for planted faults."""
    for mesh, losses in curves.items():
        off = np.abs(np.array(losses) / curves["one"] - 1).max()
        assert (off < 1e-5) != mesh.startswith("fault"), (mesh, off)


DEARER = ("heads", "drafted", "whole", "streamed", "paged", "int8", "held")


@pytest.mark.parametrize(
    "cases", ["few", *(pytest.param(x, marks=pytest.mark.long) for x in DEARER)]
)
def test_kv_heads_and_pages_lie_on_any_mesh(cases):
    """Of 1, 2 and 8 KV heads on 1 to 8 tensor shards; pools beside their rows."""
    for case, texts in ran("kv_heads.py", cases).items():
        assert len(set(map(tuple, texts["one"]))) == 8, "rows that cannot differ"
        for mesh, text in texts.items():
            same = text == texts["one"]
            assert same != mesh.startswith("fault"), (case, mesh)


@pytest.mark.long
@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss in codes"])
def test_families_agree_with_one_device(family):
    """Experts, sinks, unlike layers and latents, cut by width and by expert."""
    eight = "--xla_force_host_platform_device_count=8"
    found = ran("families.py", family, flags=eight)
    texts = found["decode"]
    assert len(set(map(tuple, texts["one"]))) == 8, "rows that cannot differ"
    for mesh, text in texts.items():
        assert (text == texts["one"]) != mesh.startswith("fault"), mesh
    if found["train"]:
        check(found["train"])


@pytest.mark.long
def test_windows_are_held_on_a_mesh():
    """By the loop; each device drops slots of its own rows."""
    found = ran("held_windows.py")
    texts, held = found["texts"], found["held"]
    assert len(set(map(tuple, texts["one"]))) == 8, "rows that cannot differ"
    for case, text in texts.items():
        assert held[case] == [False, case not in ("one", "whole")], case
        assert (text == texts["one"]) != case.startswith("fault"), case
    counts = found["collectives"]
    assert counts["pieces"] == counts["whole"], "what is held is sent about"


# One policy of each kind: evicted by queries, once and by position; read by node and by
# lists; merged in a layer and in pairs; codes; heads apart.
KINDS = (
    "h2o",
    "snapkv",
    "streaming_llm",
    "tidal",
    "quest",
    "loopserve",
    "chelsea",
    "minicache",
    "gear",
    "ada_kv",
)


@pytest.mark.kv
@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_cache_policies_on_a_mesh(name):
    """Two devices along data or tensor; what is sent has the size of a block.

    Without a policy its keys are sent. A policy that scores sends its queries, of which
    the model has twice as many.
    """
    two = "--xla_force_host_platform_device_count=2"
    found = ran("kept_caches.py", name, flags=two)[name]
    texts = found["texts"]
    assert len(set(map(tuple, texts["one"]))) > 1, "rows that cannot differ"
    for mesh, text in texts.items():
        assert (text == texts["one"]) != mesh.startswith("fault"), mesh
    for mesh in set(texts) & {"data", "tensor"}:
        assert found["sent"][mesh] <= 2 * found["dense"][mesh], found


@pytest.mark.long
def test_drafts_and_predictors_learn_the_same_on_a_mesh(tmp_path):
    """Raw text, the target's text and laws, and what it accepts; on all three axes."""
    found = ran("drafted.py", str(tmp_path))
    assert "fault neighbours" in found["half_kl"]
    for curves in found.values():
        check(curves)


@pytest.mark.long
def test_masked_diffusion_learns_the_same_on_a_mesh():
    """Rows keep their noise wherever they lie. Planted: rows of other numbers."""
    curves = ran("masked.py")
    assert {"fault numbers", "2x2x2"} < set(curves)
    check(curves)


@pytest.mark.long
@pytest.mark.parametrize("case", ["recompute", "dual", "block_causal", "freedave"])
def test_canvases_on_a_mesh(case):
    """Eight ragged canvases, greedily and sampled: tokens and order of their commits.

    Planted: every device has its neighbour's part of a weight.
    """
    for heat, texts in ran("written_canvases.py", case).items():
        assert {"fault neighbours", "2x2x2"} < set(texts)
        distinct = {json.dumps(text) for text in texts["one"]}
        assert len(distinct) == 8, "rows that cannot differ"
        for mesh, text in texts.items():
            same = text == texts["one"]
            assert same != mesh.startswith("fault"), (case, heat, mesh)


@pytest.mark.long
def test_grammars_on_a_mesh():
    """A sharded vocabulary: the same texts, and the mask gathers nothing."""
    found = ran("grammars.py")
    texts = found["texts"]
    assert len(set(map(tuple, texts["one"]))) == len(texts["one"])
    for mesh, text in texts.items():
        assert text == texts["one"], mesh
    for mesh, (grammar, banned) in found["sent"].items():
        assert (grammar <= banned) != mesh.startswith("fault"), (mesh, grammar, banned)
