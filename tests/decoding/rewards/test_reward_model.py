"""decoding/rewards/reward_model.py: a model's score at the last token, and its file.

A checkpoint for sequence classification is written and read again; transformers reads
the same file, where it is installed (tests/models/checkpoints).
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding import Method, Spec
from decoding.conformance import kit, rewards
from models import transformer
from models.base import causal_block
from models.errors import ConfigError, MethodError
from models.transformer import config as configs

SEARCH = Spec("search/best_of_n", samples=4)
CONFIG = transformer.Config(
    vocab_size=kit.VOCAB,
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=24,
    max_positions=128,
    ropes=(configs.rope(8, 10_000.0),),
    tied=False,
    labels=1,
)


def scorer():
    model = transformer.transformer(CONFIG)
    return models.Loaded(model, model.init(jax.random.key(3)), None)


def by_hand(lm, prompts, texts) -> list[float]:
    """One block over all whole texts."""
    whole = [[*prompt, *text] for prompt, text in zip(prompts, texts)]
    tokens = jnp.asarray([(text + [0] * kit.SIZE)[: kit.SIZE] for text in whole])
    sizes = jnp.asarray([len(text) for text in whole])
    cache = lm.model.init_cache(len(whole), kit.SIZE, jnp.float32)
    block = causal_block(tokens, 0 * sizes, sizes, cache.size, "all")
    logits = jax.jit(lambda *call: lm.model(*call)[0].logits)(lm.params, cache, block)
    return jnp.take_along_axis(logits[..., 0], sizes[:, None] - 1, 1)[:, 0].tolist()


def test_the_score_of_the_last_token():
    found = rewards.values(Spec("rewards/reward_model"), reward=(lm := scorer()))
    np.testing.assert_allclose(found, by_hand(lm, kit.PROMPTS, rewards.TEXTS), 2e-4)
    cut = [text[:-1] for text in rewards.TEXTS]
    planted = by_hand(lm, kit.PROMPTS, cut)  # the token before it
    assert not np.allclose(found, planted, 1e-2)


def test_a_checkpoint_is_written_and_read(tmp_path):
    lm = scorer()
    models.save(lm, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    read = models.load(str(tmp_path))
    assert read.config.labels == 1
    np.testing.assert_array_equal(
        read.params["embedding"]["head"], lm.params["embedding"]["head"]
    )
    assert by_hand(read, [[1]], [[2, 3]]) == by_hand(lm, [[1]], [[2, 3]])
    # Planted: two labels are no reward.
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": None}))
    with pytest.raises(ConfigError, match="of 2 labels: use a classifier of one label"):
        models.load(str(tmp_path))


def test_best_of_n_by_a_model():
    """The best text of each prompt's samples, by the model's scores of all of them."""
    lm = scorer()
    method = Method(search=SEARCH, rewards=(Spec("rewards/reward_model"),))
    fields = {"max_new_tokens": 8, "n": 4, "seed": 0}
    call = (kit.TARGET, kit.PROMPTS)
    every = decoding.generate(*call, "plain", temperature=0.9, **fields)
    out = decoding.generate(
        *call, method, temperature=0.9, drafts={"reward": lm}, **fields
    )
    prompts = [prompt for prompt in kit.PROMPTS for _ in range(4)]
    flat = [text for texts in every.tokens for text in texts]
    each = np.asarray(by_hand(lm, prompts, flat)).reshape(-1, 4)
    for values, texts, best, scores in zip(each, every.tokens, out.tokens, out.scores):
        order = np.argsort(-values, kind="stable")
        assert best == [texts[i] for i in order]
        np.testing.assert_allclose(scores, np.sort(values)[::-1], 2e-4)


def test_refuses():
    head = {"reward": kit.value_head()}
    method = Method(search=SEARCH, rewards=(Spec("rewards/reward_model"),))
    with pytest.raises(MethodError, match="is no model"):
        decoding.generate(kit.TARGET, kit.PROMPTS, method, 4, 0.9, drafts=head)
    lm = scorer()
    with pytest.raises(MethodError, match="head of a classifier"):
        decoding.generate(lm, [[1]], "plain", 4)
    wide = dataclasses.replace(CONFIG, vocab_size=kit.VOCAB + 1)
    other = models.Loaded(transformer.transformer(wide), lm.params, None)
    with pytest.raises(MethodError, match="vocabulary of 9"):
        decoding.generate(
            kit.TARGET, kit.PROMPTS, method, 4, 0.9, drafts={"reward": other}
        )
