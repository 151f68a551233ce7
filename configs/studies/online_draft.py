"""A draft trained on its rejected tokens, across a switch from code to prose.

Liu et al., *Online Speculative Decoding*, 2024, arXiv 2310.07177, section 5.3. Requests
are windows of held-out code, then of prose from a path; `tiny-draft` drafts for `tiny`
and takes a few optimiser steps between calls, on places of rejected drafts.

python -m experiments.run --config=configs/studies/online_draft.py --workdir=runs/online
\\
    --config.second=texts.jsonl

Hardware: two cores, some ten minutes. Rate, steps and requests an update are those of
the authors' scripts of one domain; where domains change theirs have a rate of 1e-5, an
update a request and contexts of 512 tokens.
At scale: no recipe; the authors' draft of 160 M serves Vicuna 7B.
Expected, from the paper: the draft that keeps training recovers the acceptance lost in
the switch. Here it recovers a part: experiments/reports/online.md.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `online_draft`."""
    c = ml_collections.ConfigDict()
    c.stage = "online_draft"
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"  # the draft model
    # The two domains, as training/data/sources.py reads them; of tfds the validation
    # split.
    c.first = "tfds:stdlib_code"
    c.second = ""  # of the same form; it must be given
    c.directory = ""  # of tfds; empty: workdir/data
    # The method: its parts and their arguments.
    c.method = ml_collections.ConfigDict(
        {
            "drafter": {
                "name": "drafters/online_sd",
                "places": 128,
                "window": 48,
                "best": 32,
                "keep": "refused",
            },
            "topology": {"name": "topologies/chain", "length": 5},
        }
    )
    c.rate = 0.0001  # of Adam
    c.every = 8  # requests in a call, and between two updates
    c.steps = 1  # of an update, on the stored places
    c.before = 40  # calls of the first domain
    c.after = 120  # of the second
    c.settled = 12  # calls in an average
    c.prompt_tokens = 64
    c.max_new_tokens = 64
    c.temperature = 0.8  # of the texts
    return c
