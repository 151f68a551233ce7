"""Builder, documents, tokenizer, packing, repetition, and the iterator's state."""

import ast
import io
import json
import pathlib
import subprocess
import sys
import tokenize

import numpy as np
import pytest

from models.errors import CheckpointError, DataError
from training.data import copy_augmentation, sources, text_corpus, train_bpe
from training.data.stdlib_code import stdlib_code

TEXTS = [
    f"def f{i}(x):\n    return x * {i}\n# naïve → {i % 7}\n" * 3 for i in range(60)
]


def corpus(seed: int = 0, separator: int = 0) -> text_corpus.Corpus:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(1, 50, size) for size in rng.integers(5, 80, 50)]
    return text_corpus.Corpus(documents, separator)


def stream(**changes) -> text_corpus.Stream:
    stages = (text_corpus.Stage(40, 4, 16), text_corpus.Stage(10, 2, 64))
    return text_corpus.Stream(
        **{"corpus": corpus(), "stages": stages, "seed": 5, **changes}
    )


def same(a: text_corpus.Batch, b: text_corpus.Batch) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def make_library(root: pathlib.Path) -> None:
    body = "import os\n\n\ndef main():\n    return os.getcwd()\n" * 3
    for i in range(80):
        (root / f"module_{i}.py").write_text(f"VALUE = {i}\n{body}")
    # The copy would go to the other split, where it would be seen in training.
    other = {"train": "validation", "validation": "train"}
    wanted = other[stdlib_code.split_of("module_0.py")]
    names = (f"z_copy_{i}.py" for i in range(1000))
    copy = next(name for name in names if stdlib_code.split_of(name) == wanted)
    (root / copy).write_text(f"VALUE = 0\n{body}")
    (root / "latin.py").write_bytes(b"# \xe9\xe8\n" * 20)
    (root / "empty.py").write_text("")
    (root / "site-packages").mkdir()
    (root / "site-packages" / "other.py").write_text(f"OTHER = 1\n{body}")
    table = "# generated from a table\n" + "    '\\u0402'    # 0x80\n" * 50
    (root / "codec.py").write_text(table)


def test_builder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kept file is in exactly one split, by its path, without TensorFlow."""
    library = tmp_path / "library"
    library.mkdir()
    make_library(library)
    monkeypatch.setattr(
        stdlib_code.sysconfig, "get_paths", lambda: {"stdlib": str(library)}
    )
    splits = {
        split: sources.texts("tfds:stdlib_code", split, tmp_path / "data")
        for split in ("train", "validation")
    }
    train, held = (set(splits[name]) for name in ("train", "validation"))
    assert train and held and not train & held
    wanted = {p.read_text() for p in library.glob("module_*.py")}
    assert train | held == wanted
    assert sum(map(len, splits.values())) == len(wanted)
    for i in range(80):
        text = (library / f"module_{i}.py").read_text()
        split = stdlib_code.split_of(f"module_{i}.py")
        assert text in splits[split]
    with pytest.raises(DataError, match=r"no split 'test'.*validation"):
        sources.texts("tfds:stdlib_code", "test", tmp_path / "data")


def bare(text: str) -> str:
    """The tree of a text, without docstrings and what they leave."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(getattr(node, "body", None), list):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            if isinstance(first.value.value, str) or first.value.value is ...:
                del node.body[0]
    return ast.dump(tree)


def comments(text: str) -> list[str]:
    marks = tokenize.generate_tokens(io.StringIO(text).readline)
    return [mark.string for mark in marks if mark.type == tokenize.COMMENT]


FILE = '''\
"""Top."""
# one
x = "# no"  # two

def f():
    """Only.

    # in
    """

class A:
    "Short"; y = 1
    def g(self):
        # three
        "Says."
        return x
'''
ITS_CODE = """\
x = "# no"

def f():
    ...

class A:
    "Short"; y = 1
    def g(self):
        return x
"""


def test_code_and_docstrings_apart() -> None:
    """The code is the same program, without a comment; every docstring is said once."""
    code, said = stdlib_code.divided(FILE)
    assert code == ITS_CODE and comments(FILE)
    assert said == "Top.\n\nOnly.\n\n# in\n\nSays."
    for module in (ast, io, json, pathlib, subprocess, tokenize):
        text = pathlib.Path(module.__file__).read_text()
        code, said = stdlib_code.divided(text)
        assert bare(code) == bare(text)
        assert not comments(code)
        assert (ast.get_docstring(ast.parse(text)) or "") in said
        assert not ast.get_docstring(ast.parse(code))
    assert bare("x = 1\n") != bare("x = 2\n")  # the property can fail
    assert stdlib_code.divided("print 'old'\n") == ("", "")


