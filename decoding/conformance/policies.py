"""The contract of cache policies."""

import numpy as np

from decoding.catalogue import Spec
from decoding.conformance import drafters, kept_caches, kit, peaked, sparse_reads
from decoding.conformance.require import require
from decoding.method import Method

TREE = "topologies/static"


def check(spec: Spec) -> None:
    """Check a cache policy against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    part = kit.spec(spec.name, **spec.arguments)
    if sparse_reads.reads_few(part):
        sparse_reads.check(spec)
        return
    if keeps_a_part(part):
        kept_caches.check(spec)
        return
    counts_tokens_seen(spec, kit.Run(Method(policy=part)))
    chunks_leave_one_cache(spec, kit.Run(Method(policy=part)))
    tree = Method(kit.spec("drafters/model"), topology=kit.spec(TREE), policy=part)
    drafts_keep_the_text(spec, kit.Run(tree), kit.Run(Method(policy=part)))


def keeps_a_part(spec: Spec) -> bool:
    """Return whether a policy keeps a part of the cache only."""
    return spec.build(peaked.parts()).make is not None


def counts_tokens_seen(spec: Spec, run: kit.Run) -> None:
    """Require that `cache.length` counts all tokens but the last, evicted ones too.

    Prompts of one chunk and of several are checked, and the state after rounds.
    """
    for chunk in (4, 128):
        state = run.alter(chunk=chunk).start()
        length = np.asarray(state.caches["target"].length)
        due = [len(prompt) - 1 for prompt in kit.PROMPTS]
        require(
            length.tolist() == due, spec, f"lengths after prompts {length}, not {due}"
        )
    state = run.advance(state, 3)
    length = np.asarray(state.caches["target"].length)
    due = (np.asarray(state.length) - 1).tolist()
    require(length.tolist() == due, spec, f"lengths after rounds {length}, not {due}")


def chunks_leave_one_cache(spec: Spec, run: kit.Run) -> None:
    """Prompts in chunks of 4 and of 128 tokens leave the same committed slots."""
    caches = [drafters.committed(run.alter(chunk=chunk).start()) for chunk in (4, 128)]
    require(caches[0] == caches[1], spec, "the cache depends on the prompt's chunks")


def drafts_keep_the_text(spec: Spec, drafted: kit.Run, plain: kit.Run) -> None:
    """Require plain decoding's text from drafts, if the policy is `path_pure`."""
    if drafted.parts.program.policy.path_pure:
        same = drafted.texts() == plain.texts()
        require(same, spec, "a draft tree changes the text, and it is path_pure")
