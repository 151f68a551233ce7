"""Generated problems: deterministic, and in two splits that nothing mixes."""

import json
import random

import pytest

from models.errors import DataError
from training.data import generated_problems, sources
from training.data.problems import countdown, programs

TASKS = {"countdown": countdown, "programs": programs}


def keys(draw, split: str, count: int, seed: int) -> set[str]:
    return {p.key for p in generated_problems.take(draw, split, count, seed)}


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_disjoint(name):
    """For every pair of seeds; planted: a split by the problem's prompt.

    Few numbers to draw from, so that the same problem comes in many forms.
    """
    if name == "countdown":
        draw = lambda rng: _small(rng)
    else:
        draw = programs.draw
    train = set().union(*(keys(draw, "train", 300, seed) for seed in (0, 1)))
    held = set().union(*(keys(draw, "validation", 30, seed) for seed in (0, 2)))
    assert train and held and not train & held

    rng = random.Random(0)
    some = [draw(rng) for _ in range(600)]
    by_prompt = [generated_problems.is_held(p.prompt) for p in some]
    mixed = {p.key for p, x in zip(some, by_prompt) if x}
    assert mixed & {p.key for p, x in zip(some, by_prompt) if not x}


def _small(rng: random.Random) -> countdown.Problem:
    """Draw three numbers to 8 in any order, and a target to 40."""
    numbers = tuple(rng.randint(1, 8) for _ in range(3))
    return countdown.Problem(numbers, rng.randint(1, 40))


@pytest.mark.parametrize("name", TASKS)
def test_deterministic_by_seed(name):
    draw = TASKS[name].draw
    take = lambda count, seed: [
        p.prompt + p.answer for p in generated_problems.take(draw, "train", count, seed)
    ]
    assert take(20, 0) == take(30, 0)[:20] != take(20, 1)
    assert len({*take(30, 0)}) == 30


def test_held_share():
    """One key in ten is held out: 10,000 keys, five standard errors."""
    count = sum(generated_problems.is_held(str(i)) for i in range(10_000))
    assert abs(count - 1000) < 5 * 30


def test_excluded_problems_are_in_neither_split(tmp_path):
    """Whatever the order of their numbers; planted: the same run without the file."""
    public = [*generated_problems.take(countdown.draw, "train", 30)]
    public += generated_problems.take(countdown.draw, "validation", 10)
    file = tmp_path / "public.jsonl"
    rows = [
        {"input": ",".join(map(str, p.numbers[::-1])), "output": str(p.target)}
        for p in public
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def written(folder, exclude):
        generated_problems.write("countdown", folder, (60, 20), 0, exclude)
        texts = [sources.texts(str(folder), s, "") for s in sources.SPLITS]
        assert [len(split) for split in texts] == [60, 20]
        return {countdown.read(text)[0].key for split in texts for text in split}

    left_out = {p.key for p in public}
    assert not written(tmp_path / "a", [str(file)]) & left_out
    assert written(tmp_path / "b", []) >= left_out


def test_command(tmp_path, capsys):
    command = ["--task=countdown", f"--out={tmp_path}", "--train=5", "--validation=2"]
    assert generated_problems.main(command) == 0
    assert f"{tmp_path}: 5 and 2 problems" in capsys.readouterr().out
    for fault in ("--task=countdwn", "--trian=3"):
        assert generated_problems.main([*command, fault]) == 2
        assert "did you mean" in capsys.readouterr().err.lower()


def test_too_many():
    """A draw of one problem ends, with how many there are."""
    one = countdown.Problem((2, 3), 5)
    split = "validation" if generated_problems.is_held(one.key) else "train"
    with pytest.raises(DataError, match="1 different problems were found"):
        [*generated_problems.take(lambda rng: one, split, 2)]
    with pytest.raises(DataError, match="split='test'"):
        next(generated_problems.take(countdown.draw, "test", 1))
