"""The stage `adadec_threshold`: what it reads, compares and reports."""

import functools
import pathlib

import jax
import numpy as np
import pytest

import models
from configs.predictors import adadec
from decoding import Method, Spec
from decoding.conformance import kit
from experiments import stage
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.trainings import adadec_threshold
from models import transformer
from models.errors import DataError
from tests.training.small_trainings import corpus  # noqa: F401

MODEL = "tiny-draft"  # its programs are smaller than those of `tiny`


@functools.cache
def forward(name: str):
    config = models.load(name).config
    return jax.jit(lambda params, ids: transformer.forward(config, params, ids).logits)


def recipe(source: str):
    c = adadec.get_config()
    c.model = MODEL
    c.data.update(source=source, tokens=600, window=128)
    c.evaluate.update(prompts=30, prompt_tokens=16, batch=8)
    return c


def test_every_token_is_read_once(corpus, tmp_path):  # noqa: F811
    """Under the laws of whole documents; planted: laws of the token before."""
    lm = models.load("tiny")
    c = recipe(corpus)
    c.data.window = 2048
    tokens = adadec_threshold.read(c, lm, tmp_path)
    assert len(tokens.entropy) == len(tokens.best) == 600
    text = (pathlib.Path(corpus) / "validation" / "0.py").read_text()
    ids = np.array([[*lm.config.eos[:1], *lm.tokenizer.encode(text)]])[:, :401]
    logits = np.float64(forward("tiny")(lm.params, ids)[0, :-1])
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    entropy = -(chances * np.log(chances)).sum(-1)
    np.testing.assert_allclose(tokens.entropy[:400], entropy, rtol=1e-3, atol=1e-4)
    best = logits.argmax(-1) == ids[0, 1:]
    assert (tokens.best[:400] == best).all()
    assert not np.allclose(tokens.entropy[1:401], entropy, rtol=1e-3, atol=1e-4)
    assert (tokens.best[1:401] != best).any()
    c.data.window = 128  # context of 32 to 127 tokens
    shorter = adadec_threshold.read(c, lm, tmp_path)
    assert len(shorter.entropy) == 600
    assert np.abs(shorter.entropy - tokens.entropy).mean() < 0.2


def choices(c, lm, prompts, threshold=0.0) -> list[int]:
    """The first tokens of a search that pauses from `threshold` nats on.

    By the program of `compared`: 8 prompts of 16 tokens.
    """
    about = {"beams": c.evaluate.beams, "lookahead": c.evaluate.lookahead}
    method = Method(search=Spec("search/adadec", threshold=threshold, **about))
    tokens = []
    for part in adadec_threshold.batches(np.asarray(prompts), 8):
        asked = {"lm": lm, "prompts": part.tolist(), "max_new_tokens": 6}
        tokens += [text[0] for text in kit.generate(method, **asked).tokens]
    return tokens[: len(prompts)]


def test_choices_at_pauses(corpus, tmp_path, monkeypatch):  # noqa: F811
    """Each by a forward pass and a search; planted: a search that never pauses."""
    lm, c = models.load(MODEL), recipe(corpus)
    c.seed = 3  # places at which the look-ahead changes a choice
    places = [
        ids[i - 16 : i + 1]
        for ids, _ in adadec_threshold.texts(c, lm, tmp_path)
        for i in range(16, len(ids))
    ]
    order = np.random.default_rng(c.seed).permutation(len(places))[:30]
    rows = [places[i] for i in order]
    laws = np.float64(forward(MODEL)(lm.params, np.stack(rows)[:, :-1])[:, -1])
    chances = [np.exp(law - law.max()) for law in laws]
    chances = [p / p.sum() for p in chances]
    entropy = np.array([-(p * np.log(p)).sum() for p in chances])
    theta = float(np.median(entropy))
    asked = [row for row, h in zip(rows, entropy) if h >= theta]
    own = choices(c, lm, [row[:-1] for row in asked])
    true = [row[-1] for row in asked]
    best = [p.argmax() for p, h in zip(chances, entropy) if h >= theta]
    share = lambda a, b: float(np.mean([x == y for x, y in zip(a, b)]))
    found = adadec_threshold.compared(c, lm, tmp_path, theta)
    assert found["places"] == 30 and found["pauses"] == len(asked) == 15
    assert found["changed"] == pytest.approx(1 - share(own, best))
    assert found["greedy"] == pytest.approx(share(best, true))
    assert found["search"] == pytest.approx(share(own, true))
    assert 0 < found["changed"]
    with monkeypatch.context() as patch:
        never = lambda name, **known: Spec(name, **{**known, "threshold": np.inf})
        patch.setattr(adadec_threshold.decoding, "Spec", never)
        assert adadec_threshold.compared(c, lm, tmp_path, theta)["changed"] == 0
    c.evaluate.prompts = 10**6
    with pytest.raises(DataError, match=r"evaluate\.prompts=1000000"):
        adadec_threshold.compared(c, lm, tmp_path, theta)


def test_the_stage(corpus, tmp_path):  # noqa: F811
    """A report with the threshold as the search takes it; a restart reads nothing."""
    c = recipe(corpus)
    folder = RunFolder(tmp_path)
    found = adadec_threshold.run(c, folder)
    trained = found["trained"]
    assert trained["tokens"] == [480, 120] and trained["weight"] < 0
    report.write(folder, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    use = f'Spec("search/adadec", threshold={trained["threshold"]:.3f})'
    assert use in text and "Tokens by entropy" in text
    theta = trained["threshold"]
    assert len(choices(c, models.load(MODEL), [[*range(2, 18)]] * 8, theta)) == 8
    c.data.source = "nowhere"
    assert adadec_threshold.run(c, folder)["trained"] == trained
    assert stage.find("adadec_threshold") is adadec_threshold.STAGE
