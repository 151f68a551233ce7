"""Rows of whole documents: nothing lost, nothing split, each from its beginning."""

import types

import numpy as np
import pytest

from models.errors import ConfigError, DataError
from training.data import copy_augmentation, documents, text_corpus, whole_documents
from training.teacher import outputs

WINDOW, BATCH = 31, 4


def corpus(masked: bool = True) -> text_corpus.Corpus:
    """40 documents of 3 to 40 tokens, of which 1 is none and 0 ends turns too."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 41, 40)
    texts = [np.append(rng.integers(2, 50, n - 1), 0) for n in sizes]
    masks = [rng.random(n + 1) < 0.5 for n in sizes] if masked else None
    return text_corpus.Corpus(texts, 0, masks)


def stream(whole: bool = True, masked: bool = True, steps: int = 20, **more):
    stages = (text_corpus.Stage(steps, BATCH, WINDOW),)
    fields = {"seed": 3, "whole": whole, "segments": True, "numbered": True}
    return text_corpus.Stream(corpus(masked), stages, **{**fields, **more})


def begins_whole(own: text_corpus.Stream, batch: dict) -> list[int] | None:
    """The documents of a batch in their order; None where one is not whole."""
    ends = own.corpus.ends
    seen: list[int] = []
    for tokens, segments, mask in zip(
        *(batch[name] for name in ("tokens", "segments", "loss_mask"))
    ):
        for number in range(segments.max() + 1):
            at = segments == number
            for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends)):
                whole = own.corpus.flat[start:end][: WINDOW + 1]
                learned = own.corpus.mask[start:end][: WINDOW + 1].copy()
                learned[0] = False
                if np.array_equal(tokens[at], whole):
                    if not np.array_equal(mask[at], learned):
                        return None
                    seen.append(i)
                    break
            else:
                padding = number == segments.max() and (tokens[at] == 0).all()
                if not padding or mask[at].any():
                    return None
    return seen


def test_every_document_is_whole_and_read_once_an_epoch():
    """Planted: windows that are cut anywhere."""
    own = stream()
    rows = own.distinct
    seen = [begins_whole(own, own.windows([i])) for i in range(rows)]
    assert None not in seen
    assert sorted(i for row in seen for i in row) == list(range(40))
    # A bound of best fit in falling order, on the fewest rows that could hold them.
    lengths = np.minimum(np.diff(own.corpus.ends, prepend=0), WINDOW + 1)
    assert rows <= 11 / 9 * -(-lengths.sum() // (WINDOW + 1)) + 4
    cut = stream(whole=False)
    assert None in [begins_whole(cut, cut.batch(i)) for i in range(4)]


def test_epochs_show_the_rows_in_other_orders():
    own = stream()
    numbers = [n for step in range(20) for n in own.numbers(step)]
    epochs = [numbers[i : i + own.distinct] for i in (0, own.distinct)]
    assert [sorted(e) for e in epochs] == [list(range(own.distinct))] * 2
    assert epochs[0] != epochs[1]
    halves = [own.batch(3, process, 2) for process in range(2)]
    whole = own.batch(3)
    for name, x in whole.items():
        both = np.concatenate([half[name] for half in halves])
        np.testing.assert_array_equal(both, x)
    assert own.fingerprint != stream(whole=False).fingerprint


def test_padding_is_never_predicted():
    """Also where the text has no masks. Planted: no mask, but segments alone."""
    own = stream(masked=False)
    assert own.masked
    batch = own.windows(range(own.distinct))
    padding = np.zeros_like(batch["loss_mask"])
    for row, tokens, numbers in zip(padding, batch["tokens"], batch["segments"]):
        last = numbers == numbers.max()
        row[:] = last & (tokens[last.argmax()] == 0)  # no document begins with 0
    assert padding.any() and not batch["loss_mask"][padding].any()
    assert batch["loss_mask"].any()
    bare = {name: batch[name] for name in ("tokens", "segments")}
    assert np.asarray(outputs.predicted(bare, 1))[padding].any()
    repeats = copy_augmentation.Repeats(0.1)
    with pytest.raises(DataError, match="whole=False"):
        stream(masked=False, repeats=repeats)


def test_rows_come_in_a_random_order():
    """Not by length, in which they are packed."""
    rows = whole_documents.pack([5] * 10 + [50] * 10, 50, 1)
    sizes = [len(row) for row in rows]
    assert sorted(sizes) == [1] * 10 + [10] and sizes != sorted(sizes)
    assert rows != whole_documents.pack([5] * 10 + [50] * 10, 50, 2)


def model(first: list[int]):
    tokenizer = types.SimpleNamespace(encode=lambda text: first)
    config = types.SimpleNamespace(eos=(0,))
    return types.SimpleNamespace(tokenizer=tokenizer, config=config)


def test_documents_begin_as_prompts_do():
    """BOS where the tokenizer writes one and the template did not; never two."""
    texts = [np.int32([1, 5, 6]), np.int32([7, 8])]
    masks = [np.ones(4, bool), np.ones(3, bool)]
    found = documents.begun(model([1]), documents.Documents(texts, masks))
    assert [x.tolist() for x in found.tokens] == [[1, 5, 6], [1, 7, 8]]
    assert found.masks[1].tolist() == [False, True, True, True]
    same = documents.begun(model([]), documents.Documents(texts, masks))
    assert same.tokens is texts
    rows = documents.whole_windows(model([1]), documents.Documents(texts, None), 24, 6)
    assert len(rows) == 2  # there are no more
    for row in rows:
        assert row["tokens"][0, 0] == 1 and not row["loss_mask"][0, 0]
    with pytest.raises(ConfigError, match="not a window of 6"):
        documents.whole_windows(model([1]), documents.Documents(texts, None), 5, 6)
