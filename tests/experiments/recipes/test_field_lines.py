"""--list_fields: every field of every recipe has a line, found in its sources."""

import pytest

from experiments import run
from experiments.launch import command as launch
from experiments.preflight import command as preflight
from experiments.recipes import command_fields, field_lines, settings
from tests.experiments.recipes.test_settings import RECIPES

SOURCE = '''
"""A recipe."""
import ml_collections

def train():
    c = ml_collections.ConfigDict()
    c.rate = 0.1  # peak
    c.steps = 3
    return c

def get_config():
    c = ml_collections.ConfigDict()
    c.stage = "replay"
    # Of both,
    # in seconds.
    c.times = (1, 2)
    c.rate = 5
    c.train = train()
    c.gpu = {
        "page": 256,  # slots
        "size": {"a": 1},
    }
    c.open = {"x": {"y": 1}}  # any names
    return c
'''


@pytest.mark.parametrize("name", RECIPES)
def test_every_field_has_a_line(name):
    path = f"configs/{name}"
    assert field_lines.missing(path, settings.load(path)) == []


def test_lines_are_the_comments_at_the_assignments(tmp_path):
    """Planted: fields without a comment, and one whose group has a namesake."""
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    config = settings.load(path)
    lines = field_lines.lines(path, config)
    assert lines["times"] == "Of both, in seconds."
    assert lines["train.rate"] == "peak"
    assert lines["gpu.page"] == "slots" and lines["open.x.y"] == "any names"
    missing = field_lines.missing(path, config)
    assert missing == ["gpu.size.a", "rate", "train.steps"]


@pytest.mark.parametrize("main", [run.main, preflight.main, launch.main])
def test_fields_are_printed_as_they_are_typed(main, capsys):
    """At most 100 columns; a name and its value are taken as they stand."""
    path = "configs/heads/hydra.py"
    assert main([f"--config={path}", "--list_fields", "--config.seed=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= command_fields.COLUMNS
    rows = {line.split()[0]: line.split() for line in lines if line[0] != " "}
    assert rows["seed"][1:3] == ["int", "7"] and rows["train.rate"][1] == "float"
    names = {*settings.flat(settings.load(path).to_dict())}
    assert names <= rows.keys()
    settings.resolve([f"--config={path}", f"--config.seed={rows['seed'][2]}"])
