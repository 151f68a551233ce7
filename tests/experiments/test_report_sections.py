"""What a study registers reaches every form of its report, and no other's."""

import json

import pytest

from experiments import run_folder, stage
from experiments.reporting import report
from experiments.studies import evaluate

HARDWARE = {
    "processor": "P",
    "cores": 2,
    "memory_gib": 4,
    "last_level_cache_mib": 32,
    "devices": 1,
    "device": "cpu",
}
PAIR = {"size": "s", "method": "plain", "ours_ms": 1.0, "theirs_ms": 2.5, "ratio": 2.5}
FIGURE = {"what": "a figure", "value": 1.0, "aim": 0.5, "least": False, "met": False}


def written(folder, name):
    """The forms of a report of stage `name` with the parts of `hf_transformers`."""
    found = {
        "hardware": HARDWARE,
        "versions": {"jax": "1"},
        "bandwidth": {"gb_s": 9.5, "readers": {"sum": 9.5}, "bytes": 2**28},
        "rows": [],
        "peers": [{**PAIR, "aim": 2.0}, {**PAIR, "method": "other", "aim": None}],
        "figures": [FIGURE],
    }
    config = {"stage": name, "model": "m"}
    report.write(run_folder.RunFolder(folder), config, found)
    return [(folder / f"report.{form}").read_text() for form in ("json", "md", "html")]


def test_sections_of_a_study(tmp_path):
    """By hand; planted: the same measurements in the report of another stage."""
    kept, text, page = written(tmp_path / "a", "hf_transformers")
    assert json.loads(kept)["figures"] == [FIGURE]
    assert "# decodax and HF transformers on the same weights" in text
    assert "## Against HF transformers" in text and "## Figures to reach" in text
    assert "| s | plain | 1.00 | 2.50 | 2.50× | 2× | yes |" in text
    assert "| s | other | 1.00 | 2.50 | 2.50× | – | – |" in text
    assert "| a figure | 1.00 | ≤ 0.5 | no |" in text
    for said in ("<h2>Against HF transformers</h2>", "<h2>Figures to reach</h2>"):
        assert said in page
    assert page.count('class="number good">yes<') == 1
    assert page.count('class="number bad">no<') == 1
    assert (tmp_path / "a" / "figures" / "peers.png").exists()

    kept, text, page = written(tmp_path / "b", "evaluate")
    assert "peers" not in json.loads(kept) and "# Decoding with m" in text
    assert "Against HF" not in text and "Against HF" not in page
    assert not (tmp_path / "b" / "figures" / "peers.png").exists()


@pytest.mark.parametrize("name", sorted(stage.modules()))
def test_registered_fields_are_tuples(name):
    """Planted: one name without its comma, which would be one field a letter."""

    def sound(one):
        return isinstance(one.resumable_fields, tuple) and isinstance(one.parts, tuple)

    assert sound(stage.find(name))
    assert not sound(evaluate.STAGE._replace(parts="trained"))
