"""Every drafter, with every topology it takes, on the shipped models: plain's text.

Static trees by another name (`kit.SHAPES`) meet the draft model alone.

The toy models of the other tests are exact, so that their texts are compared bit for
bit; here blocks of several widths round, and a first difference must be a rounding tie
(experiments/measurement/identity.py). With all static trees they took 70 minutes:
`pytest -m long tests/conformance/test_shipped_models.py`.
"""

import dataclasses
import functools

import pytest

import models
from decoding import Method, Spec, catalogue, compose
from decoding.conformance import kit, toy_heads
from decoding.tree_building import tables
from experiments.measurement import measured_row
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case
from experiments.prompts import builtin_tasks
from models import transformer
from models.errors import MethodError
from models.predictors import acceptance_predictor, exit_predictor
from training.runs import diffusion_model

TEMPERATURE, SEED, NEW = 0.8, 5, 24
LENGTHS = (1, 5, 9, 17, 24, 31, 40, 48)  # of the prompts, ragged

# Arguments that are about the toy model's eight tokens.
OWN = {"drafters/foreal": {"length": 3, "lead": 2, "gate": 0.5, "terminators": "\n"}}

# Drafters without a state for each node, which topologies that watch states refuse.
STATELESS = (
    *("chimera", "falcon", "hidden_transfer", "hydra", "medusa", "ppd", "oracle"),
    *("dflash", "dflash2", "domino", "treeflash", "p_eagle", "masked_diffusion"),
)
# Those with the laws of all depths at once, whose trees come from a table.
TABLED = ("dflash", "dflash2", "dspark", "treeflash", "medusa", "p_eagle")
RATED = ("dspark",)  # whose heads rate their drafts
WIDER = {"drafters/fspad": 2}  # a node's feature beside its token's embedding
MORE = {"drafters/dspark": toy_heads.BLOCKS["dspark"]["rank"]}  # of a token's row


def spec(name: str) -> Spec:
    return kit.spec(name, **OWN.get(name, {}))


def pairs() -> dict[str, Method]:
    """A name and a method for every drafter and every topology it takes."""
    found = {}
    for name in kit.drafters():
        short = name.split("/")[1]
        if "topology" not in Spec(name).card.needs:
            found[short] = Method(spec(name))
            continue
        for grown in catalogue.names("topologies"):
            if grown in kit.SHAPES and name != "drafters/model":
                continue  # a static tree by another name
            method = Method(spec(name), topology=spec(grown))
            found[f"{short}-{grown.split('/')[1]}"] = method
    for name in catalogue.names("exits"):
        found[name.split("/")[1]] = Method(exit=spec(name))
    return found


@functools.cache
def bench(batch: int) -> Bench:
    lm = models.load("tiny")
    return Bench(lm, {}, max(LENGTHS), NEW, batch)


@functools.cache
def prompts() -> list[list[int]]:
    """Eight beginnings of held-out code."""
    found = builtin_tasks.build(bench(8).lm, ("code",), len(LENGTHS), max(LENGTHS))[
        "code"
    ]
    return [row[:n] for row, n in zip(found, LENGTHS, strict=True)]


@functools.cache
def beside(need: str, part: str):
    """A model that a method needs: the shipped draft, or random heads."""
    lm, drafts = bench(8).lm, "draft" in Spec(part).card.needs
    if need == "draft" and Spec(part).card.family == compose.MASKED_DRAFT:
        return masked()
    if need == "draft":
        return models.load("tiny-draft")
    if need == "heads":
        return toy_heads.heads(part, lm)
    if need == "exits":
        return exit_predictor.init(kit.jax.random.key(9), lm.config.n_layers, 3, 8)
    watched = models.load("tiny-draft") if drafts else lm  # whose states it reads
    width = watched.config.d_model * WIDER.get(part, 1) + MORE.get(part, 0)
    return acceptance_predictor.init(kit.jax.random.key(8), width)


@functools.cache
def masked():
    """`tiny` with a row for the mask, untrained, as a diffusion model."""
    lm = bench(8).lm
    size = lm.config.vocab_size
    config = dataclasses.replace(
        lm.config,
        vocab_size=size + 1,
        mask_token=size,
        visibility=("block_causal",),
        alignment="shifted",
        block_size=8,
    )
    params = diffusion_model.extended(lm.params)
    return models.Loaded(transformer.transformer(config), params, lm.tokenizer)


def needed(method: Method) -> dict:
    """Every model beside the target that the method needs, heads if they are its own.

    Heads that a topology alone needs are nobody's.
    """
    own = method.exit or method.drafter
    needs = [n for n in method.needs if n in ("draft", "exits", "acceptance")]
    needs += ["heads"] * ("heads" in own.card.needs)
    return {need: beside(need, own.name) for need in needs}


@functools.cache
def plain(batch: int):
    return bench(batch).once(Case(Method(), TEMPERATURE), given(batch), SEED)


def given(batch: int) -> list[list[int]]:
    return prompts() if batch > 1 else prompts()[-2:]


def identical(method: Method, batch: int) -> bool | None:
    """Whether the texts of a batch are plain's; None where that is not promised."""
    own = bench(batch).beside(bench(batch).lm, **needed(method))
    reference = Case(Method(), TEMPERATURE)
    run = own.once(Case(method, TEMPERATURE), given(batch), SEED)
    cell = Cell("method", method, "code", TEMPERATURE, SEED, batch)
    found = measured_row.identical(
        own, cell, reference, run, plain(batch), given(batch)
    )
    assert found["identical_to_plain"] is None or found["compared_tokens"] > 0
    return found["identical_to_plain"]


def refused(name: str) -> str:
    """Return what a pair is refused with; "" where it decodes."""
    drafter, _, grown = name.partition("-")
    if grown == "specdec_pp" and drafter in STATELESS:
        return "watches the states"
    if grown and drafter not in TABLED:
        if Spec(f"topologies/{grown}").card.family == tables.FAMILY:
            return "laws of all"
    if grown == "confidence_schedule" and drafter not in RATED:
        return "confidence head|watches the states"
    return ""


@pytest.mark.long
@pytest.mark.parametrize("name", pairs())
def test_text_is_plain_on_tiny(name):
    """Alone and in a ragged batch of eight; a method that is LOSSY promises nothing."""
    method = pairs()[name]
    if words := refused(name):
        with pytest.raises(MethodError, match=words):
            identical(method, 1)
        return
    promised = all(part.card.guarantee != "LOSSY" for part in method.parts)
    for batch in (1, 8):
        assert identical(method, batch) is (True if promised else None), batch


@pytest.mark.long
def test_fault_another_seed():
    """The comparison can fail: texts of other noise are not plain's, nor ties."""
    case = Case(Method(), TEMPERATURE)
    other = bench(8).once(case, prompts(), SEED + 1)
    cell = Cell("method", Method(), "code", TEMPERATURE, SEED, 8)
    found = measured_row.identical(bench(8), cell, case, other, plain(8), prompts())
    assert found["identical_to_plain"] is False
