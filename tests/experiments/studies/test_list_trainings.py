"""What models of list rules are trained on from."""

import jax
import numpy as np
import pytest

from configs.studies import parallel_lists as recipe
from experiments.studies import list_models, list_trainings, parallel_lists
from experiments.studies.list_models import IDS
from training.objectives.language_models import masked_diffusion


@pytest.fixture
def config():
    c = recipe.get_config()
    c.network.width, c.network.layers, c.network.hidden = 16, 1, 24
    c.dparallel.batch = 4
    return c


def test_lists_to_learn_from_are_no_lists_of_the_study(config):
    """Nor those of another seed; all rules alike. Planted: the study's own seed."""
    found = list_trainings.own(config, 0, 5)
    held = [
        list_models.prompt(case)
        for rule in config.rules
        for case in parallel_lists.cases(config, rule, 5)
    ]
    assert len(found) == 5 * len(config.rules)
    assert not {*map(tuple, found)} & {*map(tuple, held)}
    assert found != list_trainings.own(config, 1, 5) == list_trainings.own(config, 1, 5)
    rules = [prompt[0] for prompt in found]
    assert {rules.count(IDS[rule]) for rule in config.rules} == {5}
    assert rules != sorted(rules)


def test_every_epoch_has_every_text(config):
    """Planted: batches that are drawn anew leave texts out."""
    prompts = list_trainings.own(config, 0, 1)
    answers = [prompt[-3:] + [0] for prompt in prompts]
    data = list_trainings.Texts(config, prompts, answers, 1)
    batches = [next(data) for _ in range(6)]
    rows = [tuple(row) for batch in batches for row in batch["tokens"].tolist()]
    size = len(prompts)
    for epoch in range(4):
        part = rows[epoch * size : (epoch + 1) * size]
        assert len({*part}) == size
    assert rows[:size] != rows[size : 2 * size]
    drawn = np.random.default_rng(0).integers(size, size=size)
    assert len({*drawn.tolist()}) < size
    again = list_trainings.Texts(config, prompts, answers, 1)
    again.restore({"step": 5})
    last = next(again)
    assert all((last[name] == batches[5][name]).all() for name in last)
    numbers = [n for batch in batches for n in batch["row"].tolist()]
    assert numbers == [*range(24)]


def test_answers_are_marked_and_padding_is_apart(config):
    prompts, answers = [[5, 6, 7], [8, 9]], [[1, 2, 0], [3, 0]]
    data = list_trainings.Texts(config, prompts, answers, 0)
    batch = next(data)
    for tokens, answer, behind in zip(*(batch[k] for k in list(batch)[:3])):
        number = prompts.index(tokens[~answer & (behind == 0)].tolist())
        assert tokens[answer].tolist() == answers[number]
        assert (behind == 0).sum() == len(prompts[number]) + len(answers[number])
        assert not answer[behind == 1].any() and behind[-1] == 1


def test_the_law_that_is_trained_is_the_one_that_decodes(config):
    """dParallel's forward, and the model call. Planted: padding that is seen."""
    model = list_models.network(list_models.shape(config))
    params = jax.tree.map(lambda x: 3 * x, model.init(jax.random.key(0)))
    tokens = np.asarray([[5, 6, IDS["<mask>"], 8, 0, 0]], np.int32)
    behind = np.asarray([[0, 0, 0, 0, 1, 1]], np.int32)
    length = np.asarray([4], np.int32)
    call = np.asarray(list_models.logits(model, params, tokens, length))
    run = lambda **about: np.asarray(
        masked_diffusion.logits(list_models.shape(config), params, tokens, **about)
    )
    at = (0, slice(4), slice(IDS["<mask>"]))
    np.testing.assert_allclose(call[at], run(segments=behind)[at], atol=1e-4)
    assert np.abs(call[at] - run()[at]).max() > 1e-2
