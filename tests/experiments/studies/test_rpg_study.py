"""The stage `rpg`: shares of repetition by hand, and texts that stay as they are."""

import pytest

from decoding import Spec
from decoding.automata import line_types
from decoding.conformance import kit
from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.studies import rpg
from experiments.studies.sampler_texts import Text
from models.errors import ConfigError


def text(prompt, tokens) -> Text:
    return Text(list(prompt), list(tokens), [-1.0] * len(tokens), 1.0, None)


def test_repeated_grams_by_hand():
    """Those of the prompt count as earlier ones; planted: without the prompt."""
    assert rpg.repeated(text([1, 2, 3, 4], [1, 2, 3, 4]), 2) == 3 / 4
    assert rpg.repeated(text([1], [2, 3, 4, 5]), 2) == 0
    assert rpg.repeated(text([], [1, 2, 3, 4]), 2) == 0
    assert rpg.repeated(text([1, 1], [1, 1]), 2) == 1


def test_repeated_lines_by_hand():
    """Of four new lines two end a block that repeats; planted: no new line does."""
    spelled = [b"a = 1\n", b"f(b)\n", b"x", b"if c:\n", b"    "]
    lexer = line_types.lexer()
    share = lambda *parts: rpg.lines(lexer, spelled, text(*parts))
    assert share([0, 1], [0, 1, 3, 4, 3]) == 2 / 4
    assert share([0, 0], [1, 3]) == 0
    assert share([0], [2]) == 0


def test_texts_are_unchanged_until_something_repeats():
    part = Spec("transforms/rpg", tokens=8, lines=4, statements=())
    prompts = [[1, 2, 3], [4, 5]]
    greedy = [[4, 5, 6, 6, 1, 2], [1, 2, 3]]
    others = [[4, 5, 6, 6, 0, 2], [1, 2, 3]]
    row = rpg.unchanged(kit.TARGET, part, prompts, greedy, others)
    assert row["first"] == [4, 3] and row["agreed"] == [4, 3]
    (line,) = rpg.table_of_unchanged(row)["lines"]
    assert line[0] == "2/2" and line[3:] == ["1", "1/1"]
    planted = [[4, 5, 0, 6, 1, 2], [1, 2, 0]]  # they differ before
    row = rpg.unchanged(kit.TARGET, part, prompts, greedy, planted)
    assert rpg.table_of_unchanged(row)["lines"][0][0] == "0/2"


def test_tables_by_hand():
    row = lambda arm, grams: {
        "arm": arm,
        "grams": grams,
        **{name: [0.5, 0.5, 1.0] for name in rpg.COLUMNS[1:]},
    }
    rows = [row("greedy", [0.9, 0.7, 0.2]), row("rpg", [0.5, 0.3, 0.2])]
    first, second = rpg.table_of("x", rows, range(2))["lines"]
    assert first[:2] == ["greedy", "0.800 ± 0.100"] and second[1] == "0.400 ± 0.100"
    (grams, lines) = rpg.directions(rows)["lines"]
    assert grams[1].startswith("+0.267") and lines[1].startswith("+0.000")
    assert rpg.spans({"a": 2, "b": 3}) == {"a": (0, 2), "b": (2, 5)}


def test_arms_that_are_needed(tmp_path):
    c = settings.load("configs/studies/rpg.py")
    c.arms = {"greedy": ()}
    c.prompts, c.prompt_tokens = 1, 16
    with pytest.raises(ConfigError, match="needs 'greedy' and 'rpg'"):
        rpg.run(c, RunFolder(tmp_path))


@pytest.mark.long
def test_stage(tmp_path):
    """On the shipped model and built-in texts: a stronger decay repeats less."""
    c = settings.load("configs/studies/rpg.py")
    c.update(prompts=6, prompt_tokens=64, max_new_tokens=48, batch=6)
    arms = {"greedy", "rpg", "rpg_tenth"}
    c.arms = {name: parts for name, parts in c.arms.items() if name in arms}
    report = rpg.run(c, RunFolder(tmp_path))
    cells = {line[0]: line[1] for line in report["tables"][0]["lines"]}
    assert float(cells["rpg_tenth"].split()[0]) < float(cells["greedy"].split()[0])
    assert report["tables"][-1]["lines"][0][0] == "6/6"
