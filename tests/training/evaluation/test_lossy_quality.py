"""How far a text is from the target's."""

import jax
import numpy as np
import pytest

from models import transformer
from tests.decoding.drafters import agreement
from training.evaluation import lossy_quality


def test_nats_are_the_target_s():
    """Of the texts alone, not of their prompts; planted: one token late."""
    lm = agreement.target()
    prompts, texts = [[3, 1], [4, 4, 4, 2]], [[5, 9, 2], [7]]
    run = jax.jit(lambda row: transformer.forward(lm.config, lm.params, row).logits)
    by_hand, late = [], []
    for prompt, text in zip(prompts, texts):
        row = np.asarray([[*prompt, *text]], np.int32)
        logits = np.asarray(run(row))[0].astype(np.float64)
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for i, token in enumerate(text, len(prompt)):
            by_hand.append(-logp[i - 1, token])
            late.append(-logp[i, token])
    nats = lossy_quality.scorer(lm, 8)
    found = [nats(*pair) for pair in zip(prompts, texts)]
    assert found[0] == pytest.approx(sum(by_hand[:3]), rel=1e-4)
    assert found[1] == pytest.approx(by_hand[3], rel=1e-4)
    assert abs(sum(found) - sum(late)) > 0.01


def test_shared_ends_at_the_first_difference():
    assert lossy_quality.shared([1, 2, 9, 4], [1, 2, 3, 4]) == 2  # planted: not 3
    assert lossy_quality.shared([1], [1]) == 1 and lossy_quality.shared([], [1]) == 0
