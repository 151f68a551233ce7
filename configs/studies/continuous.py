"""Continuous speculative decoding: how many real-valued tokens does a call commit?

Wang, Zhang, Ding, Yang, Li, Xiang, *Continuous Speculative Decoding for Autoregressive
Image Generation*, 2024, arXiv 2411.11925: drafts of real vectors, accepted by the ratio
of densities. Here tokens are heights along profiles of land, which ship with
matplotlib, and models are two sizes of a network with a Gaussian head, of one step a
token or of a chain of three. Exact arms keep the target's law, lossy ones do not.

python -m experiments.run --config=configs/studies/continuous.py
    --workdir=runs/continuous

Hardware: two minutes of processor time. Expected: exact arms with the law kept, more
acceptance with trajectory alignment than without, and another law by the released rule.
"""

import ml_collections


def train() -> ml_collections.ConfigDict:
    """Return the fields of both trainings."""
    t = ml_collections.ConfigDict()
    t.batch = 256  # windows of a step
    t.steps = 2000  # updates
    t.rate = 1e-3  # peak
    t.warmup = 50  # updates of the warm-up
    t.decay = 1000  # updates of the decay
    t.weight_decay = 0.01  # of matrices
    t.clip = 1.0  # of the gradient's norm
    t.rows_at_once = 0  # rows whose gradients exist at a time; 0: all
    t.save_every = 1000  # updates between checkpoints
    t.keep = 1  # checkpoints that stay
    t.log_every = 100  # updates whose metrics are fetched at a time
    t.bad_steps = "stop"  # on a loss that is not finite
    return t


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `continuous`."""
    c = ml_collections.ConfigDict()
    c.stage = "continuous"
    c.seed = 0  # of models, batches and series
    c.held = 64  # profiles that nothing trains on
    c.target = {
        "window": 32,  # tokens that are read
        "width": 128,  # of a layer
        "layers": 2,  # of the state's network
    }
    c.draft = {  # as the target's
        "window": 3,  # tokens that are read
        "width": 8,  # of a layer
        "layers": 1,  # of the state's network
    }
    c.train = train()
    c.judged = 16  # batches of the held-out loss
    c.prompts = 4  # held-out profiles
    c.samples = 4096  # series behind each
    c.new = 16  # tokens of a series
    c.places = (1, 2, 4, 8, 16)  # tokens whose laws are compared
    released = {"temperature": 42.0, "deviation": "variance"}
    c.arms = {  # steps a token, drafts of a round, arguments of verifiers/continuous
        "exact, 2": {"steps": 1, "length": 2},
        "exact, 4": {"steps": 1, "length": 4},
        "exact, 8": {"steps": 1, "length": 8},
        "temperature 42": {
            "steps": 1,
            "length": 4,
            "verifier": {"temperature": 42.0},
        },
        "variance": {"steps": 1, "length": 4, "verifier": {"deviation": "variance"}},
        "released": {"steps": 1, "length": 4, "verifier": released},
        "aligned": {"steps": 3, "length": 4},
        "not aligned": {"steps": 3, "length": 4, "aligned": False},
        "released, aligned": {"steps": 3, "length": 4, "verifier": released},
    }
    return c
