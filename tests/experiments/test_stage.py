"""Stages are found by their files' names; old names are explained."""

import json
import pathlib
import re

import pytest
from ml_collections import ConfigDict

import experiments
from experiments import run, run_folder, stage
from experiments.recipes import settings
from models.errors import ConfigError

ROOT = pathlib.Path(experiments.__file__).parent


def test_every_stage_is_the_file_of_its_name():
    """Planted: a helper beside the stages, which has no STAGE."""
    for name, module in stage.modules().items():
        assert module.rpartition(".")[2] == name
        assert ROOT.parent.joinpath(*module.split(".")).with_suffix(".py").is_file()
        assert callable(stage.find(name).run) and stage.find(name).title
    marked = [
        path
        for folder in stage.FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if re.search("^STAGE = ", path.read_text(), re.MULTILINE)
    ]
    assert len(marked) == len(stage.modules())  # no two files of one name
    assert "chained_timing" not in stage.modules()


def test_a_new_file_is_a_new_stage(tmp_path, monkeypatch):
    """Nothing but the file is needed; planted: without STAGE it is none."""
    (tmp_path / "experiments" / "studies").mkdir(parents=True)
    monkeypatch.setattr(stage, "HERE", tmp_path / "experiments")
    for text, found in (("x = 1\n", {}), ("x = 1\n\nSTAGE = x\n", {"new"})):
        (tmp_path / "experiments" / "studies" / "new.py").write_text(text)
        stage.modules.cache_clear()
        assert {*stage.modules()} == {*found}
    stage.modules.cache_clear()


@pytest.mark.parametrize("name", ["tree_budgt", ["a"], None, 4])
def test_a_typo_names_the_siblings(name, tmp_path):
    config = ConfigDict({"stage": name})
    with pytest.raises(ConfigError, match=r"is no stage.*'evaluate'.*'tree_budget'"):
        run.run(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()  # refused before anything is begun


def test_old_names_are_explained():
    """All of 0.1.0's; planted: an old name that a stage still has explains nothing."""
    assert not {*stage.RENAMED} & {*stage.modules()}
    for old, new in stage.RENAMED.items():
        with pytest.raises(ConfigError, match=f"stage='{old}' is now stage='{new}'"):
            stage.check(old)
        stage.check(new)
    changes = (ROOT.parent / "CHANGELOG.md").read_text()
    told = re.findall(r"^ +\| `(\w+)` \| `(\w+)` \|$", changes, re.MULTILINE)
    assert dict(told) == stage.RENAMED and len(told) == len(stage.RENAMED)


def test_an_old_run_folder_is_gone_on_with(tmp_path):
    """Its config.json has the old name; planted: another stage's folder."""
    config = ConfigDict({"stage": "verifier_acceptance", "seed": 0})
    for old, right in (("laws", True), ("budget", False)):
        folder = run_folder.RunFolder(tmp_path / old)
        kept = {**settings.plain(config), "stage": old}
        run_folder.write(folder.path / "config.json", kept)
        if not right:
            with pytest.raises(ConfigError, match=r"tree_budget.*verifier_acceptance"):
                folder.claim(config)
            continue
        folder.claim(config)
        now = json.loads((folder.path / "config.json").read_text())
        assert now == settings.plain(config)
