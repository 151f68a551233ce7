"""Every objective states its loss: a sum or a mean, of what, in which unit."""

import importlib
import inspect
import pathlib

import jax
import pytest

import training.objectives
from tests.decoding.drafters import agreement
from training.objectives.heads import chimera, hydra, medusa, medusa2
from training.objectives.language_models import draft_model, next_token

FOLDER = pathlib.Path(training.objectives.__file__).parent
MODULES = sorted(
    ".".join(["training.objectives", *path.relative_to(FOLDER).with_suffix("").parts])
    for path in FOLDER.glob("*/*.py")
    if path.stem != "__init__"
)


def unstated(source: str) -> bool:
    """Whether a file builds an objective and leaves its quantity out."""
    return "return Objective(" in source and "quantity=quantity" not in source


@pytest.mark.parametrize("name", MODULES)
def test_no_objective_is_silent(name):
    """Planted: the same file without it."""
    source = inspect.getsource(importlib.import_module(name))
    assert not unstated(source)
    planted = source.replace("quantity=quantity", "")
    assert unstated(planted) == ("return Objective(" in source)


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_are_counted(heads):
    lm = agreement.target()
    said = {
        medusa: f"loss (sum over {heads} heads times 0.8^i, nats a token)",
        hydra: f"loss (sum over {heads} heads, nats a token)",
        chimera: f"loss (sum over {heads} heads, nats a token)",
    }
    for module, wanted in said.items():
        params = jax.eval_shape(
            lambda key, module=module: module.init(
                key, lm.model, lm.params, heads=heads
            ),
            jax.random.key(0),
        )
        assert module.objective(lm.model).label(params) == wanted
        if module is medusa:
            label = medusa2.objective(lm.model).label({"heads": params})
            assert f"0.16 x sum over {heads} heads" in label


def test_the_label_of_a_language_model():
    model = agreement.target().model
    plain = next_token.objective(model.config)
    assert plain.label({}) == "loss (mean nats a token)"
    mixed = draft_model.objective(model, loss="kl", label=0.5, soft=0.5)
    assert mixed.label({}) == "loss (0.5 x nats + 0.5 x kl, a token)"