def test_a_part_of_the_library(tmp_path: pathlib.Path, monkeypatch) -> None:
    """Both parts of a file are on its side of the split; an unknown part is refused."""
    library = tmp_path / "library"
    library.mkdir()
    about = "What it is for. " * 5
    for i in range(60):
        text = f'"""{about}{i}."""\n\nVALUE = {i}\n' + "VALUE += 1  # more\n" * 9
        (library / f"module_{i}.py").write_text(text)
    monkeypatch.setattr(
        stdlib_code.sysconfig, "get_paths", lambda: {"stdlib": str(library)}
    )
    for split in ("train", "validation"):
        own = [i for i in range(60) if stdlib_code.split_of(f"module_{i}.py") == split]
        code, said = (
            sources.texts(f"tfds:stdlib_code/{part}", split, tmp_path / "data")
            for part in ("code", "docstrings")
        )
        assert set(code) == {f"\nVALUE = {i}\n" + "VALUE += 1\n" * 9 for i in own}
        assert set(said) == {f"{about}{i}." for i in own}
    with pytest.raises(DataError, match=r"no part 'prose'.*docstrings"):
        sources.texts("tfds:stdlib_code/prose", "train", tmp_path / "data")


def test_no_tensorflow() -> None:
    code = (
        "import training.data.stdlib_code, sys; sys.exit('tensorflow' in sys.modules)"
    )
    root = pathlib.Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_documents_from_files(tmp_path: pathlib.Path) -> None:
    lines = [json.dumps({"text": text}) for text in ("one\u2028two", "three")]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert sources.texts(str(path), sources.EVERY, "") == ["one\u2028two", "three"]
    path.write_text(lines[0] + '\n{"body": 1}\n')
    with pytest.raises(DataError, match="line 2"):
        sources.texts(str(path), sources.EVERY, "")
    folder = tmp_path / "texts" / "train"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text("bee")
    (folder / "a.txt").write_text("ay")
    assert sources.texts(str(tmp_path / "texts"), "train", "") == ["ay", "bee"]
    with pytest.raises(DataError, match="no files"):
        sources.texts(str(tmp_path / "texts"), "validation", "")
    with pytest.raises(DataError, match="not a readable"):
        sources.texts(str(tmp_path / "none.txt"), "train", "")
    with pytest.raises(DataError, match="no_such_set"):
        sources.texts("tfds:no_such_set", "train", tmp_path)


def test_tokenizer_round_trip(tmp_path: pathlib.Path) -> None:
    tokenizer = train_bpe.train(TEXTS, 320)
    assert tokenizer.get_vocab_size() == 320
    assert tokenizer.token_to_id(train_bpe.SEPARATOR) == 0
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = train_bpe.load(tmp_path / "tokenizer.json")
    odd = "\t漢字 🙂\r\n  é\x00\x7f  trailing  "
    for text in (*TEXTS[:5], odd, "".join(map(chr, range(1, 0x250)))):
        ids = again.encode(text).ids
        assert again.decode(ids) == text
        assert 0 not in ids
    assert len(again.encode(TEXTS[0]).ids) < len(TEXTS[0].encode()) / 2
    with pytest.raises(DataError, match="not the 5000"):
        train_bpe.train(TEXTS, 5000)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"not a tokenizer\.json"):
        train_bpe.load(tmp_path / "tokenizer.json")


def test_packing_covers_an_epoch_once() -> None:
    """Windows of one epoch share only their border tokens and lose under a window."""
    base = corpus()
    window = 16
    count = (len(base) - 1) // window
    packed = text_corpus.Stream(base, (text_corpus.Stage(count, 1, window),), seed=1)
    rows = [packed.batch(i)["tokens"][0] for i in range(count)]
    seen = np.sort(np.concatenate([row[:-1] for row in rows]))
    assert len(seen) == count * window > len(base) - 2 * window
    left = np.bincount(base.flat, minlength=50) - np.bincount(seen, minlength=50)
    assert left.min() >= 0 and left.sum() < window + 1
    text = base.flat.tobytes()
    flat, starts = packed._epoch(0, 0)
    assert sorted(starts) == list(range(min(starts), min(starts) + count * window, 16))
    assert sorted(flat) == sorted(base.flat) and flat.tobytes() != text
    later = [packed._epoch(0, 1)[1].tolist(), packed._epoch(0, 0)[1].tolist()]
    assert later[0] != later[1]


