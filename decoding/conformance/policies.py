"""What every cache policy is held to."""

import numpy as np

from decoding.catalogue import Spec
from decoding.conformance import drafters, kit
from decoding.conformance.require import require
from decoding.method import Method

TREE = "topologies/static"


def check(spec: Spec) -> None:
    """Hold a cache policy to all of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    part = kit.spec(spec.name, **spec.arguments)
    counts_tokens_seen(spec, kit.Run(Method(policy=part)))
    chunks_leave_one_cache(spec, kit.Run(Method(policy=part)))
    tree = Method(kit.spec("drafters/model"), topology=kit.spec(TREE), policy=part)
    drafts_keep_the_text(spec, kit.Run(tree), kit.Run(Method(policy=part)))


def counts_tokens_seen(spec: Spec, run: kit.Run) -> None:
    """`cache.length` is all tokens but the last, whatever was evicted, prompt included.

    So in prompts of one chunk and of several, and after rounds.
    """
    for chunk in (4, 128):
        state = run.alter(chunk=chunk).start()
        length = np.asarray(state.caches["target"].length)
        due = [len(prompt) - 1 for prompt in kit.PROMPTS]
        require(length.tolist() == due, spec, f"after prompts {length}, and not {due}")
    state = run.advance(state, 3)
    length = np.asarray(state.caches["target"].length)
    due = (np.asarray(state.length) - 1).tolist()
    require(length.tolist() == due, spec, f"after rounds {length}, and not {due}")


def chunks_leave_one_cache(spec: Spec, run: kit.Run) -> None:
    """Prompts in chunks of 4 and of 128 tokens leave the same committed slots."""
    caches = [drafters.committed(run.alter(chunk=chunk).start()) for chunk in (4, 128)]
    require(caches[0] == caches[1], spec, "the cache depends on the prompt's chunks")


def drafts_keep_the_text(spec: Spec, drafted: kit.Run, plain: kit.Run) -> None:
    """Where it is `path_pure`, a draft's text is plain decoding's under the policy."""
    if drafted.parts.program.policy.path_pure:
        same = drafted.texts() == plain.texts()
        require(same, spec, "a draft tree changes the text, and it is path_pure")
