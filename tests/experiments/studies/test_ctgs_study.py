"""The stage `ctgs`: what passes, what filters leave of a law, and its tables."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.studies import ctgs, sampler_texts
from models.errors import ConfigError

SPELLED = [b"the", b" cat", b"", b"\xc3", b"\xa9"]
NO_E = {"filters": {"banned": ("e",)}}
LM = types.SimpleNamespace(
    tokenizer=types.SimpleNamespace(token_bytes=lambda: SPELLED),
    config=types.SimpleNamespace(vocab_size=5, eos=(2,)),
    params=None,
)


def test_what_passes():
    """Planted: a letter that two tokens spell is banned in the text alone."""
    inside = ctgs.allowed(LM, NO_E)
    assert inside.tolist() == [False, True, True, False, False]
    holds = lambda text, arm, inside: ctgs.holds(text, SPELLED, arm, inside, [2])
    assert holds([1, 1, 2], NO_E, inside) and not holds([1, 0], NO_E, inside)
    every, accent = np.ones(5, bool), {"filters": {"banned": ("é",)}}
    assert holds([3, 1], accent, every) and not holds([3, 4], accent, every)


def test_laws_by_hand(monkeypatch):
    """A law of (0.5, 0.3, 0.2) at each place; planted: other tokens are allowed."""
    law = np.log([0.5, 0.3, 0.2])
    logits = jnp.asarray(np.tile(law, (1, 4, 1)))
    read = lambda params, tokens: types.SimpleNamespace(logits=logits)
    monkeypatch.setattr(sampler_texts, "forward", lambda config: read)
    config = types.SimpleNamespace(
        prompt_tokens=2, max_new_tokens=2, top_k=1, top_p=0.6
    )
    row = lambda *inside: ctgs.text_laws(LM, [0, 1], [1, 2], np.array(inside), config)
    got = row(False, True, True)
    assert got["nats"] == pytest.approx(-np.log([0.3, 0.2]).mean(), rel=1e-5)
    assert got["mass"] == pytest.approx(np.log(0.5), rel=1e-5)
    assert (got["top_k"], got["top_p"]) == (2, 0)  # the nucleus holds the second
    assert row(False, False, True)["top_p"] == 2
    assert row(True, True, True)["mass"] == pytest.approx(0, abs=1e-6)


def test_tables_by_hand():
    row = lambda arm, nats, masked: {
        "arm": arm,
        "tokens": 9,
        "nats": nats,
        "masked": masked,
        "emptied": {"top_k": [0, 1], "top_p": [2, 0]},
        "steps": [4, 4],
        "valid": {"no_e": [True, False]},
        "repeated": [0.0, 0.0],
    }
    rows = [row("plain", [1.0, 2.0], [1.0, 2.0]), row("no_e", [2.0, 4.0], [1.0, 3.0])]
    line = ctgs.texts_table(rows)["lines"][1]
    assert line[2:4] == ["1/2", "1/2"] and line[5] == "1.500 ± 0.500"
    assert line[7] == "1.000 ± 0.000"
    (cells,) = ctgs.truncation_table(rows)["lines"]
    assert cells == ["no_e", "8", "0.125", "0.250", "0.500"]


def test_the_plain_arm_is_needed(tmp_path):
    c = settings.load("configs/studies/ctgs.py")
    c.arms = {"no_e": NO_E}
    with pytest.raises(ConfigError, match="needs 'plain'"):
        ctgs.run(c, RunFolder(tmp_path), LM)


@pytest.mark.long
def test_stage(tmp_path):
    """On the shipped model: every text passes, and the filtered law is likelier."""
    c = settings.load("configs/studies/ctgs.py")
    c.update(prompts=6, prompt_tokens=48, max_new_tokens=24)
    c.arms = {name: c.arms[name] for name in ("plain", "no_e")}
    report = ctgs.run(c, RunFolder(tmp_path))
    line = next(x for x in report["tables"][0]["lines"] if x[0] == "no_e")
    assert line[2] == "6/6" and float(line[7].split()[0]) > 0
