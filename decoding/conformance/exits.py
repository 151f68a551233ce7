"""The contract of exits."""

from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.method import Method
from models.errors import MethodError


def check(spec: Spec) -> None:
    """Check an exit against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    part = kit.spec(spec.name, **spec.arguments)
    plain = kit.Run(Method(exit=part))
    wide = Method(kit.spec("drafters/prompt_lookup"), exit=part)
    if plain.parts.program.exit.path_pure:
        drafts_keep_the_text(spec, kit.Run(wide), plain)
    else:
        wider_blocks_are_refused(spec, wide)


def drafts_keep_the_text(spec: Spec, drafted: kit.Run, plain: kit.Run) -> None:
    """Require from drafts the text of plain decoding under the same exit."""
    same = drafted.texts() == plain.texts()
    require(same, spec, "a draft changes the text, and it is path_pure")


def wider_blocks_are_refused(spec: Spec, wide: Method) -> None:
    """Require that an exit that is not path_pure refuses blocks of several nodes."""
    try:
        kit.Run(wide, beside=kit.models(wide))
    except MethodError:
        return
    require(False, spec, "it is not path_pure, and a wider draft is taken")
