"""The study of continuous speculative decoding, at a small size."""

import pytest

from configs.studies import continuous as recipe
from experiments.run_folder import RunFolder
from experiments.studies import continuous as study
from models.errors import ConfigError, MethodError


def config(**arms):
    c = recipe.get_config()
    c.train.steps, c.train.warmup, c.train.decay, c.train.batch = 4, 1, 1, 8
    c.target.width, c.target.window, c.draft.width = 8, 4, 4
    c.prompts, c.samples, c.new, c.places, c.judged = 2, 512, 4, (1, 4), 2
    del c.arms
    c.arms = arms
    return c


def test_a_run(tmp_path):
    """Exact is kept, lossy is LOSSY, and a second run repeats nothing.

    Planted: the arm's guarantee is exchanged, and the table tells.
    """
    lossy = {"temperature": 42.0, "deviation": "variance"}
    c = config(
        exact={"steps": 1, "length": 2},
        lossy={"steps": 1, "length": 2, "verifier": lossy},
    )
    store = RunFolder(tmp_path)
    models, arms = study.run(c, store)["tables"]
    assert [line[0] for line in models["lines"]] == ["1"]
    exact, other = arms["lines"]
    assert (exact[1], other[1]) == ("LAW", "LOSSY") and exact[-1] == "kept"
    # Of two drafts the second is tested behind an accepted first one, and only there.
    found = store.get("rows", "arm-exact")
    tested = (found["tokens_per_call"] - 1) / found["acceptance"]  # of a call
    assert 1 < tested < 2
    row = store.get("rows", "arm-lossy")
    assert study.verdict({**row, "p": 0.0}) == "another"
    assert study.verdict({**row, "p": 0.0, "guarantee": "LAW"}) == "BROKEN"
    assert study.run(c, RunFolder(tmp_path))["tables"][1] == arms


def test_what_cannot_run_is_refused(tmp_path):
    store = RunFolder(tmp_path)
    with pytest.raises(ConfigError, match="length of 0 up"):
        study.run(config(a={"steps": 1, "length": -1}), store)
    with pytest.raises(MethodError, match="temperature=0"):
        wrong = {"temperature": 0.0}
        study.run(config(a={"steps": 1, "length": 1, "verifier": wrong}), store)
    c = config(a={"steps": 1, "length": 1})
    c.places = (9,)
    with pytest.raises(ConfigError, match="places up to new"):
        study.run(c, store)
