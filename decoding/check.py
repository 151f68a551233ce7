"""Hold a method file to every contract of its role.

python -m decoding.check my_package.my_file
python -m decoding.check "my_package.my_file(epsilon=0.1)"

The contracts (`decoding/conformance/`) run on toy models: some seconds to some minutes
on a CPU, by the role. All broken ones are printed, each with the property that it
states. Last comes a planted fault: a contract must fail on a faulty copy of the part.

Arguments of the factory stand in brackets, as Python literals. The others come from
`CARD.examples`, then from the factory's defaults.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich import console

from decoding import base, catalogue
from decoding.catalogue import Spec
from decoding.conformance import (
    constraints,
    drafters,
    estimators,
    exits,
    faults,
    files,
    kept_caches,
    kit,
    lanes,
    policies,
    prefills,
    procedures,
    real_verifiers,
    rewards,
    schedules,
    searches,
    topologies,
    transforms,
    verifiers,
    widths,
)
from decoding.conformance.require import require
from decoding.method import Method
from models.errors import DecodaxError


class Contract(NamedTuple):
    """A property of a part; `run` raises where it is broken."""

    function: Callable
    run: Callable[[], Any]
    case: str = ""

    @property
    def title(self) -> str:
        name = self.function.__name__.replace("_", " ")
        return f"{name} ({self.case})" if self.case else name

    @property
    def statement(self) -> str:
        """The first line of the contract's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]


def _transforms(spec: Spec) -> Iterator[Contract]:
    def of(contract: Callable) -> Contract:
        part = kit.spec(spec.name, **spec.arguments)
        return Contract(contract, lambda: contract(spec, part.build(kit.PARTS)))

    yield of(transforms.walks)
    yield of(transforms.nodes_hold_replayed_states)
    if spec.card.family == "grammar":
        yield of(constraints.never_strands)
        yield of(constraints.has_a_mass)
        yield of(constraints.fills_its_holes)
    for contract in (transforms.numbers_share_a_program, transforms.drafts_keep_text):
        yield Contract(contract, lambda c=contract: c(spec))  # type: ignore[misc]


def _constraints(spec: Spec) -> Iterator[Contract]:
    if spec.card.kind == "estimator":
        held = estimators.is_right_on_average
        yield Contract(held, lambda: held(spec))
        return
    yield from _transforms(spec)


def _drafters(spec: Spec) -> Iterator[Contract]:
    if spec.card.kind == "lanes":
        for held in (lanes.the_search_is_the_same, lanes.own_drafts_save_rounds):
            yield Contract(held, lambda c=held: c(spec))  # type: ignore[misc]
        return
    for case, method in kit.cases_of(spec.name, **spec.arguments).items():
        found = [*drafters.CONTRACT, *drafters.SLOW]
        if all(part.card.guarantee == base.LAW for part in method.parts):
            found.append(widths.text_of_cut_drafts_is_plain)
        for contract in found:
            run = lambda c=contract, m=method: c(m)
            yield Contract(contract, run, case)


def _verifiers(spec: Spec) -> Iterator[Contract]:
    if spec.card.kind == "real_verifier":
        held = real_verifiers.keeps_the_law
        yield Contract(held, lambda: held(spec))
        return
    if spec.build({}).guarantee != base.LAW:
        return
    for draw in spec.build({}).draws:
        for under in ((verifiers.TOP_K,), ()):
            name = f"{draw}{', top-k' if under else ''}"
            run = lambda d=draw, u=under: verifiers.keeps_the_law(spec, d, None, u)
            yield Contract(verifiers.keeps_the_law, run, name)


def _topologies(spec: Spec) -> Iterator[Contract]:
    def of(contract: Callable, whole: bool) -> Contract:
        def run() -> None:
            drafter, nodes = topologies.grown(spec)
            contract(spec, *((drafter, nodes) if whole else (nodes,)))

        return Contract(contract, run)

    yield of(topologies.is_a_tree, True)
    yield of(topologies.siblings_differ, False)
    rejection = Spec("verifiers/recursive_rejection")
    for draw in spec.card.draws:
        if draw in rejection.build({}).draws:
            run = lambda d=draw: verifiers.keeps_the_law(rejection, d, spec, ())
            yield Contract(verifiers.keeps_the_law, run, draw)


