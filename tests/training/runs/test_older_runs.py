"""A run folder and an export that version 0.1 wrote still load.

tests/golden/version_0_1 was written at commit e383bc7 by the recipe below: EAGLE-3's
heads for the small target, their first params moved by noise (so that a run from the
beginning ends elsewhere), stopped after step 4 of 8. The export is that of the same
training unstopped.
"""

import json
import pathlib
import shutil

import jax
import numpy as np

from models.heads import eagle3
from models.heads.formats import native
from models.heads.modules import head_config
from tests.training.small_trainings import recipe
from training.runs import draft_head_run

OLDER = pathlib.Path(__file__).parents[2] / "golden" / "version_0_1"


def flat(params) -> np.ndarray:
    bare, _ = head_config.split(params)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(bare)])


def test_a_run_of_version_0_1_is_resumed(small, corpus, tmp_path):
    """From its step 4 to the weights that it would have ended with, to rounding."""
    c = recipe("eagle3", corpus)
    c.draft_vocab, c.objective.steps, c.train.evaluate_every = 64, 1, 0
    c.train.update(optimizer="adamw", rate=0.001, clip=0.5)  # as recipes were then
    older = flat(native.load(OLDER / "export"))

    def ended(folder: pathlib.Path) -> np.ndarray:
        training = draft_head_run.Training(c, folder, small)
        return flat(training.heads(training.fit().params))

    shutil.copytree(OLDER / "run", tmp_path / "run")
    np.testing.assert_allclose(ended(tmp_path / "run"), older, rtol=1e-4, atol=1e-5)
    steps = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == list(range(1, 9))
    # Planted: the checkpoint is not read.
    assert np.abs(ended(tmp_path / "fresh") - older).max() > 0.01


def test_an_export_of_version_0_1_is_read():
    """It has no config; its params' names give the same one."""
    params = native.load(OLDER / "export")
    assert head_config.CONFIG not in params
    assert eagle3.config_of(params) == eagle3.HeadConfig(draft_vocabulary=True)
    assert params["kept"].shape == (64,) and params["kept"].dtype == np.int32