def test_segments_number_the_documents() -> None:
    batch = stream(segments=True).batch(3)
    tokens, segments = batch["tokens"], batch["segments"]
    for row, numbers in zip(tokens, segments):
        assert numbers[0] == 0
        ends = [i for i in range(16) if row[i] == 0]
        assert [i for i in range(16) if numbers[i + 1] != numbers[i]] == ends
    assert segments.max() > 0


def test_the_same_stream_for_any_number_of_processes() -> None:
    whole = stream()
    for step in (0, 7, 39, 40, 49):
        parts = [whole.batch(step, process, 2)["tokens"] for process in range(2)]
        assert np.array_equal(np.concatenate(parts), whole.batch(step)["tokens"])
        swapped = np.concatenate(parts[::-1])  # planted fault
        assert not np.array_equal(swapped, whole.batch(step)["tokens"])
    with pytest.raises(DataError, match="no multiple of 3"):
        whole.batch(0, 0, 3)


@pytest.mark.parametrize("stop", [0, 1, 39, 40, 45])
def test_state_is_exact(stop: int) -> None:
    how = copy_augmentation.Repeats(share=0.5, comment=(2, 3), newline=(4,), shortest=4)
    straight = list(text_corpus.DataIterator(stream(repeats=how)))
    first = text_corpus.DataIterator(stream(repeats=how))
    for _ in range(stop):
        next(first)
    state = json.loads(json.dumps(first.state()))
    second = text_corpus.DataIterator(stream(repeats=how))
    second.restore(state)
    rest = list(second)
    assert len(rest) == len(straight) - stop
    assert all(same(a, b) for a, b in zip(rest, straight[stop:]))
    state["step"] += 1  # planted fault
    second.restore(state)
    assert not same(next(second), straight[stop])


def test_state_of_another_stream_is_refused() -> None:
    state = text_corpus.DataIterator(stream()).state()
    for other in (stream(seed=6), stream(corpus=corpus(1))):
        with pytest.raises(DataError, match="is of stream"):
            text_corpus.DataIterator(other).restore(state)


def test_a_longer_schedule_keeps_the_batches() -> None:
    long = stream(stages=(text_corpus.Stage(90, 4, 16), text_corpus.Stage(10, 2, 64)))
    assert all(same(long.batch(i), stream().batch(i)) for i in range(40))


def test_streams_are_checked() -> None:
    with pytest.raises(DataError, match="window needs"):
        stream(stages=(text_corpus.Stage(1, 1, 10**6),))
    with pytest.raises(DataError, match="batch=0"):
        text_corpus.Stage(1, 0, 4)
    with pytest.raises(DataError, match="step 50"):
        stream().batch(50)


def repeated(window: np.ndarray, length: int) -> float:
    """The share of positions whose last `length` tokens occurred before."""
    seen, hits = set(), 0
    for i in range(length, len(window) + 1):
        gram = tuple(window[i - length : i])
        hits += gram in seen
        seen.add(gram)
    return hits / (len(window) - length + 1)


def test_repeats_repeat() -> None:
    """Share of repeated 8-grams on random text (chance: 4000^-8) by construction."""
    how = copy_augmentation.Repeats(comment=(1,), newline=(2,), markers=((5, 6, 7),))
    rng = np.random.default_rng(0)
    shares, marked = [], 0
    for _ in range(200):
        window = rng.integers(10, 4000, 513).astype(np.int32)
        new = copy_augmentation.repeat(rng, window, how)
        assert new.shape == window.shape and new.dtype == np.int32
        assert set(new) <= {*window, 1, 2, 5, 6, 7}
        shares.append(repeated(new, 8))
        marked += 5 in new or 1 in new
    assert 0.2 < np.mean(shares) < 0.6
    assert marked > 120
    assert repeated(rng.integers(10, 4000, 513), 8) == 0.0  # planted: nothing repeats


def test_share_of_rewritten_windows() -> None:
    """0.3 of 4000 windows to 4 standard errors (0.029)."""
    stages = (text_corpus.Stage(1000, 4, 96),)
    plain = stream(stages=stages)
    how = copy_augmentation.Repeats(share=0.3, comment=(60,), newline=(61,), shortest=4)
    changed = stream(stages=stages, repeats=how)
    differs = [
        not np.array_equal(a, b)
        for i in range(1000)
        for a, b in zip(plain.batch(i)["tokens"], changed.batch(i)["tokens"])
    ]
    assert abs(np.mean(differs) - 0.3) < 0.029
