"""Random JSONL lines and checkpoint bytes: refused in our words, or read as they are.

As in `test_configs`. Of a damaged checkpoint what is read must be bitwise what was
saved, or the checkpoint before it.
"""

import json
import os
import pathlib
import shutil
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import strategies as st

from decoding.conformance import kit
from decoding.serving import prompt_set
from experiments.prompts import question_files
from models.errors import CheckpointError, DataError
from tests.stress.fuzz.survey import cases, survey
from training.data import conversations, documents, sources
from training.loop import checkpoints

WORDS = st.sampled_from(
    ["tokens", "prompt", "messages", "max_new_tokens", "turns", "text", "category",
     "role", "user", "assistant", "content", "conversations", "from", "value"]
)  # fmt: skip
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 9), st.integers(), st.floats(),
        st.text("abc", max_size=4), st.text(max_size=4), WORDS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip
USEFUL = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.lists(st.integers(0, 7), min_size=1, max_size=4),
        "prompt": st.text("abcde", min_size=1, max_size=5),
        "text": st.text(max_size=4),
        "turns": st.lists(st.text("ab", min_size=1, max_size=3), max_size=2),
        "max_new_tokens": st.integers(-1, 9),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": WORDS, "content": st.one_of(st.text(max_size=3), st.none())}
            ),
            max_size=2,
        ),
    },
)
LINE = st.one_of(
    st.one_of(USEFUL, JSON).map(json.dumps).map(str.encode),
    USEFUL.map(
        lambda row: json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
    ),
    st.binary(max_size=12),
    st.sampled_from([b"", b"[" * 3000, b'{"prompt": "\\ud800"}', b'{"tokens": [1.0]}']),
    st.sampled_from([b'{"prompt": "a\xe2\x80\xa8b"}', b"NaN", b'{"tokens": "12"}']),
)


def speaker(lm=kit.TARGET):
    """The toy model with a chat template of its own."""

    def chat(messages) -> list[int]:
        return [t for m in messages for t in lm.tokenizer.encode(m["content"])]

    return types.SimpleNamespace(**vars(lm), chat=chat)


@pytest.mark.parametrize("tokens", ['""', "{}", "null"])
def test_tokens_that_are_no_list(tokens, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"tokens": {tokens}}}')
    with pytest.raises(DataError, match=r"line 1.*a list of ids"):
        prompt_set.read(speaker(), path, 5)


@cases(80, 30_000)
def test_jsonl(count, tmp_path):
    """Every reader of lines; what is accepted is what the lines say."""
    path, lm = tmp_path / "lines.jsonl", speaker()

    def read_prompts() -> None:
        found = prompt_set.read(lm, path, 5)
        rows = [
            json.loads(x) for x in path.read_bytes().decode().split("\n") if x.strip()
        ]
        assert len(found) == len(rows)
        for prompt, row in zip(found, rows):
            assert prompt.new == row.get("max_new_tokens", 5) >= 1
            if "tokens" in row:
                assert prompt.tokens == row["tokens"]
            assert all(type(t) is int for t in prompt.tokens)
        prompt_set.check(lm, found, 1)

    def read_questions() -> None:
        told = [q for task in question_files.read(str(path)).values() for q in task]
        assert told and all(type(t) is str and t for turns in told for t in turns)

    def read_texts() -> None:
        assert all(type(t) is str for t in sources.row_texts(path))

    def read_conversations() -> None:
        for _, row in documents.rows(str(path), sources.EVERY):
            said = conversations.messages(row)
            assert said and all(type(m["content"]) is str for m in said)

    readers = (read_prompts, read_questions, read_texts, read_conversations)

    def attempt(case) -> None:
        which, lines = case
        path.write_bytes(b"\n".join(lines))
        readers[which]()

    drawn = st.tuples(st.integers(0, 3), st.lists(LINE, max_size=3))
    found = survey("JSONL", count, drawn, attempt)
    assert min(found["refused"], found["accepted"]) > count // 30


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A run's two checkpoints; on a disk in memory where there is one."""
    shared = pathlib.Path("/dev/shm")
    folder = tmp_path_factory.mktemp("run") if not shared.is_dir() else shared
    folder = folder / f"decodax_fuzz_{os.getpid()}"
    store = checkpoints.Store(folder / "sound", 2)
    with store:
        for step in (1, 2):
            store.save(state(step), {"data": {"step": step}, "seconds": 1.5, "bad": 0})
        store.wait()
    yield folder
    shutil.rmtree(folder)


def state(step: int):
    value = jnp.arange(6, dtype=jnp.float32) * step
    return Small(jnp.int32(step), {"w": value})


@struct.dataclass
class Small:
    step: object
    params: object


def spoilt(folder: pathlib.Path, damage) -> None:
    """Change one file of the newest checkpoint, as `damage` says."""
    which, how, where, bits = damage
    newest = folder / "checkpoints" / "2"
    found = sorted(p for p in newest.rglob("*") if p.is_file())
    file = found[int(which * len(found))]
    content = bytearray(file.read_bytes())
    at = int(where * len(content))
    if how == "flip" and content:
        content[at] ^= bits
    elif how == "cut":
        content = content[:at]
    elif how == "junk":
        content[at:at] = bytes([bits] * 7)
    if how == "remove":
        file.unlink()
    elif how == "folder":
        shutil.rmtree(file.parent)
    else:
        file.write_bytes(content)


def restored(folder: pathlib.Path) -> int:
    """The step of what a run would go on from; its arrays and words are that step's."""
    with checkpoints.Store(folder, 2) as store:
        found = store.restore(state(0))
    if found is None:
        return 0
    whole, extra = found
    step = int(whole.step)
    assert extra["data"] == {"step": step} and extra["seconds"] == 1.5
    np.testing.assert_array_equal(
        whole.params["w"], np.arange(6, dtype=np.float32) * step
    )
    return step


DAMAGE = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["flip", "flip", "flip", "cut", "junk", "remove", "folder"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
)


@cases(12, 2_000)
def test_checkpoints(count, pristine):
    """The newest as it was, or the one before; never another state."""
    folder, steps = pristine / "case", []

    def attempt(damage) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine / "sound", folder)
        spoilt(folder, damage)
        steps.append(restored(folder))

    found = survey("checkpoints", count, DAMAGE, attempt)
    assert found["refused"] == 0 and {1, 2} >= set(steps)
    assert steps.count(1) > count // 8  # much of it is damage


def test_fault_no_digest(pristine, monkeypatch):
    """Planted: nothing is compared with what was saved."""
    folder = pristine / "planted"
    shutil.copytree(pristine / "sound", folder)
    path = folder / "checkpoints" / "2" / "extra" / "metadata"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "seconds": 2.5}))
    monkeypatch.setattr(checkpoints, "checksum", lambda extra: told["seal"])
    with pytest.raises(AssertionError):
        restored(folder)


def test_a_folder_without_a_sound_checkpoint_is_refused(pristine):
    folder = pristine / "none"
    shutil.copytree(pristine / "sound", folder)
    for step in ("1", "2"):
        (folder / "checkpoints" / step / "extra" / "metadata").write_text("{")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        restored(folder)
