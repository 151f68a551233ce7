"""Forms for every verifier, rows that hold, and rows that must not.

Random models of 257 tokens, 3 pairs of laws, 512 verifications of each; a row is within
4 standard errors (5 rows at T = 1: a chance below 10^-3 that one is not), seed 0.
"""

import numpy as np
import pytest

from decoding import base
from decoding.catalogue import Spec
from experiments import run_folder
from experiments.recipes import settings
from experiments.reporting import report
from experiments.studies import verifier_acceptance
from models.errors import ConfigError


@pytest.fixture
def config():
    config = settings.load("configs/studies/verifier_acceptance.py")
    config.tasks, config.prompts, config.prompt_tokens = ("text",), 2, 32
    config.pairs, config.samples = 3, 512
    config.temperatures, config.drafts_a_node = (1.0,), (3,)
    return config


def test_every_lossless_verifier_has_its_forms():
    for name in verifier_acceptance.lossless():
        assert set(verifier_acceptance.FORMS[name]) == set(Spec(name).build({}).draws)


def test_a_run_and_its_report(config, tmp_path, lm, draft):
    config.verifiers = ("verifiers/recursive_rejection",)
    place = run_folder.RunFolder(tmp_path)
    found = verifier_acceptance.run(config, place, lm, draft)
    rows = found["laws"]
    assert len(rows) == 3 and all(r["holds"] for r in rows)
    assert sum(r["kind"] == "mean" for r in rows) == 1  # without replacement, k = 3
    for row in rows:
        assert abs(sum(row["by_rank"]) - row["acceptance"]) < 1e-6
        if row["bound"] is not None:
            assert row["acceptance"] <= row["bound"] + 4 * row["error"]
    made = report.write(place, settings.plain(config), found)
    text = (tmp_path / "report.md").read_text()
    assert "K-SEQ > one draft" not in text  # no row of one draft alone
    assert "without replacement ≥ with, k = 3" in text and len(made["tables"]) == 2
    assert (tmp_path / "figures" / "acceptance_t1.png").exists()
    assert "Accepted and due" in (tmp_path / "report.html").read_text()
    # Finished rows are not measured again.
    config.seed = 1
    assert verifier_acceptance.run(config, place, lm, draft)["laws"] == rows


def test_fault_another_laws_form(config, lm, draft, monkeypatch):
    """Planted: drafts with replacement held against the form of those without."""
    p, q = (x[:, :6] for x in verifier_acceptance.pairs(config, lm, draft))
    cell = verifier_acceptance.Cell("verifiers/recursive_rejection", base.IID, 3, 1.0)
    verifier = Spec(cell.verifier).build({})
    config.samples = 4096
    right = verifier_acceptance.measure(cell, verifier, p, q, config)
    forms = verifier_acceptance.FORMS[cell.verifier]
    monkeypatch.setitem(forms, base.IID, forms[base.NO_REPLACE])
    wrong = verifier_acceptance.measure(cell, verifier, p, q, config)
    assert right["holds"] and not wrong["holds"]


def test_places_are_after_what_was_read(config, lm, draft):
    """The laws at a place do not depend on the tokens from there on."""
    p, _ = verifier_acceptance.pairs(config, lm, draft)
    assert p.shape == (3, 257) and np.isfinite(p).all()


def test_mistakes_are_named(config, lm, draft):
    config.pairs = 10_000
    with pytest.raises(ConfigError, match="places"):
        verifier_acceptance.pairs(config, lm, draft)
    config.temperatures = (0.0,)
    with pytest.raises(ConfigError, match="above 0"):
        verifier_acceptance.table(config)
    config.verifiers = ("verifiers/greedy",)
    config.temperatures = (1.0,)
    with pytest.raises(ConfigError, match="no closed form"):
        verifier_acceptance.table(config)
