"""Training states on disk: orbax, asynchronous, checked, several kept.

Every checkpoint carries a digest of its arrays. A newest checkpoint that cannot be read
or whose digest differs is moved aside with a warning, and the one before it is used.
"""

import hashlib
import json
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from models import storage
from models.errors import CheckpointError

# Two libraries write the files; these are the exceptions of a failed write.
FAILURES = (OSError, ValueError, RuntimeError)


def digest(tree: Any) -> str:
    """Return the SHA-256 over the bytes of a tree's arrays, in order."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return total.hexdigest()


def checksum(extra: dict[str, Any]) -> str:
    """Return the SHA-256 of a checkpoint's fields beside its arrays."""
    text = json.dumps(extra, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_extra(folder: storage.Path) -> dict[str, Any]:
    """Return a checkpoint's fields beside its arrays: `data`, `seconds`, `digest`."""
    try:
        text = (folder / "extra" / "metadata").read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{folder}: not a readable checkpoint: {error}"
        ) from error


class Store:
    """The checkpoints of one run, in `workdir/checkpoints/<step>`."""

    def __init__(self, workdir: storage.Path, keep: int) -> None:
        self.directory = workdir / "checkpoints"
        self.aside = workdir / "corrupt_checkpoints"
        self.checked = jax.process_count() == 1  # else arrays are not all addressable
        self.keep = keep
        self.manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=self.keep,
                    create=True,
                    enable_async_checkpointing=True,
                    cleanup_tmp_directories=True,  # a killed run's unfinished saves
                ),
                item_names=("state", "extra"),
            )
        except OSError as error:
            raise CheckpointError(
                f"{self.directory}: cannot be written ({error}): choose another workdir"
            ) from error

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.manager.close()
        except FAILURES as failure:  # of a save that was still under way
            if kind is None:
                raise self._failed(failure) from failure
            logging.warning("%s", self._failed(failure))

    def latest(self) -> storage.Path | None:
        """Return the folder of the newest checkpoint, or None."""
        step = self.manager.latest_step()
        return None if step is None else self.directory / str(step)

    def save(self, state: Any, extra: dict[str, Any]) -> None:
        """Start to write `state` (a pytree with `step`) and JSON-able `extra`."""
        tree = _tree(state)
        if self.checked:
            extra = {**extra, "digest": digest(tree)}
        extra = {**extra, "seal": checksum(extra)}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(tree), extra=ocp.args.JsonSave(extra)
        )
        try:
            self.manager.save(int(state.step), args=items)
        except FAILURES as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Wait until every checkpoint is on disk; raise the error of a failed save."""
        try:
            self.manager.wait_until_finished()
        except FAILURES as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.directory}: a checkpoint could not be written ({error}); the last "
            f"good one is {self.latest() or 'none'}: free disk space and start again"
        )

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Restore (state, extra) of the newest good checkpoint, or return None.

        `like` gives structure, shapes and dtypes. None: there is no checkpoint. Raises
        `CheckpointError` when there are checkpoints but none can be used.
        """
        steps = sorted(self.manager.all_steps(), reverse=True)
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            _tree(like),
        )
        reasons = []
        bad: list[int] = []
        for step in steps:
            items = ocp.args.Composite(
                state=ocp.args.StandardRestore(shapes), extra=ocp.args.JsonRestore()
            )
            try:
                restored = self.manager.restore(step, args=items)
                extra = dict(restored["extra"])
                if extra.pop("seal", None) != checksum(extra):
                    raise ValueError("the checksum of its fields differs")
                # With several processes none holds all of the arrays: no digest then.
                expected = extra.get("digest") if self.checked else None
                if expected is not None and digest(restored["state"]) != expected:
                    raise ValueError(
                        "the digest of its arrays differs from the saved one"
                    )
            except Exception as error:  # orbax raises bare Exception for torn arrays
                first = str(error).partition("\n")[0][:200]
                reason = f"checkpoint {self.directory / str(step)} is unusable: {first}"
                logging.warning("%s", reason)
                reasons.append(reason)
                bad.append(step)
                continue
            self._move_aside(bad)
            state = jax.tree.unflatten(
                jax.tree.structure(like), jax.tree.leaves(restored["state"])
            )
            return state, extra
        if reasons:
            raise CheckpointError(
                f"no usable checkpoint in {self.directory}; remove it to start over. "
                + " / ".join(reasons)
            )
        return None

    def _move_aside(self, steps: list[int]) -> None:
        """Move bad checkpoints aside, so that new ones can take their folders."""
        if not steps:
            return
        self.manager.close()
        if jax.process_index() == 0:
            for step in steps:
                there = self.aside.exists()
                number = sum(1 for _ in self.aside.iterdir()) if there else 0
                target = self.aside / f"{step}.{number}"
                storage.move(self.directory / str(step), target)
        self.manager = self._open()


def _tree(state: Any) -> dict[str, Any]:
    """Convert a state to a dict by leaf number, which suits any optimiser."""
    leaves = jax.tree.leaves(state)
    return {f"leaf_{i:05d}": leaf for i, leaf in enumerate(leaves)}
