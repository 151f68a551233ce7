"""The constraints of a call's prompts: as transforms of the method, and as verdicts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from decoding.automata import (
    byte_machine,
    canvas_grammars,
    compiled,
    llguidance_matcher,
)
from decoding.automata.lift import Lifted
from decoding.automata.matchers import Matcher, Predicate
from decoding.catalogue import PerPrompt, Spec
from decoding.denoising import composed
from models.errors import ConstraintError, PromptError

GRAMMAR, HOST = "constraints/grammar", "constraints/host"
AUTO, DEVICE, ON_HOST = ENGINES = ("auto", "device", "host")


class Constraint(NamedTuple):
    """What a prompt's texts are held to; nothing: any text."""

    grammar: compiled.Grammar | None = None  # on the device
    matcher: Matcher | None = None  # on the host
    is_asked: bool = False  # a grammar of a canvas that the host fills

    @property
    def engine(self) -> str | None:
        """Where the masks are computed: "device", "host", None without a constraint."""
        if self.grammar is None:
            return ON_HOST if self.matcher is not None else None
        return ON_HOST if self.is_asked else DEVICE


Constraints = tuple[Constraint, ...]


def read(
    lm: Any, constraint: Any, prompts: int, engine: str, finish: bool
) -> Constraints | None:
    """Read `generate`'s constraint: one for all prompts, or one (None) a prompt.

    Args:
        lm: the model.
        constraint: a grammar, a matcher or a predicate, or a list of them.
        prompts: their number.
        engine: one of `ENGINES`.
        finish: whether texts have to end within their limits.

    Raises:
        PromptError: a list of another length than the prompts.
        ConstraintError: no constraint, an unknown engine, or one that refuses it.
    """
    if engine not in ENGINES:
        raise ConstraintError(f"engine={engine!r}: use one of {list(ENGINES)}")
    if constraint is None:
        return None
    place: Callable = functools.partial(_placed, lm, finish=finish)
    if composed.is_canvas(lm):
        place = _on_canvas
    single = isinstance(constraint, Mapping | compiled.Grammar | str | Matcher)
    if single or callable(constraint):
        return (place(constraint, engine),) * prompts
    if len(constraint) != prompts:
        raise PromptError(
            f"constraint has {len(constraint)} entries for {prompts} prompts: give one "
            "grammar, or one (or None) a prompt"
        )
    placed = tuple(place(entry, engine) for entry in constraint)
    if any(entry.is_asked for entry in placed):
        placed = tuple(entry._replace(is_asked=True) for entry in placed)
    return placed


def _on_canvas(entry: Any, engine: str) -> Constraint:
    """Read a constraint of a canvas: regexes run on the device, others on the host."""
    if entry is None:
        return Constraint()
    if isinstance(entry, Matcher) or callable(entry):
        raise ConstraintError(
            f"{entry!r} reads a text from left to right, and a diffusion model writes "
            "in any order: give a grammar"
        )
    grammar = compiled.parse(entry)
    is_asked = not canvas_grammars.is_regular((grammar,))
    if engine == (DEVICE if is_asked else ON_HOST):
        place = ON_HOST if is_asked else DEVICE
        raise ConstraintError(
            f"engine={engine!r} with {grammar}, which a canvas has on the {place}: use "
            "'auto'"
        )
    return Constraint(grammar, is_asked=is_asked)


def _placed(lm: Any, entry: Any, engine: str, finish: bool) -> Constraint:
    """Choose where a constraint runs: on the device, if that holds it."""
    if entry is None:
        return Constraint()
    config = lm.model.config
    about = tuple(config.eos), config.vocab_size
    if isinstance(entry, Matcher) or callable(entry):
        if engine == DEVICE or finish:
            wish = "finish=True" if finish else "engine='device'"
            raise ConstraintError(f"{wish} with {entry!r}, which runs on the host")
        if isinstance(entry, Matcher):
            return Constraint(None, entry)
        return Constraint(None, Predicate(entry, config.vocab_size, config.eos))
    grammar = compiled.parse(entry)
    if engine == ON_HOST:
        if finish:
            raise ConstraintError("finish=True with engine='host': use the device")
        return Constraint(
            None, llguidance_matcher.matcher(grammar, lm.tokenizer, *about)
        )
    try:
        if lm.tokenizer is not None:
            compiled.compiler(lm.tokenizer, *about).lifted(grammar)
    except ConstraintError as refused:
        if engine == DEVICE or finish:
            raise
        try:
            matcher = llguidance_matcher.matcher(grammar, lm.tokenizer, *about)
        except ConstraintError as error:
            raise ConstraintError(f"{refused}; on the host: {error}") from refused
        return Constraint(None, matcher)
    return Constraint(grammar)


