"""The stage `diffusion`: what it refuses, its problems, and a run that is killed."""

import types

import numpy as np
import pytest

from configs.studies import diffusion as recipe
from decoding.conformance import kit
from experiments.run_folder import RunFolder
from experiments.studies import diffusion as study
from models.errors import ConfigError, MethodError
from models.synthetic import toy, toy_masked

VOCAB = 5


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def loaded(model, params):
    return types.SimpleNamespace(
        model=model, params=params, config=model.config, tokenizer=None
    )


def given() -> study.Given:
    """A toy canvas model, a toy target of its tokens, and problems by hand."""
    model = loaded(*toy_masked.model(VOCAB + 1, scale=2.0))
    target = loaded(*toy.model(VOCAB))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (3, 7)]
    holes = [study.Problem(p, 3, [1, 2], (4, 0, 3)) for p in prompts]
    texts = [study.Problem(p, 8) for p in prompts]
    return study.Given(model, target, {"code": texts, "infilling": holes})


def small():
    c = config(tasks=("code", "infilling"), prompts=2, batches=(1, 2), alone=1)
    caches = {"caches": ("recompute", "dual")}
    arms = [a for a in c.arms if a["name"] in ("1 a step", "FreeDave, 1 a step")]
    c.arms = tuple({**arm, **caches} for arm in arms)
    return c


def test_the_recipe_is_whole(tmp_path):
    """Every part and every schedule on a canvas is measured, under each cache."""
    c = recipe.get_config()
    study.check(c)
    every = study.cells(c)
    assert len({cell.key for cell in every}) == len(every)
    caches = {cell.cache for cell in every} - {""}
    assert caches == {"recompute", "prefix", "dual", "dkv", "block_causal"}
    RunFolder(tmp_path).claim(c)


ARM = {"name": "1 a step", "schedule": ("diffusion/llada",)}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tasks": ("prose",)}, "use some of"),
        ({"prompts": 0}, "use at least 1"),
        ({"batches": (3,)}, "each divides"),
        ({"reference": "none"}, "is one of them"),
        ({"arms": (ARM, ARM)}, "must differ"),
        ({"arms": (ARM, {**ARM, "name": "x", "texts_of": "y"})}, "not measured"),
        ({"arms": ({**ARM, "caches": ("dual",)},)}, "needs recompute"),
    ],
)
def test_what_cannot_run_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        study.check(config(**fields))


def test_a_part_that_does_not_exist():
    with pytest.raises(MethodError):
        study.check(config(arms=({**ARM, "caches": ("recompute", "dual_cache")},)))


def test_models_of_the_wrong_kind_are_refused(monkeypatch):
    own = given()
    kinds = {"canvas": own.model, "text": own.target}
    monkeypatch.setattr(study.models, "load", kinds.__getitem__)
    with pytest.raises(ConfigError, match="no mask token"):
        study.loaded(config(model="text", target="text"))
    with pytest.raises(ConfigError, match="is a diffusion model"):
        study.loaded(config(model="canvas", target="canvas"))


def test_the_copy_that_is_asked_for():
    """Planted: another name in the request is another copy."""

    class Letters:
        encode = staticmethod(lambda text: [ord(c) for c in text])
        decode = staticmethod(lambda ids: "".join(map(chr, ids)))

    lm = types.SimpleNamespace(tokenizer=Letters())
    passage = "total = 0\nfor x in rows:\n    total += x\n"
    ask = "\n# The same, with total renamed to total2:\n\n"
    right = passage.replace("total", "total2")
    prompt = Letters.encode(passage + ask + right[:16])
    assert Letters.decode(study.edited(lm, prompt)) == right[16:]
    wrong = Letters.encode(passage + ask.replace("2", "3") + right[:16])
    assert study.edited(lm, wrong) == ()


def test_bits_are_the_target_s():
    """By table look-up. Planted: without the prompt the law is another."""
    target, prompt, text = given().target, [1, 2], [0, 3, 4]
    laws = [toy.law(target.params, [*prompt, *text[:i]]) for i in range(3)]
    wanted = -sum(np.log2(law[token]) for law, token in zip(laws, text))
    found = study.bits(target, [prompt, [1]], [text, text])
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
    assert abs(found[1] - wanted) > 1e-3


@pytest.mark.long
def test_a_run_resumes_and_counts(tmp_path, monkeypatch):
    """Rows that are stored are not measured again; a batch changes no text."""
    c, store, sound = small(), RunFolder(tmp_path), study.written
    left = [5]

    def killed(*about):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return sound(*about)

    monkeypatch.setattr(study, "written", killed)
    with pytest.raises(KeyboardInterrupt):
        study.run(c, store, given())
    pieces = lambda: {p.name: p.read_bytes() for p in (tmp_path / "rows").glob("*")}
    before = pieces()
    assert len(before) == 5
    left[0] = len(study.cells(c)) - 5
    found = study.run(c, store, given())
    assert left[0] == 0 and before.items() <= pieces().items()
    every = {cell: store.get("rows", cell.key) for cell in study.cells(c)}
    for cell, row in every.items():
        assert row["texts"] == every[cell._replace(batch=2)]["texts"][: cell.batch]
        if cell.arm == "1 a step":
            assert row["calls"] == [len(text) for text in row["texts"]]
        if cell.arm == study.AUTOREGRESSIVE and cell.temperature == 0:
            made = given()
            for problem, text in zip(made.problems[cell.task], row["texts"]):
                about = (made.target.params, problem.prompt, len(text), ())
                assert text == kit.greedy_by_hand(*about)
    verified = next(t for t in found["tables"] if t["title"] == "Draft and verify")
    assert [line[2] for line in verified["lines"]] == ["12 of 12"] * 2
    assert all(line[3] == "0" for line in verified["lines"])
