"""LogitSpec's star of chains against the paper's pool of n-grams, by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.drafters import logitspec
from models.errors import MethodError
from tests.decoding.drafters import kit

VOCAB = 6


def pool(text: list[int], n_max: int, size: int) -> list[dict]:
    """What follows each n-gram: the last of its longest continuations."""
    found: list[dict] = [{} for _ in range(n_max)]
    for i in range(len(text)):
        for n in range(1, n_max + 1):
            end = i + n
            if end >= len(text):
                continue
            key, after = tuple(text[i:end]), text[end : end + size]
            if len(after) >= len(found[n - 1].get(key, ())):
                found[n - 1][key] = after
    return found


def looked_up(text: list[int], n_max: int, size: int) -> list[int]:
    grams = pool(text[: len(text)], n_max, size)
    for n in range(min(n_max, len(text)), 0, -1):
        if tuple(text[-n:]) in grams[n - 1]:
            return grams[n - 1][tuple(text[-n:])]
    return []


def by_hand(text: list[int], ids: list[int], nodes: int, first: int, n_max: int):
    """Paths of the branches' nodes, in order."""
    own = looked_up(text, n_max, first)
    branches = [own]
    grams = pool(text, n_max, first)
    for rank, guess in enumerate(ids):
        if guess == text[-1] or own[:1] == [guess]:
            continue
        longer, rest = [*text, guess], []
        for n in range(n_max, 0, -1):
            if tuple(longer[-n:]) in grams[n - 1]:
                rest = grams[n - 1][tuple(longer[-n:])]
                break
        size = 4 if rank <= 8 else 3 if rank <= 32 else 1
        branches.append([guess, *rest][:size])
    paths = [tuple(b[: i + 1]) for b in branches for i in range(len(b))]
    return paths[: nodes - 1]


def drafted(drafter: base.Drafter, texts: list[list[int]], ids) -> list[list[tuple]]:
    ctx = kit.context(texts)
    state = dataclasses.replace(drafter.init(ctx), row=jnp.asarray(ids, jnp.int32))
    nodes, _, _ = drafter.draft(kit.keys(len(texts)), ctx, state)
    rows = []
    for b in range(len(texts)):
        full: dict[int, tuple] = {0: ()}
        for i in range(1, nodes.tokens.shape[1]):
            if int(nodes.kind[b, i]) == base.CANDIDATE:
                above = full[int(nodes.parents[b, i])]
                full[i] = (*above, int(nodes.tokens[b, i]))
        rows.append([path for i, path in full.items() if i])
    return rows


@pytest.mark.parametrize("nodes", [8, 24])
@pytest.mark.parametrize("n_max", [1, 3])
def test_branches_are_those_of_the_pool(n_max, nodes):
    """Planted: the guesses from the last to the first."""
    rng = np.random.default_rng(n_max)
    texts = [rng.integers(0, VOCAB, n).tolist() for n in (1, 2, 5, 13, 24, 30)]
    ids = np.argsort(rng.normal(size=(len(texts), VOCAB)), -1)
    drafter = logitspec.drafter(VOCAB, nodes, first=5, n_max=n_max)
    found = drafted(drafter, texts, ids)
    wanted = [by_hand(t, i.tolist(), nodes, 5, n_max) for t, i in zip(texts, ids)]
    assert found == wanted
    other = [by_hand(t, i[::-1].tolist(), nodes, 5, n_max) for t, i in zip(texts, ids)]
    assert found != other


def test_a_text_without_logits_drafts_the_first_branch_alone():
    drafter = logitspec.drafter(VOCAB, 8, first=3)
    none = -np.ones((2, VOCAB), int)
    assert drafted(drafter, [[1, 2, 3, 1], [4]], none) == [
        [(2,), (2, 3), (2, 3, 1)],
        [],
    ]


@pytest.mark.parametrize("wrong", [{"nodes": 1}, {"first": 0}, {"n_max": 0}])
def test_numbers_that_draft_nothing(wrong):
    with pytest.raises(MethodError, match=next(iter(wrong))):
        logitspec.drafter(VOCAB, **wrong)
