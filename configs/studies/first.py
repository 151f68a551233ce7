"""FiRST's routers beside random and fixed sets of as many layers: nats, texts, layers.

Jain, Sharma, Mukherjee, Pal, *FiRST: Finetuning Router-Selective Transformers for
Input-Adaptive Latency Reduction*, 2025, arXiv 2410.12513. At every price of a layer, on
the same held-out cases: the routers; random sets, each row's as large as its routers';
the best fixed set of that size, found on training text; and all for the target that was
trained under the routers. A tree of drafts must write plain decoding's text under them.

python -m experiments.run --config=configs/studies/first.py --workdir=runs/first_study

Hardware: two CPU cores, ten minutes. It reads the folder of configs/predictors/first.py
(`trained`).
Expected: the routers at least as good as random layers at equal layer evaluations.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `routed_exits`."""
    c = ml_collections.ConfigDict()
    c.stage = "routed_exits"
    c.model = "tiny"  # the target
    c.draft = "tiny-draft"  # the drafter's model
    c.drafter = "model_tree"  # method whose texts are compared; empty: none
    c.data = ""  # text: empty, held-out code; or the folder of `tiny_text`
    c.trained = "runs/first"  # folder of configs/predictors/first.py
    c.prices = (0.5, 1.0, 2.0, 4.0)  # of its runs: nats for a layer's share
    c.seeds = (0, 1, 2)  # each has cases of its own
    c.cases = 16  # of a seed, decoded together
    c.prompt = 64  # tokens of a case, which vote
    c.new = 64  # tokens behind them, judged and written
    c.draws = 5  # random sets of a row
    return c
