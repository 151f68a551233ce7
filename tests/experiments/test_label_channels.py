"""The command that orders label channels."""

import jax.numpy as jnp
import numpy as np
import pytest

import models
from decoding.cache_reading import label_channels
from decoding.conformance import peaked
from experiments import label_channels as command
from models.transformer.layer import Layer
from models.transformer.modules import rotations


def test_windows():
    texts = [[1] * 3, [2] * 4, [3] * 5]
    assert command.windows(texts, 5, 9).tolist() == [[1, 1, 1, 2, 2], [2, 2, 3, 3, 3]]
    assert command.windows(texts, 5, 1).tolist() == [[1, 1, 1, 2, 2]]
    assert command.windows([[1]], 5, 1).shape == (0, 5)


@pytest.mark.parametrize("by", command.BY)
def test_importance_of_the_first_layer(by):
    """Of every token, the sum over a group's heads; planted: keys for queries."""
    lm = peaked.model()
    tokens = np.random.default_rng(0).integers(0, 7, (3, 12)).astype(np.int32)
    found = command.importance(lm, tokens, by)[0]
    layer = Layer(lm.config)
    at = jnp.arange(12)[None]
    parts = {"q": [], "k": [], "qk": []}
    for row in tokens:
        x = lm.model.embed(lm.params, jnp.asarray(row[None]), at)
        spun = rotations(lm.config, at, 12)[0]
        own = {"params": lm.params["layer_0"]}
        q, k, _ = layer.apply(own, x, spun, method="project")
        q, k = np.abs(q[0]), np.abs(k[0])[:, :, None]
        parts["q"].append(q.mean(0).sum(1))
        parts["k"].append(k.mean(0).sum(1))
        parts["qk"].append((q * k).mean(0).sum(1))
    want = {name: np.mean(x, 0) for name, x in parts.items()}
    np.testing.assert_allclose(found, want[by], rtol=1e-4)
    other = {"q": "k", "k": "q", "qk": "q"}[by]
    assert np.abs(found - want[other]).max() > 0.1


def test_a_command_line(tmp_path, capsys):
    text, out = tmp_path / "text.txt", tmp_path / "channels.json"
    text.write_text("def f(x):\n    return x + 1\n" * 40)
    flags = ["--model=tiny", f"--data={text}", f"--out={out}", "--window=32"]
    assert command.main([*flags, "--windows=2"]) == 0
    lm = models.load("tiny")
    width = lm.config.head_dim // 4
    table = label_channels.of_model(lm.config, str(out), width)
    assert table.shape == (lm.config.n_layers, lm.config.n_kv_heads, width)
    assert "2 windows read" in capsys.readouterr().out
    assert command.main(["--model=tiny"]) == 2
    assert command.main([*flags, "--windows=0"]) == 2
