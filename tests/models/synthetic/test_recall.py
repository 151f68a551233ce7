"""The recall model: exact at any length, and its attention where it is said to be."""

import dataclasses

import jax
import numpy as np
import pytest

import decoding
from models.errors import ConfigError, PromptError
from models.synthetic import recall

LM = recall.load(max_positions=2048)
SHORT, MIDDLE, LONG = 256, 1024, (4096, 8192)


def right(lm, cases) -> float:
    """The share of answers that plain decoding writes whole."""
    prompts = [list(case.prompt) for case in cases]
    out = decoding.generate(lm, prompts, method="plain", max_new_tokens=8)
    pairs = zip(out.tokens, cases)
    return float(np.mean([tuple(tokens) == case.expected for tokens, case in pairs]))


def looking_at_itself():
    """The model with the query of layer 0 turned to the token itself."""
    qkv = np.array(LM.params["layer_0"]["attention"]["qkv"])
    qkv[:, 0, 0] = qkv[:, 0, 1]
    layer = LM.params["layer_0"]
    layer = {
        **layer,
        "attention": {**layer["attention"], "qkv": jax.numpy.asarray(qkv)},
    }
    return dataclasses.replace(LM, params={**LM.params, "layer_0": layer})


def test_exact_among_other_facts():
    """32 facts, any of which is asked. Planted: layer 0 attends to the token itself."""
    cases = [recall.case(SHORT, asked=i) for i in (0, 9, 31)]
    cases += [recall.case(MIDDLE, seed=s) for s in range(3)]
    assert right(LM, cases) == 1
    assert right(looking_at_itself(), cases) == 0


@pytest.mark.long
@pytest.mark.parametrize("length", LONG)
def test_exact_in_long_texts(length):
    assert right(recall.load(), [recall.case(length, seed=s) for s in range(8)]) == 1


@pytest.mark.long
def test_the_needed_slots():
    """Each step attends to its one slot. Planted: the slot of the asked name."""
    case = recall.case(SHORT, seed=1)
    for i, slot in enumerate(case.needed):
        weight = recall.attention(LM, [*case.prompt, *case.expected[:i]])
        assert weight[slot] > 0.9999
        assert weight[slot - 1] < 1e-6
    assert [case.prompt[i] for i in case.needed] == list(case.expected)
    assert case.prompt[case.needed[0] - 1] == case.prompt[case.context]
    assert recall.attention(LM, case.prompt, layer=0)[-2] > 1 - 1e-6


def test_the_facts_of_a_case():
    """No name twice, no fact in another, the asked one in its place."""
    for asked in (0, 5, 31):
        case = recall.case(MIDDLE, seed=2, asked=asked)
        assert len(case.prompt) == MIDDLE and case.context == MIDDLE - 2
        names = [t for t in case.prompt[: case.context] if t >= recall.NAMES]
        assert len(names) == len(set(names)) == 32 * 4
        assert names.index(case.prompt[-2]) == 4 * asked
        assert case.prompt.count(recall.END) == 32 and case.prompt[0] < recall.NAMES
    assert recall.case(MIDDLE, seed=3) != recall.case(MIDDLE, seed=4)


def test_codes_differ():
    rows = np.delete(recall.codes(), recall.ASK, 0)
    agree = np.abs(rows @ rows.T)
    np.fill_diagonal(agree, 0)
    assert agree.max() <= recall.AGREE
    assert not recall.codes()[recall.ASK].any()


def test_wrong_sizes():
    with pytest.raises(PromptError, match="32 facts of 5 tokens, with 128 names"):
        recall.case(99)
    with pytest.raises(PromptError, match="with 512 names"):
        recall.case(4096, value=15)
    with pytest.raises(PromptError, match="asked=32"):
        recall.case(SHORT, asked=32)
    with pytest.raises(ConfigError, match="max_positions=1"):
        recall.load(1)
