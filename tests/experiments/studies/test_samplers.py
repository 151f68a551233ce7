"""The study of samplers on a random model and a folder of made-up text."""

import gzip
import json

import numpy as np
import pytest

from configs.studies import samplers as recipe
from experiments import run_folder
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import sampler_texts, samplers
from models.errors import ConfigError

WORDS = "the cat sat on a mat and then it ran to see what was there again".split()
TASK = (
    'def f{0}(x):\n    """Add {0}.\n    >>> f{0}(1)\n    {1}\n    """\n',
    "    return x + {0}\n",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Novels, articles and tasks of random words, under their own names."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("english_novels", "wikitext2", "humaneval"):
        (folder / name).mkdir()
    prose = lambda: " ".join(rng.choice(WORDS, 60)) + "."
    chapters = "".join(f"\nCHAPTER {i}\n{prose()}\n\n{prose()}" for i in range(12))
    row = json.dumps({"text": chapters}).encode()
    (folder / "english_novels" / "a.jsonl.gz").write_bytes(gzip.compress(row))
    articles = "".join(f"\n = {i} = \n\n {prose()}\n" for i in range(12)).encode()
    for name in ("wiki.train.txt.gz", "wiki.valid.txt.gz"):
        (folder / "wikitext2" / name).write_bytes(gzip.compress(articles))
    tasks = [
        {
            "prompt": TASK[0].format(i, i + 1),
            "canonical_solution": TASK[1].format(i),
        }
        for i in range(3)
    ]
    lines = "\n".join(map(json.dumps, tasks)).encode()
    (folder / "humaneval" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines))
    return folder


@pytest.fixture
def config(data):
    c = recipe.get_config()
    c.data, c.held, c.seeds, c.prompts, c.batch = str(data), 0.4, 2, 2, 3
    c.prompt_tokens, c.max_new_tokens = 8, 12
    return c


def test_a_run_and_its_report(config, tmp_path, lm):
    config.parts, config.max_new_tokens = ("dry",), 32
    store = RunFolder(tmp_path)
    found = samplers.run(config, store, lm)
    arms = found["samplers"]["dry"]["arms"]
    assert {len(values) for arm in arms.values() for values in arm.values()} == {4}
    # A random model loops when it decodes greedily.
    loops, none = (np.mean(arms[x]["suffix"]) for x in ("none, T = 0", "DRY, T = 0"))
    assert loops > none + 1
    directions, table = found["tables"]
    assert [line[0] for line in directions["lines"]] == ["dry", "dry"]
    assert [line[0] for line in table["lines"]] == list(arms)
    report.write(store, settings.plain(config), found)
    text = (tmp_path / "report.md").read_text()
    assert "| none, T = 0 − DRY, T = 0 |" in text and "## DRY" in text
    # A part is stored: a config of another seed finds it, and computes nothing.
    config.seed = 5
    again = samplers.run(config, store, lm)["samplers"]["dry"]
    assert again == found["samplers"]["dry"]


def test_parts_without_a_model_are_left_out(config, tmp_path):
    config.parts = ("xtc", "gedi")
    (table,) = samplers.run(config, RunFolder(tmp_path))["tables"]
    assert table["lines"] == []
    left = [note for note in table["notes"] if "is left out" in note]
    assert "config.text_model and config.class_model" in left[1] and len(left) == 2


def test_mistakes_are_named(config, tmp_path, lm):
    run = lambda: samplers.run(config, run_folder.RunFolder(tmp_path), lm)
    config.parts, config.data = ("uscd",), ""
    with pytest.raises(ConfigError, match=r"config\.data='' has no folder 'humaneval'"):
        run()
    config.data = str(tmp_path)
    with pytest.raises(ConfigError, match="which the part uscd reads"):
        run()
    config.parts = ("nucleus",)
    with pytest.raises(ConfigError, match=r"config\.parts has 'nucleus'"):
        run()
    config.parts, config.seeds = (), 0
    with pytest.raises(ConfigError, match=r"config\.seeds=0"):
        run()


def test_seeds_have_prompts_and_noise_of_their_own(config, tmp_path, lm):
    study = sampler_texts.Study(config, tmp_path, lm)
    prompts = study.novels(8)
    assert len(prompts) == 4 and {len(p) for p in prompts} == {8}
    assert len({study.noise(row) for row in range(4)}) == 4
    config.seed = 1  # the second seed is now the first
    assert sampler_texts.Study(config, tmp_path, lm).novels(8)[:2] == prompts[2:]


def test_no_training_chapter_is_a_prompt(config, tmp_path, lm):
    """Planted: the split of the training text."""
    study = sampler_texts.Study(config, tmp_path, lm)
    held, train = (
        study.documents(config.novels, split) for split in ("validation", "train")
    )
    inside = lambda texts: all(
        any(lm.tokenizer.decode(p) in text for text in texts) for p in study.novels(24)
    )
    assert held and train and inside(held) and not inside(train)


@pytest.mark.long
def test_every_part_runs(config, tmp_path, lm):
    config.parts = [name for name in samplers.PARTS if name != "adadec"]
    config.knn.prompt, config.knn.new, config.knn.entries = 8, 12, 200
    config.knn.neighbours, config.knn.window, config.superposed.tokens = 8, 32, 400
    config.gedi.new, config.uscd.new, config.cntp.new, config.beams.new = 8, 8, 8, 8
    config.uscd.longest, config.hso.window, config.hso.windows = 128, 8, 3
    config.superposed.drafts, config.cntp.trials = (1, 2, 3), 3
    found = samplers.run(config, RunFolder(tmp_path), lm)
    assert list(found["samplers"]) == list(config.parts)
    for name, part in found["samplers"].items():
        for direction in samplers.PARTS[name].directions(config):
            assert sampler_texts.gap(part["arms"], direction)[2] > 0, direction
