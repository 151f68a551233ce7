"""The grammars of a call's prompts: as a transform of the method, and as a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from decoding.automata import byte_machine, compiled
from decoding.catalogue import PerPrompt, Spec
from models.errors import PromptError

GRAMMAR = "constraints/grammar"


Grammars = tuple[compiled.Grammar | None, ...]


def grammars(constraint: Any, prompts: int) -> Grammars | None:
    """Read `generate`'s constraint: a grammar for all prompts, or one (None) a prompt.

    Raises:
        PromptError: a list of another length than the prompts.
        ConstraintError: a mapping that is no grammar.
    """
    if constraint is None:
        return None
    if isinstance(constraint, Mapping | compiled.Grammar | str):
        return (compiled.parse(constraint),) * prompts  # type: ignore[arg-type]
    if len(constraint) != prompts:
        raise PromptError(
            f"constraint has {len(constraint)} entries for {prompts} prompts: give one "
            "grammar, or one (or None) a prompt"
        )
    return tuple(None if c is None else compiled.parse(c) for c in constraint)


def inserted(
    transforms: Sequence[Any],
    of_prompts: Grammars,
    finish: Sequence[int],
) -> tuple[Any, ...]:
    """Put the grammars before the first truncation, which then keeps allowed tokens.

    Args:
        transforms: the call's others.
        of_prompts: a grammar, or None, of each prompt.
        finish: tokens in which each text must end; 0: it may be cut.
    """
    specs = [
        Spec(GRAMMAR, grammars=of_prompts, index=i, finish=tokens)
        for i, tokens in enumerate(finish)
    ]
    same = len(set(zip(of_prompts, finish))) == 1
    part = Spec(GRAMMAR, grammars=of_prompts[:1], finish=finish[0])
    at = next((i for i, p in enumerate(transforms) if _truncates(p)), len(transforms))
    chosen = part if same else PerPrompt(tuple(specs))
    return (*transforms[:at], chosen, *transforms[at:])


def _truncates(part: Any) -> bool:
    """Return whether a transform belongs behind the temperature."""
    card = getattr(part[0] if type(part) in (list, tuple) else part, "card", None)
    return getattr(card, "family", "") in ("truncation", "scaling", "diversity")


def accepted(
    lm: Any, of_prompts: Sequence[Any], texts: Sequence[Sequence[Sequence[int]]]
) -> list[list[bool]]:
    """Return which texts are whole ones of their prompts' grammars, by their bytes.

    Args:
        lm: the model.
        of_prompts: a grammar, or None (any text), of each prompt.
        texts: the token ids of each prompt's texts.
    """
    config = lm.model.config
    compiler = compiled.compiler(lm.tokenizer, tuple(config.eos), config.vocab_size)
    tokens = compiler.vocabulary.tokens
    verdicts = []
    for grammar, rows in zip(of_prompts, texts):
        machine = None if grammar is None else compiler.lifted(grammar).machine
        data = [b"".join(tokens[t] for t in row if t < len(tokens)) for row in rows]
        verdicts.append(
            [machine is None or byte_machine.accepts(machine, text) for text in data]
        )
    return verdicts
