"""`fit`: damaged checkpoints, bad steps, full disks, and settings."""

import json
import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging as absl_logging

from models.errors import CheckpointError, ConfigError, DataError, TrainingError
from tests.training.loop import killed_run
from training.data import text_corpus
from training.loop import (
    checkpoints,
    fit,
    metrics_writer,
    step_health,
    train_step,
)


def spoil(workdir: pathlib.Path, step: int, how: str) -> None:
    """Truncate the largest file of a checkpoint, or flip a byte in its middle."""
    folder = workdir / "checkpoints" / str(step)
    files = [p for p in folder.rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    if how == "truncate":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)


@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_a_bad_checkpoint_is_passed_over(
    how: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = killed_run.run(
        tmp_path / "whole", text_corpus.DataIterator(killed_run.stream())
    )
    killed_run.run(tmp_path / "run", text_corpus.DataIterator(killed_run.stream()))
    spoil(tmp_path / "run", killed_run.STEPS, how)
    absl_logging.get_absl_logger().propagate = True
    again = killed_run.run(
        tmp_path / "run", text_corpus.DataIterator(killed_run.stream())
    )
    named = str(tmp_path / "run" / "checkpoints" / str(killed_run.STEPS))
    assert any(named in r.message and r.levelname == "WARNING" for r in caplog.records)
    curves = [(tmp_path / w / "metrics.jsonl").read_text() for w in ("whole", "run")]
    assert curves[0] == curves[1]
    np.testing.assert_array_equal(again.params["table"], whole.params["table"])
    assert list((tmp_path / "run" / "corrupt_checkpoints").iterdir())


def test_no_usable_checkpoint_is_an_error(tmp_path: pathlib.Path) -> None:
    killed_run.run(tmp_path, text_corpus.DataIterator(killed_run.stream()))
    for folder in (tmp_path / "checkpoints").iterdir():
        spoil(tmp_path, int(folder.name), "truncate")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        killed_run.run(tmp_path, text_corpus.DataIterator(killed_run.stream()))


def test_a_checkpoint_of_other_data_is_refused(tmp_path: pathlib.Path) -> None:
    killed_run.run(tmp_path, text_corpus.DataIterator(killed_run.stream()))
    other = text_corpus.Stream(
        killed_run.stream().corpus, killed_run.stream().stages, seed=4
    )
    with pytest.raises(DataError, match="seed=3"):
        killed_run.run(tmp_path, text_corpus.DataIterator(other))


def explode_at(step: int) -> train_step.Objective:
    def loss(params, batch, target_out):
        bad = jnp.where(batch["x"].sum() > step, jnp.nan, 0.0)
        return (params["w"] ** 2).sum() + bad, {}

    return train_step.Objective(loss)


class Counter:
    """Batches 1, 2, 3, ... and the state that goes with them."""

    def __init__(self) -> None:
        self.step = 0

    def __next__(self) -> dict[str, np.ndarray]:
        self.step += 1
        return {"x": np.full((1, 1), self.step, np.float32)}

    def state(self) -> dict:
        return {"step": self.step}

    def restore(self, state: dict) -> None:
        self.step = state["step"]


def fit_counter(workdir: pathlib.Path, **settings) -> fit.Result:
    defaults = {"steps": 9, "save_every": 2, "progress": False}
    return fit.fit(
        {"w": jnp.ones(3)},
        explode_at(5),
        optax.sgd(0.1),
        Counter(),
        workdir,
        fit.FitConfig(**{**defaults, **settings}),
    )


def test_nan_stops_and_names_the_last_good_checkpoint(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TrainingError, match=r"step 6: loss nan.*checkpoints/4"):
        fit_counter(tmp_path, log_every=4)
    assert not (tmp_path / "checkpoints" / "6").exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert steps == [1, 2, 3, 4, 5]


def rows_of(workdir: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").open()]


def spike(*at: int) -> train_step.Objective:
    """A pull to 1 whose gradient is not finite, or 1000 times larger, at some steps."""

    def loss(params, batch, target_out):
        x = batch["x"].sum()
        bad = jnp.where(jnp.isin(x, jnp.asarray(at[::2])), jnp.nan, 0.0)
        large = jnp.where(jnp.isin(x, jnp.asarray(at[1::2])), 1000.0, 1.0)
        return large * (x / 10 - params["w"]).sum() ** 2 + bad, {}

    return train_step.Objective(loss)


def steered(workdir: pathlib.Path, policy: step_health.Policy, *at: int, **settings):
    defaults = {"steps": 9, "save_every": 2, "log_every": 3, "progress": False}
    return fit.fit(
        {"w": jnp.zeros(3)},
        spike(*at),
        optax.sgd(0.02),
        Counter(),
        workdir,
        fit.FitConfig(ema=0.5, bad_steps=policy, **{**defaults, **settings}),
    )


def by_hand(skipped: tuple[int, ...], steps: int = 9) -> np.ndarray:
    """The weights of `steered` without the updates in `skipped`."""
    w = np.zeros(3)
    for x in range(1, steps + 1):
        if x not in skipped:
            w = w + 0.02 * 2 * (3 * x / 10 - w.sum())
    return w


SKIP = step_health.Policy("skip", norm_limit=100.0, patience=2)
BACK = step_health.Policy("roll_back", norm_limit=100.0, patience=2)


def test_a_bad_step_is_skipped(tmp_path: pathlib.Path) -> None:
    """One that is not finite and one that explodes; the run goes on without them."""
    done = steered(tmp_path, SKIP, 4, 7)
    np.testing.assert_allclose(done.params["w"], by_hand((4, 7)), rtol=1e-5)
    assert [r["step"] for r in rows_of(tmp_path) if r["skipped"]] == [4, 7]
    # Planted: a policy that has no limit takes step 7 as it is.
    taken = steered(tmp_path / "b", SKIP._replace(norm_limit=0.0), 4, 7).params["w"]
    assert np.abs(np.asarray(taken) - by_hand((4, 7))).max() > 1.0


def test_too_many_bad_steps_end_the_run(tmp_path: pathlib.Path) -> None:
    policy = SKIP._replace(patience=1)
    assert steered(tmp_path / "apart", policy, 4, 6).step == 9
    with pytest.raises(TrainingError, match=r"step 5.*checkpoints/4"):
        steered(tmp_path / "side", policy, 4, 5)


def test_a_bad_step_is_rolled_back(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 5 is seen at step 6: the weights of step 4, the batches of 7 on."""
    absl_logging.get_absl_logger().propagate = True
    done = steered(tmp_path, BACK, 5)
    np.testing.assert_allclose(done.params["w"], by_hand((5, 6)), rtol=1e-5)
    assert any(
        "rolled back to" in r.message and "/4" in r.message for r in caplog.records
    )
    assert len(rows_of(tmp_path)) == 9
    early = steered(tmp_path / "early", BACK, 1)  # before there is a checkpoint
    np.testing.assert_allclose(early.params["w"], by_hand((1, 2)), rtol=1e-5)
    with pytest.raises(TrainingError, match="step 7"):
        bad = (3, 3, 5, 5, 7, 7)
        steered(tmp_path / "many", BACK, *bad, save_every=9)


def test_a_rolled_back_run_resumes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the roll-back, it goes on to the same curve."""
    whole = steered(tmp_path / "whole", BACK, 5)
    sound = Counter.__next__

    def doomed(self):
        if self.step == 7:
            raise KeyboardInterrupt
        return sound(self)

    monkeypatch.setattr(Counter, "__next__", doomed)
    with pytest.raises(KeyboardInterrupt):
        steered(tmp_path / "run", BACK, 5)
    monkeypatch.setattr(Counter, "__next__", sound)
    again = steered(tmp_path / "run", BACK, 5)
    np.testing.assert_array_equal(again.params["w"], whole.params["w"])
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_altered_words_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """Its arrays are sound, and the place in the data is another: not taken."""
    fit_counter(tmp_path, steps=4)
    path = tmp_path / "checkpoints" / "4" / "extra" / "metadata"
    text = path.read_text()
    assert '"step": 4' in text or '"step":4' in text
    path.write_text(
        text.replace('"step": 4', '"step": 3').replace('"step":4', '"step":3')
    )
    with pytest.MonkeyPatch.context() as patch:  # planted: no seal
        patch.setattr(checkpoints, "checksum", lambda extra: text and _sealed(path))
        store = checkpoints.Store(tmp_path, 3)
        like = train_step.TrainState(
            jnp.int32(0),
            {"w": jnp.ones(3)},
            optax.sgd(0.1).init({"w": jnp.ones(3)}),
            None,
        )
        assert store.restore(like)[1]["data"] == {"step": 3}
    fit_counter(tmp_path, steps=4)
    assert [p.name for p in (tmp_path / "corrupt_checkpoints").iterdir()] == ["4.0"]


def _sealed(path: pathlib.Path) -> str:
    return json.loads(path.read_text())["seal"]


def test_unwritable_workdir(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        fit_counter(tmp_path / "file" / "run")


def test_disk_full(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fit.checkpoints.ocp.CheckpointManager, "save", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        fit_counter(tmp_path)


@pytest.mark.long
def test_a_disk_that_is_full_in_earnest(tmp_path: pathlib.Path) -> None:
    """The system refuses to write: an error of ours, and the way on is not lost."""
    script = str(pathlib.Path(killed_run.__file__))
    root = pathlib.Path(script).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, script, str(tmp_path), "full:900"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "\nmodels.errors.CheckpointError: " in done.stderr
    killed_run.run(tmp_path, text_corpus.DataIterator(killed_run.stream()))
    whole = killed_run.run(
        tmp_path / "whole", text_corpus.DataIterator(killed_run.stream())
    )
    curves = [(p / "metrics.jsonl").read_text() for p in (tmp_path, tmp_path / "whole")]
    assert curves[0] == curves[1] and whole.step == killed_run.STEPS


def test_settings_are_checked(tmp_path: pathlib.Path) -> None:
    for wrong in ({"steps": 0}, {"keep": 0}, {"ema": 1.0}, {"rows_at_once": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            fit_counter(tmp_path, **wrong)
    for policy in (step_health.Policy("guess"), BACK._replace(patience=0)):
        with pytest.raises(ConfigError, match=r"bad_steps|patience"):
            fit_counter(tmp_path, bad_steps=policy)


def test_truncated_metrics(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    metrics_writer.truncate(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
