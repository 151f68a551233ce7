"""Runs in a bucket: killed and resumed; two processes without a shared folder."""

import json

import numpy as np
import pytest

from tests.buckets import bucket, emulator  # noqa: F401 (fixtures)
from tests.pods import test_processes
from tests.stress import kill_and_resume

KILLS = 10


@pytest.mark.long
@pytest.mark.parametrize("kind", kill_and_resume.KINDS)
def test_killed(bucket, kind):  # noqa: F811
    """Ten SIGKILLs at random times; the same bytes as an uninterrupted run."""
    tally = kill_and_resume.kill(kind, bucket / kind, KILLS, 0)
    assert tally.wrong == [] and tally.killed == tally.resumed == KILLS
    assert tally.compared >= 1


@pytest.mark.long
def test_two_processes(bucket, tmp_path):  # noqa: F811
    """Training, features and texts are those of two processes with a folder."""
    found = {}
    for name, place in (("disk", tmp_path), ("bucket", bucket)):
        children = test_processes.started(2, 2, str(place))
        told = [child.communicate(timeout=900) for child in children]
        assert [child.returncode for child in children] == [0, 0], told
        curve = (place / "whole" / "metrics.jsonl").read_text()
        texts = (place / "texts.jsonl").read_text()
        shards = sorted(
            path.name for path in (place / "features").glob("*.array_record")
        )
        found[name] = (curve, texts, shards, json.loads(told[0][0].splitlines()[-1]))
    assert found["disk"] == found["bucket"]
    rows = [json.loads(line)["loss"] for line in found["disk"][0].splitlines()]
    assert np.isfinite(rows).all() and len(found["disk"][2]) > 1
