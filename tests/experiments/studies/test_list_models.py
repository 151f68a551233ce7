"""Models of list rules: their tokens, their batches, their loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.studies import parallel_lists as recipe
from experiments.benchmarks import list_rules
from experiments.studies import list_models
from experiments.studies.list_models import IDS


@pytest.fixture(scope="module")
def config():
    c = recipe.get_config()
    c.network.width, c.network.layers, c.network.hidden = 16, 1, 24
    c.train.batch = 64
    return c


def test_tokens_by_hand():
    case = list_rules.Case("replace_index", tuple("dab"), "x", 2, tuple("dax"))
    words = ["replace_index", "x", "2", "d", "a", "b", "|"]
    assert list_models.prompt(case) == [IDS[word] for word in words]
    copy = list_rules.Case("copy", tuple("dab"), "", -1, tuple("dab"))
    assert list_models.prompt(copy) == [IDS[w] for w in ("copy", "d", "a", "b", "|")]
    text = [IDS[word] for word in ("d", "a", "<eos>", "b")]
    assert list_models.spelt(text) == ["d", "a"]
    assert list_models.spelt(text[:2]) == ["d", "a"]
    assert len(IDS) == len(list_models.WORDS) and IDS["<eos>"] == 0


def test_sizes(config):
    assert list_models.sizes(config) == (1 + 1 + 1 + 6 + 1, 6 + 1)
    c = recipe.get_config()
    c.rules, c.length = ("repeat_list", "remove_index", "insert_random"), 4
    assert list_models.sizes(c) == (1 + 1 + 4 + 1, 4 * 5 + 1)


def test_batches_are_functions_of_seed_and_step(config):
    """Planted: another seed, another step."""
    stream, again = list_models.Stream(config, 1), list_models.Stream(config, 1)
    first, second = next(stream), next(stream)
    again.restore({"step": 1})
    same = lambda a, b: all(np.array_equal(a[name], b[name]) for name in a)
    assert same(second, next(again)) and again.state() == stream.state()
    assert not same(first, second)
    assert not same(first, list_models.Stream(config, 2).batch(0))


def test_answers_alone_are_masked(config):
    """Every weight is 1/t of its row, and t is spread evenly; planted: random t."""
    batch = list_models.Stream(config, 0).batch(0)
    masked = batch["shown"] != batch["tokens"]
    assert (batch["shown"][masked] == IDS["<mask>"]).all()
    assert ((batch["weights"] > 0) == masked).all()
    place = np.arange(masked.shape[1])
    assert not masked[place >= batch["length"][:, None]].any()
    assert not masked[place < batch["length"][:, None] - 7].any()
    for row, length in zip(batch["tokens"], batch["length"]):
        text = [list_models.WORDS[token] for token in row[:length]]
        before, _, answer = " ".join(text).partition(" | ")
        assert len(answer.split()) == 7 and answer.endswith("<eos>")
        assert before.split()[0] in config.rules
    # A row's t from its weight; rows with t near 0 have none.
    shares = [1 / row.max() for row in batch["weights"] if row.max() > 0]
    ranks = np.sort(shares) * 64
    gaps = np.diff(ranks)
    assert 0.5 < gaps.min() and len(shares) > 50
    drawn = np.diff(np.sort(np.random.default_rng(0).random(len(shares)) * 64))
    assert drawn.min() < 0.5


def test_longer_canvases_end_in_eos(config):
    """All of the tail may be masked; planted: the canvas of the answer alone."""
    long, short = (list_models.Stream(config, 0, canvas) for canvas in (14, 0))
    (a, b) = (stream.batch(0) for stream in (long, short))
    assert a["tokens"].shape[1] == b["tokens"].shape[1] + 7
    assert (a["length"] == b["length"] + 7).all()
    for row, size, text in zip(a["tokens"], a["length"], b["tokens"]):
        assert (row[size - 8 : size] == IDS["<eos>"]).all()
        assert (row[: size - 7] == text[: size - 7]).all()
    place, size = np.arange(a["tokens"].shape[1]), a["length"][:, None]
    tail = (place >= size - 7) & (place < size)
    share = (a["shown"][tail] == IDS["<mask>"]).mean()
    assert 0.3 < share < 0.7


def test_the_loss_is_a_bound_of_the_nats(config):
    """An even law of V tokens has ln V nats a token, whatever is masked.

    Planted: without 1/t it has about half of that.
    """
    model = list_models.network(list_models.shape(config))
    params = model.init(jax.random.key(0))
    flat = jax.tree.map(jnp.zeros_like, params)
    objective = list_models.objective(model, 7)
    stream = list_models.Stream(config, 0)
    loss = jax.jit(lambda batch: objective.loss(flat, batch, None)[0])
    batches = [stream.batch(step) for step in range(60)]
    found = [float(loss(batch)) for batch in batches]
    error = np.std(found) / len(found) ** 0.5
    nats = np.log(len(list_models.WORDS))
    assert abs(np.mean(found) - nats) < 4 * error < 0.1 * nats
    bare = [float(loss({**b, "weights": b["weights"] > 0})) for b in batches]
    assert abs(np.mean(bare) - nats) > 20 * error


def test_all_see_all_but_the_padding(config):
    """Planted: a causal mask would hide what is behind; padding is hidden."""
    model = list_models.network(list_models.shape(config))
    params = model.init(jax.random.key(1))
    run = jax.jit(
        lambda tokens, length: list_models.logits(model, params, tokens, length)
    )
    tokens = jnp.asarray([[5, 6, 7, 8], [5, 6, 9, 8]], jnp.int32)
    length = jnp.asarray([3, 3], jnp.int32)
    first = run(tokens, length)
    padded = run(tokens.at[:, 3].set(1), length)
    np.testing.assert_array_equal(first[:, :3], padded[:, :3])
    assert np.abs(first[0, 0] - first[1, 0]).max() > 1e-4