def inserted(
    transforms: Sequence[Any],
    of_prompts: Constraints,
    finish: Sequence[int],
) -> tuple[Any, ...]:
    """Put the constraints before the first truncation, which then keeps allowed tokens.

    Args:
        transforms: the call's others.
        of_prompts: that of each prompt.
        finish: tokens in which each text must end; 0: it may be cut.
    """
    at = next((i for i, p in enumerate(transforms) if _truncates(p)), len(transforms))
    parts = []
    grammars = tuple(constraint.grammar for constraint in of_prompts)
    if any(grammars) or not any(constraint.matcher for constraint in of_prompts):
        numbers = [{"finish": tokens} for tokens in finish]
        parts.append(_part(GRAMMAR, "grammars", grammars, numbers))
    matchers = tuple(constraint.matcher for constraint in of_prompts)
    if any(matchers):
        parts.append(_part(HOST, "of", matchers, [{}] * len(matchers)))
    return (*transforms[:at], *parts, *transforms[at:])


def _part(
    name: str, argument: str, values: tuple, numbers: Sequence[dict[str, int]]
) -> Spec | PerPrompt:
    """Make one part for all prompts, if they are alike, or one a prompt."""
    if len(set(values)) == 1 and all(row == numbers[0] for row in numbers):
        return Spec(name, **{argument: values[:1]}, **numbers[0])
    specs = [
        Spec(name, **{argument: values}, index=i, **row)
        for i, row in enumerate(numbers)
    ]
    return PerPrompt(tuple(specs))


def _truncates(part: Any) -> bool:
    """Return whether a transform belongs behind the temperature."""
    card = getattr(part[0] if type(part) in (list, tuple) else part, "card", None)
    return getattr(card, "family", "") in ("truncation", "scaling", "diversity")


def accepted(
    lm: Any,
    of_prompts: Constraints,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[Sequence[int]]],
) -> list[list[bool]]:
    """Return which texts are whole ones under their prompts' constraints.

    A grammar of the device reads their bytes, a matcher their tokens.

    Args:
        lm: the model.
        of_prompts: the constraint of each prompt.
        prompts: the token ids of each prompt.
        texts: those of each prompt's texts.
    """
    verdicts = []
    for constraint, prompt, rows in zip(of_prompts, prompts, texts):
        if (matcher := constraint.matcher) is not None:
            verdicts.append([matcher.accepts(row, prompt) for row in rows])
            continue
        if (grammar := constraint.grammar) is None:
            verdicts.append([True] * len(rows))
            continue
        lifted, tokens = _lifted(lm, grammar)
        data = [b"".join(tokens[t] for t in row if t < len(tokens)) for row in rows]
        machine = lifted.machine
        verdicts.append([bool(byte_machine.accepts(machine, text)) for text in data])
    return verdicts


def _lifted(lm: Any, grammar: compiled.Grammar) -> tuple[Lifted, list[bytes]]:
    """Return a grammar over the model's tokens, and their bytes."""
    about = lm.tokenizer, tuple(lm.model.config.eos), lm.model.config.vocab_size
    compiler = compiled.compiler(*about)
    return compiler.lifted(grammar), compiler.vocabulary.tokens


def forced(
    lm: Any, of_prompts: Constraints, texts: Sequence[Sequence[Sequence[int]]]
) -> list[list[int]]:
    """Count the tokens that the grammar determines, in the tokenizer's own spelling.

    Args:
        lm: the model.
        of_prompts: the constraint of each prompt.
        texts: the tokens of each prompt's texts.
    """
    counts = []
    for constraint, rows in zip(of_prompts, texts):
        if (grammar := constraint.grammar) is None:
            counts.append([0] * len(rows))
            continue
        lifted, tokens = _lifted(lm, grammar)
        counts.append([_forced(lifted, tokens, row) for row in rows])
    return counts


def _forced(lifted: Lifted, tokens: list[bytes], text: Sequence[int]) -> int:
    at, count = byte_machine.Config(lifted.machine.start), 0
    for token in text:
        if at.state == byte_machine.DEAD or token >= len(tokens):
            break
        first, size = lifted.jumps.at[at.state]
        count += bool(size) and int(lifted.jumps.values[first, 0]) == token
        at = byte_machine.read(lifted.machine, at, tokens[token])
    return count
