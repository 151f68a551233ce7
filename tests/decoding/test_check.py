"""`python -m decoding.check`: the example packages pass, faulty copies of them fail."""

import subprocess
import sys

import pytest

from decoding import Spec, check
from decoding.conformance import drafters, faults, kit
from models.errors import MethodError
from tests.decoding import examples

SAMPLER, DRAFTER = "own_sampler.sampler", "own_drafter.drafter"


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    for folder in examples.FOLDERS:
        monkeypatch.syspath_prepend(str(folder))


def test_the_sampler_holds(capsys):
    assert check.main([f"{SAMPLER}(margin=1.5)"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("ok ") == len([*check.contracts(Spec(SAMPLER))])
    assert "every contract of transforms holds" in printed


def test_faulty_samplers_fail_in_the_named_contract(tmp_path, monkeypatch, capsys):
    """Planted: one forgets the dtype, one has no cost and shapes its program by data.

    All broken contracts are printed, not the first alone.
    """
    source = (examples.FOLDERS[0] / "own_sampler" / "sampler.py").read_text()
    half = source.replace(
        "return vocab.keep(logits, near)",
        'return vocab.keep(logits, near).astype("bfloat16")',
    ).replace("Cost: one maximum over V.", "")
    constant = source.replace("best - state.row.margin", "best - margin")
    assert half != source and constant != source
    (tmp_path / "half_sampler.py").write_text(half)
    (tmp_path / "constants.py").write_text(constant)
    (tmp_path / "faulty").mkdir()
    (tmp_path / "faulty" / "__init__.py").touch()
    for name in ("half_sampler", "constants"):
        (tmp_path / f"{name}.py").rename(tmp_path / "faulty" / f"{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check.main(["faulty.half_sampler"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  is complete" in printed and "add a line 'Cost: ...'" in printed
    assert "FAIL  walks" in printed and "apply returns bfloat16" in printed
    assert "must hold: " in printed and "broken" in printed
    assert check.main(["faulty.constants"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("FAIL") == 1 and "FAIL  numbers share a program" in printed


def test_the_drafter_keeps_the_text():
    (method,) = kit.cases_of(DRAFTER, length=3).values()
    drafters.sampled_text_is_plain(method)
    with faults.planted(Spec(DRAFTER), faults.keeps_a_slot_too_many):
        with pytest.raises(AssertionError, match="not plain's text"):
            drafters.sampled_text_is_plain(method)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        DRAFTER,
        "drafters/prompt_lookup",
        "topologies/static",
        "verifiers/recursive_rejection",
        "caches/dense",
        "exits/specee",
        "constraints/regex",
    ],
)
def test_methods_hold(name, capsys):
    """A file of each role, in another process where it is a package's."""
    assert check.main([name]) == 0, capsys.readouterr().out


@pytest.mark.long
def test_the_command(tmp_path):
    """From the package's folder, as its README would have it."""
    command = [sys.executable, "-m", "decoding.check", SAMPLER]
    done = subprocess.run(
        command, cwd=examples.FOLDERS[0], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["own_sampler.sampler(depth=2)"], "no argument 'depth'"),
        (["own_sampler.absent"], "install its package"),
        (["drafters/token_recycle"], "use one of"),
        (["top_q"], "did you mean 'transforms/top_"),
        (["json"], "'json' is no method name"),
    ],
)
def test_bad_names(arguments, words, capsys):
    assert check.main(arguments) in (1, 2)
    assert words in capsys.readouterr().out


def test_usage(capsys):
    assert check.main([]) == 2 and check.main(["--help"]) == 0
    assert "python -m decoding.check" in capsys.readouterr().out
    with pytest.raises(MethodError, match="'diffusion/none'"):
        next(check.contracts(Spec("diffusion/none")))
