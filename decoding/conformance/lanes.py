"""The contract of drafts for a search's lanes: the same search, in fewer rounds."""

from dataclasses import replace

from decoding.catalogue import Part, Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.method import Method

BEAMS = Method(search=Spec("search/beam", width=3))
NEW = 24


def check(spec: Spec) -> None:
    """Check drafts for lanes against every contract of this file.

    Raises:
        AssertionError: they break a property; the message names it.
    """
    the_search_is_the_same(spec)
    own_drafts_save_rounds(spec)


def found(drafter: Part | None, draft=None):
    """Search with the toy model, which is its own draft model unless one is given."""
    lm = kit.model(0, 0.0)
    draft = lm if draft is None else draft
    fields = {"lm": lm, "n": 2, "max_new_tokens": NEW}
    return kit.generate(replace(BEAMS, drafter=drafter), draft=draft, **fields)


def the_search_is_the_same(spec: Spec) -> None:
    """Require the texts and scores of a beam search without drafts, bit for bit."""
    drafter = kit.spec(spec.name, **spec.arguments)
    plain = found(None)
    out = found(drafter, kit.model(1, 0.0))
    same = (out.tokens, out.scores) == (plain.tokens, plain.scores)
    require(same, spec, "a beam search has other texts or scores with these drafts")


def own_drafts_save_rounds(spec: Spec) -> None:
    """Require half the rounds or fewer where the target is its own draft model."""
    drafter = kit.spec(spec.name, **spec.arguments)
    out = found(drafter)
    saved = 2 * out.stats.rounds <= out.stats.levels.max()
    require(saved, spec, "the target's own drafts are not those that a search chooses")
