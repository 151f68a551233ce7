"""`width` through the public surface: the same texts, and times that are kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

import decoding
from decoding import Method, compose
from decoding.block_width import tuning
from decoding.conformance import kit
from decoding.loops import engines
from models import compile_cache
from models.errors import MethodError
from tests.conformance.test_widths import LAWFUL

HEATS = (0.0, 0.8, 0.8, 0.0)  # greedy rows and sampled ones, one program for both
LOOKUP = Method(kit.spec("drafters/prompt_lookup"))
RECYCLING = Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(tuning, "_MEASURED", {})
    monkeypatch.setattr(tuning, "_CORRECTED", {})
    monkeypatch.setattr(tuning, "_LEARNED", {})
    monkeypatch.setattr(tuning, "REPEATS", 1)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("method", [LOOKUP, RECYCLING], ids=["lookup", "recycling"])
@pytest.mark.parametrize("temperature", [HEATS, 0.0], ids=str)
def test_text_does_not_depend_on_the_width(cache, method, temperature):
    """Planted: plain decoding's of another seed."""
    texts = {
        width: kit.generate(method, temperature, width=width).tokens
        for width in ("paper", "auto", 99, 2, 1)
    }
    plain = kit.generate(Method(), temperature).tokens
    assert all(text == plain for text in texts.values())
    if temperature:
        assert plain != kit.generate(Method(), temperature, seed=1).tokens


def believe(monkeypatch, slope):
    """Let a block of n nodes cost 1 + slope * n plain rounds; nothing is measured."""

    def measure(engine, params, parts, *sizes):
        widths = list(parts.program.widths)
        block = [1 + slope * width for width in widths]
        return {"widths": widths, "plain": 1.0, "block": block, "level": 0.0}

    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(tuning, "_read", lambda file: None)
    for known in ("_MEASURED", "_CORRECTED", "_LEARNED"):
        monkeypatch.setattr(tuning, known, {})


@pytest.mark.long
@pytest.mark.parametrize("method", LAWFUL.values(), ids=LAWFUL)
@pytest.mark.parametrize("batch", [1, 8])
def test_no_drafter_s_text_depends_on_the_width(cache, monkeypatch, method, batch):
    """Greedily and at T = 0.8; ragged prompts, two texts after each of the four.

    "auto" believes in blocks that are free, that cost by their nodes, and that never
    pay: one program chooses wide blocks, narrow ones and pauses.
    """
    prompts = kit.PROMPTS[:1] if batch == 1 else kit.PROMPTS
    settings = {"prompts": prompts, "n": batch // len(prompts)}
    for temperature in (0.0, 0.8):
        plain = kit.plain(method, temperature, **settings)
        if temperature:  # planted: another seed
            assert kit.plain(method, temperature, **settings, seed=1) != plain
        for width in ("paper", 1):
            out = kit.generate(method, temperature, width=width, **settings)
            assert out.tokens == plain, (temperature, width)
        for slope in (0.0, 0.2, 9.0):
            believe(monkeypatch, slope)
            out = kit.generate(method, temperature, width="auto", **settings)
            assert out.tokens == plain, (temperature, slope)


def test_times_are_measured_once(cache, monkeypatch):
    """Kept in the process, then in a file; `tune` measures anew."""
    measured = []
    sound = tuning.measure

    def measure(*arguments):
        measured.append(arguments)
        return sound(*arguments)

    monkeypatch.setattr(tuning, "measure", measure)
    for _ in range(2):
        kit.generate(LOOKUP, 0.8, width="auto")
    assert len(measured) == 1
    (file,) = (cache / "rounds").glob("*.json")
    kept = json.loads(file.read_text())
    assert len(kept["block"]) == len(kept["widths"]) and min(kept["block"]) > 0
    monkeypatch.setattr(tuning, "_MEASURED", {})
    kit.generate(LOOKUP, 0.8, width="auto")
    assert len(measured) == 1
    file.write_text("{")  # of a process that was stopped
    monkeypatch.setattr(tuning, "_MEASURED", {})
    kit.generate(LOOKUP, 0.8, width="auto")
    assert len(measured) == 2
    sizes = {"prompt_tokens": 3, "max_new_tokens": 9, "temperature": 0.8}
    costs = decoding.tune(kit.TARGET, LOOKUP, batch=2, **sizes)
    assert len(measured) == 3
    assert costs.plain > 0 and np.shape(costs.block) == np.shape(kept["block"])


def test_times_of_a_method_that_was_changed_are_not_read(cache):
    """Of one that could not pause no round without a draft was measured."""
    parts = compose.compose(LOOKUP, kit.TARGET, 0.8, width="auto")
    drafter = parts.program.drafter._replace(pauses=False)
    changed = replace(parts, program=replace(parts.program, drafter=drafter))
    file = tuning._file(parts, 1, 64)
    assert file == tuning._file(parts, 1, 64) != tuning._file(changed, 1, 64)


@pytest.mark.parametrize(
    ("width", "message"),
    [
        ("atuo", "did you mean 'auto'"),
        (2.5, "or a number of nodes"),
        (0, "use 1 or more"),
    ],
)
def test_a_width_that_is_none(width, message):
    with pytest.raises(MethodError, match=message):
        kit.generate(LOOKUP, width=width)


def test_a_lossy_method_keeps_its_own_width():
    """Its text depends on the width; a number is refused."""
    verifier = kit.spec("verifiers/typical_acceptance")
    arguments = (replace(LOOKUP, verifier=verifier), kit.TARGET, 0.8)
    parts = compose.compose(*arguments, width="auto")
    assert parts.program.widths == (parts.program.drafter.nodes,)
    assert tuning.costs_of(engines.engine(parts), {}, parts, 1, 64) is None
    with pytest.raises(MethodError, match="LOSSY"):
        compose.compose(*arguments, width=2)


def test_plain_decoding_has_no_widths():
    with pytest.raises(MethodError, match="no widths to measure"):
        decoding.tune(kit.TARGET, "plain", prompt_tokens=3, max_new_tokens=9)
