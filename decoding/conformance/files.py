"""The parts that every method file must have."""

import inspect
from typing import Any

from decoding import base, catalogue
from decoding.catalogue import Card, Spec
from decoding.conformance.require import require


def is_complete(spec: Spec) -> None:
    """The file has a card, a factory and a docstring that states the cost."""
    wrong = faults(spec.folder, spec.module)
    require(not wrong, spec, "; ".join(wrong))


def faults(folder: str, module: Any) -> list[str]:
    """List the parts that a method file of the role `folder` lacks."""
    wrong = []
    card = vars(module).get("CARD")
    name = getattr(card, "kind", "") or catalogue.FACTORIES[folder]
    factory = vars(module).get(name)
    if factory is None:
        wrong.append(f"no factory {name}()")
    elif not inspect.getdoc(factory):
        wrong.append("its factory has no docstring")
    if type(card) is not Card:
        wrong.append("no CARD")
    elif not card.paper or card.guarantee not in base.GUARANTEES:
        wrong.append("its card names no paper or no guarantee")
    elif factory is not None:
        wrong += ["its card names no family"] if not card.family else []
        missing = {*card.needs, *card.data} - {*inspect.signature(factory).parameters}
        wrong += [f"its factory has no parameter {need!r}" for need in missing]
    if "Cost" not in (module.__doc__ or "") and folder != "caches":
        wrong.append("its docstring does not say what it costs: add a line 'Cost: ...'")
    return wrong
