"""Can a diffusion model draft for an autoregressive one, and in how many forwards?

SpecDiff (arXiv 2408.05636) reports up to 7.2x, 1.75x over other drafters. A masked
diffusion model fills four masks behind the text in one, two or four forwards; the
target verifies them. The verifier is the default one, under which texts are plain
decoding's.

Command:  python -m experiments.run --config=configs/studies/diffusion_drafter.py
              --workdir=runs/diffusion_drafter
Beside:   the same with --config=configs/studies/diffusion_drafter.py:tiny-draft: a
          small autoregressive model drafts chains of one to four tokens. Compare rows
          of equal draft share.
Hardware: 2 CPU cores, some minutes. Every row is stored.

Expected: acceptance rises with the number of forwards at every depth but the first,
since a token then sees the drafts before it. A draft of four masks costs a forward of a
block, so few forwards are best. Perfect drafts could not pay where the diffusion model
is as large as the target.
"""

import ml_collections

LENGTH = 4  # drafts of a round
MASKED, MODEL = "tiny_diffusion", "tiny-draft"


def masked(forwards: int, block: int = 8) -> dict:
    """Return the method of a diffusion model that drafts in some forwards."""
    drafter = {"name": "drafters/masked_diffusion", "forwards": forwards}
    return {
        "drafter": {**drafter, "block": block},
        "topology": {"name": "topologies/chain", "length": LENGTH},
    }


def chain(length: int) -> dict:
    """Return the method of an autoregressive draft model."""
    grown = {"name": "topologies/chain", "length": length}
    return {"drafter": "drafters/model", "topology": grown}


def get_config(draft: str = MASKED) -> ml_collections.ConfigDict:
    """Return a recipe of the stage `evaluate`.

    Args:
        draft: the draft model; `tiny-draft` is autoregressive, all others are diffusion
            models.
    """
    c = ml_collections.ConfigDict()
    c.drafts = {"draft": draft}  # the draft model
    if draft == MODEL:
        c.variants = {f"chain_{n}": chain(n) for n in (1, 2, LENGTH)}
    else:
        c.variants = {f"forwards_{n}": masked(n) for n in (1, 2, LENGTH)}
        c.variants["tree"] = {
            **masked(1),
            "topology": {"name": "topologies/static"},
        }
    c.methods = ("plain", *c.variants)
    c.tasks = ("code", "copy", "text")
    c.temperatures = (0.0, 0.8)
    c.prompts = 8
    c.repeats = 2
    c.curve = False
    return c
