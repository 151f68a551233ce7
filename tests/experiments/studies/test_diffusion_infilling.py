"""The stage `diffusion_infilling`: holes under each arm, tables, what is refused."""

import types

import numpy as np
import pytest

from configs.studies import diffusion_infilling as recipe
from experiments.benchmarks.infilling import AFTER, BEFORE, NEITHER, Hole
from experiments.run_folder import RunFolder
from experiments.studies import diffusion_infilling as study
from models.errors import ConfigError
from models.synthetic import toy, toy_masked

VOCAB = 5


def loaded(model, params):
    letters = types.SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    return types.SimpleNamespace(
        model=model, params=params, config=model.config, tokenizer=letters
    )


def given() -> study.Given:
    """A toy canvas model, a toy target of its tokens, and holes of three lengths."""
    rng = np.random.default_rng(0)
    text = lambda n: tuple(rng.integers(0, VOCAB, n).tolist())
    sides = (BEFORE, AFTER, NEITHER, AFTER)
    holes = [
        Hole(f"{i}", text(3 + i), text(4), text(1 + i), s) for i, s in enumerate(sides)
    ]
    model = loaded(*toy_masked.model(VOCAB + 1, scale=2.0))
    return study.Given(model, loaded(*toy.model(VOCAB)), {study.IDENTIFIERS: holes})


def config():
    c = recipe.get_config()
    c.batch = 4
    return c


def test_every_arm_fills_every_hole(tmp_path, monkeypatch):
    """Each row is stored, and a second run measures nothing."""
    monkeypatch.setattr(study, "loaded", lambda *_: given())
    first = study.run(config(), RunFolder(tmp_path))
    heads = first["tables"][0]["lines"]
    assert [line[1] for line in heads] == [study.LEFT, *config().arms]
    monkeypatch.setattr(study, "filled", lambda *_: pytest.fail("measured again"))
    again = study.run(config(), RunFolder(tmp_path))
    assert again["tables"] == first["tables"]


def test_scores_are_of_the_arm_s_model():
    """The left-to-right arm sees no suffix; planted: the canvas model does."""
    whole = given()
    other = [h._replace(suffix=h.suffix[::-1]) for h in whole.holes[study.IDENTIFIERS]]
    changed = whole._replace(holes={study.IDENTIFIERS: other})
    rows = {
        (name, arm): study.filled(config(), case, study.IDENTIFIERS, arm)["sample"]
        for name, case in (("whole", whole), ("changed", changed))
        for arm in (study.LEFT, "one")
    }
    assert rows["whole", study.LEFT] == rows["changed", study.LEFT]
    assert rows["whole", "one"] != rows["changed", "one"]


def test_tables_by_hand():
    """Shares and paired differences; planted: the arms the other way round."""
    row = {"kind": study.IDENTIFIERS, "hits": [1.0] * 4, "sizes": [2] * 4}
    row["seen"] = [BEFORE, BEFORE, AFTER, AFTER]
    left = {**row, "arm": study.LEFT, "exact": [1.0, 1.0, 0.0, 0.0]}
    one = {**row, "arm": "one", "exact": [1.0, 0.0, 1.0, 1.0]}
    lines = study.claims([left, one])["lines"]
    assert lines[0] == ["identifiers, all", "one", "+25.0 ± 47.9 %"]
    assert lines[1] == ["identifiers, name before", "one", "-50.0 ± 50.0 %"]
    assert lines[2] == ["identifiers, name behind", "one", "+100.0 ± 0.0 %"]
    turned = [{**left, "exact": one["exact"]}, {**one, "exact": left["exact"]}]
    assert study.claims(turned)["lines"][0][2] == "-25.0 ± 47.9 %"
    assert study.sides([left, one])["lines"][0] == [
        *("before", study.LEFT, "2", "100.0 ± 0.0 %")
    ]
    assert study.shares([left])["lines"][0][4] == "50.0 ± 25.0 %"


@pytest.mark.parametrize("field", ["model", "target"])
def test_models_of_the_other_kind_are_refused(field):
    c = config()
    c[field] = {"model": "tiny-draft", "target": "tiny_diffusion"}[field]
    with pytest.raises(ConfigError, match=rf"config.{field}="):
        study.loaded(c)
