"""`tiny_diffusion`: its recipe, its first params, and a small run to the end."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from configs.language_models import tiny_diffusion
from decoding import Method, Spec
from models import transformer
from models.errors import ConfigError
from tests.training.runs.test_language_model_run import small, write_texts
from training.evaluation import canvas_quality
from training.runs import diffusion_model, language_model_run

VARIANTS = {
    "": ("shifted", ("bidirectional", "block_causal"), 16, "tiny"),
    "scratch": ("shifted", ("bidirectional", "block_causal"), 16, ""),
    "same": ("same", ("bidirectional", "block_causal"), 16, "tiny"),
    "same_scratch": ("same", ("bidirectional", "block_causal"), 16, ""),
    "bidirectional": ("shifted", ("bidirectional",), 0, "tiny"),
    "block_causal": ("shifted", ("block_causal",), 16, "tiny"),
    "anneal": ("shifted", ("bidirectional", "block_causal"), 16, "tiny"),
}


def small_diffusion(folder, variant="scratch"):
    config = small(folder, tiny_diffusion)
    other = tiny_diffusion.get_config(variant)
    config.start, config.diffusion = other.start, other.diffusion
    config.diffusion.block_size = 4
    config.data.update(tokenizer="", repeat_share=0.0)
    config.data.stages = ((4, 2, 32), (2, 2, 64))
    config.train.rows_at_once = 0
    config.evaluate = other.evaluate
    config.evaluate.update(windows=3, bound_window=24, draws=4, cases=2, span=3)
    config.evaluate.update(prompt_tokens=4, new_tokens=8)
    return config


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_in_what_they_compare(variant):
    """Equal data, steps and shape; planted: the fields of the first one."""
    config, first = (tiny_diffusion.get_config(v) for v in (variant, ""))
    shape = language_model_run.model_config(config)
    found = (shape.alignment, shape.visibility, shape.block_size, config.start)
    assert found == VARIANTS[variant]
    assert (config.data.to_dict(), config.train.to_dict()) == (
        first.data.to_dict(),
        first.train.to_dict(),
    )
    assert (shape.vocab_size, shape.mask_token) == (4097, 4096)
    assert (config.diffusion.anneal > 0) == (variant == "anneal")
    assert (config.name == first.name) == (variant == "")


def test_an_unknown_variant_is_refused():
    with pytest.raises(ConfigError, match="'shift': use one of"):
        tiny_diffusion.get_config("shift")


def test_the_mask_is_the_mean_of_all_tokens():
    """All other logits stay. Planted: a row of zeros."""
    shape = transformer.Config(
        vocab_size=9,
        d_model=8,
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=8,
        d_ff=8,
        max_positions=16,
        ropes=(transformer.rope(8, 100.0),),
        tied=False,
    )
    params = transformer.transformer(shape).init(jax.random.key(0))
    grown = diffusion_model.extended(params)
    for name in ("tokens", "head"):
        rows = params["embedding"][name]
        assert grown["embedding"][name].shape == (10, 8)
        np.testing.assert_allclose(grown["embedding"][name][9], rows.mean(0), rtol=1e-5)
        assert jnp.abs(rows.mean(0)).max() > 0
    more = dataclasses.replace(shape, vocab_size=10)
    tokens = jnp.asarray([[1, 2, 3]])
    plain = transformer.forward(shape, params, tokens).logits
    after = transformer.forward(more, grown, tokens).logits
    np.testing.assert_allclose(after[..., :9], plain, atol=1e-6)


@pytest.mark.long
def test_a_run_and_its_export(tmp_path):
    """A loadable model that decodes, its card, and the same figures when run again."""
    write_texts(tmp_path / "texts")
    config = small_diffusion(tmp_path / "texts")
    figures = language_model_run.run(config, tmp_path / "run")
    bounds = figures["bounds"]
    assert set(bounds) == {"bidirectional", "block_causal"}
    for name, bound in bounds.items():
        assert 0 < bound["nats_per_token"] < 8 and bound["tokens"] == 3 * 24
        assert list(figures["hits"][name]) == ["0.15", "0.5", "0.85"]
    lm = models.load(tmp_path / "run" / "export")
    shape = language_model_run.model_config(config)
    for field in ("mask_token", "visibility", "alignment", "block_size"):
        assert getattr(lm.config, field) == getattr(shape, field)
    for policy in ("recompute", "block_causal"):
        method = Method(
            schedule=(Spec("diffusion/fast_dllm"),), policy=Spec(f"caches/{policy}")
        )
        out = decoding.generate(lm, ["alpha"], method=method, max_new_tokens=8)
        assert len(out.tokens[0]) <= 8 and lm.config.mask_token not in out.tokens[0]
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "bound, block-causal" in card and "trained from scratch" in card
    assert "perplexity" in card and "bits per byte" not in card
    again = language_model_run.run(config, tmp_path / "run")
    assert again["bounds"] == bounds and again["infilling"] == figures["infilling"]


def test_infilling_counts_tokens_in_their_places(monkeypatch):
    """A decoder that copies the last given token. Planted: places that are shifted."""
    windows = [np.array([1, 1, 1, 1, 2, 2, 2]), np.array([3, 3, 3, 4, 3, 3, 3])]
    seen = {}

    def decode(lm, prompts, method, max_new_tokens, suffix=None):
        seen[lm] = (prompts, suffix)
        texts = [[p[-1]] * max_new_tokens for p in prompts]
        return type("Output", (), {"tokens": texts})

    monkeypatch.setattr(decoding, "generate", decode)
    found = canvas_quality.infilling("one", windows, 3, "other")
    assert seen["one"] == ([[1, 1], [3, 3]], [[2, 2], [3, 3]])
    assert seen["other"][1] is None
    assert (found.matched, found.exact, found.ahead) == (4 / 6, 0.0, 4 / 6)
    assert canvas_quality.repetition("one", windows, 2, 5) == 1.0
    windows = [np.roll(window, 1) for window in windows]
    assert canvas_quality.infilling("one", windows, 3).matched != 4 / 6
