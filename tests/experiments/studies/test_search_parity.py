"""experiments/studies/search_parity.py: HF's texts, and three forms of a round."""

import pytest

from configs.studies import search_parity as recipe
from experiments.run_folder import RunFolder
from experiments.studies import search_parity
from models.errors import ConfigError


@pytest.fixture
def config(tmp_path):
    c = recipe.get_config()
    c.every, c.repeats, c.cells = 150, 1, ((2, 12, 2, 4),)
    c.prompts, c.prompt_tokens, c.layout_tokens, c.draft_tokens = 2, 24, 12, 12
    c.layout_prompt = 24
    c.layouts, c.widths = ("int8",), (2,)
    c.drafts = {"two": {"name": "drafters/lane_model", "m": 2}}
    return c


@pytest.mark.long
def test_the_study_runs(config, tmp_path):
    found = search_parity.run(config, RunFolder(tmp_path / "w"))
    texts, layouts, cost, drafts = found["tables"]
    assert [line[2] for line in layouts["lines"]] == ["2", "2"]
    assert drafts["lines"][0][2] == "2 of 2"
    assert texts["lines"][0][1] == texts["lines"][0][2] != "0"
    assert len(cost["lines"]) == 1 and len(cost["lines"][0]) == len(cost["heads"])
    assert all(ms > 0 for ms in found["repeats"][0]["ms"].values())


def test_goldens_that_are_not_there(config):
    config.goldens = "nowhere.npz"
    with pytest.raises(ConfigError, match=r"goldens=nowhere\.npz is not there"):
        search_parity.parity(config, None)


def test_a_text_that_differs_is_counted():
    """Planted: one text fewer than all is no parity."""
    lines = search_parity.of_parity({"cases": 1, "texts": 4, "same": 3, "gap": 0.5})
    assert lines["lines"] == [["1", "4", "3", "5.0e-01"]]