def _caches(spec: Spec) -> Iterator[Contract]:
    part = kit.spec(spec.name, **spec.arguments)
    if spec.card.kind == "canvas_policy":
        refresh = schedules.a_refresh_is_whole
        yield Contract(refresh, lambda: refresh(spec))
        return
    if policies.keeps_a_part(part):
        yield Contract(kept_caches.check, lambda: kept_caches.check(spec))
        return
    plain = Method(policy=part)
    tree = Method(
        kit.spec("drafters/model"), topology=kit.spec(policies.TREE), policy=part
    )
    for contract in (policies.counts_tokens_seen, policies.chunks_leave_one_cache):
        yield Contract(contract, lambda c=contract: c(spec, kit.Run(plain)))  # type: ignore[misc]
    keeps = policies.drafts_keep_the_text
    yield Contract(keeps, lambda: keeps(spec, kit.Run(tree), kit.Run(plain)))


def _exits(spec: Spec) -> Iterator[Contract]:
    yield Contract(exits.check, lambda: exits.check(spec))


def _searches(spec: Spec) -> Iterator[Contract]:
    every: tuple[Callable, ...] = (
        searches.texts_end_once_and_come_best_first,
        searches.a_prompt_is_as_alone,
        searches.numbers_share_a_program,
        searches.drafts_keep_the_texts,
    )
    if spec.card.kind == "prefill":
        every = (
            prefills.params_stay,
            prefills.a_prompt_is_as_alone,
            prefills.drafts_keep_the_text,
            prefills.numbers_share_a_program,
        )
    if spec.card.kind == "procedure":
        every = procedures.CONTRACT
    for contract in every:
        yield Contract(contract, lambda c=contract: c(spec))  # type: ignore[misc]


def _rewards(spec: Spec) -> Iterator[Contract]:
    for contract in (
        rewards.every_text_has_a_worth,
        rewards.a_worth_is_of_the_text_alone,
    ):
        yield Contract(contract, lambda c=contract: c(spec))  # type: ignore[misc]


def _schedules(spec: Spec) -> Iterator[Contract]:
    for contract in (schedules.every_forward_commits, schedules.a_row_is_as_alone):
        yield Contract(contract, lambda c=contract: c(spec))  # type: ignore[misc]


ROLES: dict[str, Callable[[Spec], Iterator[Contract]]] = {
    "transforms": _transforms,
    "constraints": _constraints,
    "drafters": _drafters,
    "verifiers": _verifiers,
    "topologies": _topologies,
    "caches": _caches,
    "exits": _exits,
    "search": _searches,
    "rewards": _rewards,
    "diffusion": _schedules,
}


def contracts(spec: Spec) -> Iterator[Contract]:
    """List the contracts of a method file: of the file, of its role, of a faulty copy.

    Raises:
        MethodError: no such file.
    """
    catalogue.load(spec.name)
    yield Contract(files.is_complete, lambda: files.is_complete(spec))
    yield from ROLES[spec.folder](spec)
    caught = a_planted_fault_is_caught
    yield Contract(caught, lambda: caught(spec))


def a_planted_fault_is_caught(spec: Spec) -> None:
    """A contract fails on a faulty copy of the part."""
    role = "transforms" if spec.folder == "constraints" else spec.folder
    fault = faults.FAULTS[spec.card.kind or role]
    with faults.planted(spec, fault):
        for contract in ROLES[role](spec):
            try:
                contract.run()
            except (AssertionError, DecodaxError):
                return
    require(False, spec, f"no contract notices a part that {fault.__doc__}")


def check(spec: Spec, out: console.Console) -> int:
    """Run every contract of a method file and print a line each.

    Returns:
        The number of broken contracts.
    """
    broken = 0
    for contract in contracts(spec):
        try:
            contract.run()
        except Exception as error:  # the part is a stranger's program
            broken += 1
            out.print("FAIL ", contract.title, style="bold red", highlight=False)
            kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
            out.print(f"     {kind}{error}", markup=False, highlight=False)
            out.print(f"     must hold: {contract.statement}", markup=False)
        else:
            out.print("ok   ", contract.title, highlight=False)
    return broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 where every contract holds, else 1 or 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    out = console.Console(soft_wrap=True)
    if len(arguments) != 1 or "--help" in arguments:
        out.print(__doc__, markup=False, highlight=False)
        return 0 if "--help" in arguments else 2
    try:
        spec = Spec.parse(arguments[0])
        broken = check(spec, out)
    except DecodaxError as error:
        out.print(f"{type(error).__name__}: {error}", markup=False, highlight=False)
        return 2
    if broken:
        out.print(f"{spec}: {broken} broken; CONTRIBUTING.md has a template that holds")
        return 1
    out.print(f"{spec}: every contract of {spec.folder} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
