"""CopySpec before a draft model: copy where the text repeats itself, else draft.

Dumitru, Yang, Yadav, Surdeanu, *CopySpec: Accelerating LLMs with Speculative
Copy-and-Paste*, 2025, arXiv 2502.08923, section 3 (copying merged with speculative
decoding): a round without a match is left to a draft model.

    draft = the block after the first occurrence of the last gamma tokens, if any
            the draft model's tree (in the paper a chain of 5), else

gamma, copy → `drafters/copyspec`, the chain → `drafters/model` and its topology.

Deviations from the paper: rows of a batch choose for themselves, and the model runs
unless all of them copy. A copied block has one-hot laws q, so that rejection schemes
accept its tokens with probability p; the official code accepts them at temperature > 0
only where p is 1.

Cost per call: that of CopySpec; where a row finds no match also that of the draft
model, which first reads the tokens copied since it last ran, 16 a call.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.drafters import copyspec, model
from decoding.tree_building import lookup_or_model

CARD = Card(
    paper="CopySpec, arXiv 2502.08923",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    examples={"gamma": 2, "copy": 4},
    sources=("dumitru2025copyspec",),
)


def drafter(
    draft, topology: base.Topology, gamma: int = 3, copy: int = 10
) -> base.Drafter:
    """Draft by CopySpec with `gamma` and `copy`, else by `draft` with `topology`."""
    copier = copyspec.drafter(gamma, copy)
    writer = model.drafter(draft, lookup_or_model.unless_copied(topology))

    def propose(keys, ctx: base.Context, state: base.State):
        copies, state, _ = copier.draft(keys, ctx, state)
        return copies, copies.kind[:, 1] == base.CANDIDATE, state

    return lookup_or_model.drafter(copier, propose, writer, topology)
