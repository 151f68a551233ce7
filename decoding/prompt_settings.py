"""The numbers of a call's prompts, and a composition that serves them all.

What differs by prompt lies in the states of the rows, so one program serves all
numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoding import base, transform_chain
from decoding.automata import stop_strings
from decoding.catalogue import Part, PerPrompt, Spec
from models.errors import MethodError


class Setting(NamedTuple):
    """The numbers of one prompt, which the states of its rows begin with."""

    transform: base.LogitsTransform
    sampled: bool  # the temperature is above 0
    ends: tuple[int, ...]  # EOS and stop tokens
    stop: int  # first state of the stop automaton; 0 without one


@dataclass(frozen=True)
class Composition:
    """A program, the key of its compiled form, and its guarantee."""

    program: Any
    key: tuple
    guarantee: str
    settings: tuple[Setting, ...]  # one for all prompts, or one a prompt
    stop: Any = None  # the stop automaton of all prompts, or None
    prefills: tuple = ()  # what decides, beside weights, a row whose prompt is read


def temperatures(temperature: Any) -> list[float]:
    """Return one number for all prompts or one a prompt; MethodError for others."""
    values = list(temperature) if np.ndim(temperature) else [temperature]
    heats = []
    for i, value in enumerate(values):
        try:
            heat = float(value)
        except (TypeError, ValueError):
            heat = math.nan
        if not heat >= 0:
            where = f" of prompt {i}" if np.ndim(temperature) else ""
            raise MethodError(
                f"temperature={value}{where}: use a number >= 0 (0 decodes greedily)"
            )
        heats.append(heat)
    return heats


def lists(values: Sequence[Any]) -> list[tuple]:
    """Return one list for all prompts or one a prompt: `("a",)`, `(("a",), ())`."""
    if values and all(type(value) in (list, tuple) for value in values):
        return [tuple(value) for value in values]
    return [tuple(values)]


def columns(lists: Mapping[str, Sequence[Any]]) -> list[Sequence[Any]]:
    """Repeat the lists of one entry, so that all have one entry a prompt.

    Raises:
        MethodError: two longer lists differ in length.
    """
    sizes = {name: len(values) for name, values in lists.items() if len(values) > 1}
    prompts = max(sizes.values(), default=1)
    if len({*sizes.values()}) > 1:
        raise MethodError(
            f"lists of one entry a prompt have {sizes} entries: give each as many as "
            "there are prompts"
        )
    return [[*v] if len(v) == prompts else [*v] * prompts for v in lists.values()]


Form = Callable[[base.LogitsTransform], base.LogitsTransform]


def transforms(
    parts: tuple[Part, ...],
    heats: Sequence[float],
    available: Mapping[str, Any],
    form: Form | None = None,
) -> tuple[tuple[Part, ...], list[base.LogitsTransform]]:
    """Build the chains of all prompts; equal settings share one.

    Args:
        parts: those of the method.
        heats: the temperatures.
        available: what the factories need.
        form: of each built part; None: as it is.

    Returns:
        The parts of the first prompt's chain, and one chain for all prompts or one a
        prompt.
    """
    rows = [tuple(part.parts) if type(part) is PerPrompt else (part,) for part in parts]
    names = {
        f"transforms[{i}] ({p.name})": r for i, (p, r) in enumerate(zip(parts, rows))
    }
    each = columns({"temperature": heats, **names})
    is_sampled = any(heat > 0 for heat in heats)
    chains: dict[tuple, tuple] = {}
    settings = list(zip(*each))
    for setting in settings:
        if setting not in chains:
            # A greedy row among sampled ones has the identity in its place.
            heat = (setting[0] or 1.0) if is_sampled else 0.0
            chains[setting] = chained(setting[1:], heat, available, form)
    return chains[settings[0]][0], [chains[setting][1] for setting in settings]


def chained(
    specs: tuple[Part, ...],
    temperature: float,
    available: Mapping[str, Any],
    form: Form | None = None,
) -> tuple[tuple[Part, ...], base.LogitsTransform]:
    """Build one chain, with the temperature before the first warper."""
    for spec in specs:
        if spec.card.kind:
            raise MethodError(
                f"{spec.name} is no transform: give it to a search, as in "
                f"Spec('search/smc', proposal=Spec({spec.name!r}, ...))"
            )
    built = [spec.build(available) for spec in specs]
    if temperature > 0:
        greedy_only = [s.name for s in specs if s.card.guarantee == base.ARGMAX]
        if greedy_only:
            raise MethodError(
                f"temperature={temperature} with {greedy_only[0]}, which gives values "
                "to maximise and no law: use temperature=0, or leave it out"
            )
        if any(spec.name == "transforms/temperature" for spec in specs):
            raise MethodError(
                f"temperature={temperature} and a temperature transform: give one of "
                "the two"
            )
        at = next((i for i, t in enumerate(built) if t.warper), len(built))
        spec = Spec("transforms/temperature", temperature=temperature)
        specs = (*specs[:at], spec, *specs[at:])
        built.insert(at, spec.build(available))
    return specs, transform_chain.chain(*(map(form, built) if form else built))


def stopper(stop: Sequence[Any], lm: Any) -> tuple[Any, list[int]]:
    """Build the automaton of stop strings; None, and state 0, without any.

    Raises:
        MethodError: there are some and the model has no tokenizer.
    """
    stops = lists(stop)
    if not any(stops):
        return None, [0]
    if lm.tokenizer is None:
        raise MethodError(f"stop={list(stop)} needs a tokenizer: {lm} has none")
    return stop_strings.stopper(stops, lm.tokenizer, lm.model.config.vocab_size)


def settings(
    heats: Sequence[float],
    laws: Sequence[base.LogitsTransform],
    starts: Sequence[int],
    ids: Sequence[tuple],
    eos: tuple[int, ...],
) -> tuple[Setting, ...]:
    """Join the numbers of all prompts: one setting for all, or one a prompt.

    Raises:
        MethodError: lists of different lengths.
    """
    named: dict[str, Sequence[Any]] = {
        "temperature": heats,
        "transforms": laws,
        "stop": starts,
        "stop_token_ids": ids,
    }
    return tuple(
        Setting(law, heat > 0, tuple(dict.fromkeys((*eos, *own))), start)
        for heat, law, start, own in zip(*columns(named))
    )


def check_streams(
    law: base.LogitsTransform, specs: Sequence[Part], streams: Mapping[str, Any]
) -> None:
    """Raise MethodError if a transform reads a stream that is not given."""
    if missing := [name for name in law.streams if name not in streams]:
        raise MethodError(
            f"the transforms {[s.name for s in specs]} read the streams {missing}: "
            "pass streams={name: Stream(model, params_key)}, or a Derived"
        )
