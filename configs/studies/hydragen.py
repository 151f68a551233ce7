"""What does one copy of a shared prefix save?

Hydragen (arXiv 2402.05099): rows whose texts begin alike keep that beginning once, and
attention reads it once for the batch. Here the same attention, over copied prefixes and
over one, and the texts of a batch of prompts with a common beginning, both ways.

python -m experiments.run --config=configs/studies/hydragen.py --workdir=runs/hydragen

Hardware: two CPU cores, five minutes. Expected: equal outputs; bytes of one prefix in
place of one a row; time that falls with them where attention is a large part.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `hydragen`."""
    c = ml_collections.ConfigDict()
    c.stage = "hydragen"
    c.seed = 0  # of queries, keys, values and prompts
    c.rows = (1, 4, 16, 32)  # of a batch
    c.prefixes = (512, 2048, 4096)  # shared slots
    c.suffix = 128  # slots of each row
    c.heads = 8  # query heads
    c.groups = 2  # KV heads
    c.dim = 64  # of a head
    c.calls = 5  # of one measurement
    c.repeats = 7  # measurements, both forms in turns
    c.model = "tiny"  # of the texts
    c.texts = (4, 16)  # rows that decode
    c.prompt = 1024  # tokens that their prompts share
    c.own = 32  # tokens of a prompt behind them
    c.new = 32  # new tokens of a row
    return c
