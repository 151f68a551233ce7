"""What is lost where a cache changes values, and not which tokens it has?

GEAR (arXiv 2403.05527) and KIVI (2402.02750) store old tokens in few bits, Chelsea
(2506.11418) merges like slots, MiniCache (2405.14366) merges layers, and KV heads may
share latents (2406.07056). Each is compared with dense decoding, and with what costs as
many bytes or slots: nats of the last tokens of held-out windows, a needle's tokens, and
bytes.

python -m experiments.run --config=configs/studies/gear.py --workdir=runs/gear

Hardware: two CPU cores; half an hour. Expected (design figure of GEAR at 2 bits on
`tiny`): 0.04 nats above dense, needles as dense.
"""

from typing import Any

import ml_collections

PARTS = ("codes", "merged slots", "merged layers", "heads", "eviction over codes")
CODES, SLOTS, LAYERS, HEADS, OVER = PARTS


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `gear`."""
    c = ml_collections.ConfigDict()
    c.stage = "gear"
    c.model = "tiny"  # the target
    c.seeds = (0, 1, 2)  # each has windows and needles of its own
    c.windows = 10  # of a seed
    c.length = 512  # tokens of a window
    c.last = 128  # of them, whose nats are measured
    c.needles = 3  # of a seed and depth
    c.needle_length = 200  # tokens of a prompt with a needle
    c.depths = (0.0, 0.25, 0.5, 0.75)  # of the needle
    c.calibration = 16  # first held-out files, which give the heads' bases alone
    c.lengths = (512, 2048, 32768)  # tokens for which bytes are counted
    c.drafts = {"draft": "tiny-draft"}  # of `tree`
    c.tree = "model_tree"  # method whose tokens a call are measured
    c.treed = ("dense", "GEAR, 2 bits", "Chelsea, 64 slots", "MiniCache")  # its arms
    c.prompts = 6  # of a tree's measurement
    c.written = 48  # tokens of each

    # Name -> part, policy and its arguments, and where they apply: `layout` and
    # `window` of the cache, `heads` (arguments of `kv_heads.compress`), `like`: the arm
    # whose bytes the policy's `window` is chosen to take.
    c.arms = ml_collections.ConfigDict()
    gear: dict[str, Any]
    kivi: dict[str, Any]
    gear, kivi = {"name": "caches/gear"}, {"name": "caches/kivi"}
    alone: dict[str, Any] = {"part": CODES}
    c.arms["8 bits"] = alone | {"layout": "int8", "window": 64}
    c.arms["4 bits"] = alone | {"layout": "int4", "window": 64}
    for bits in (2, 4):
        name = f"GEAR, {bits} bits"
        c.arms[name] = alone | {"policy": gear | {"bits": bits}}
        same = kivi | {"bits": bits, "group": 64, "window": 64}
        c.arms[f"KIVI, {bits} bits, same blocks"] = alone | {"policy": same}
        for own in (bits, 2 * bits):
            arm = alone | {"policy": kivi | {"bits": own, "group": 32}, "like": name}
            c.arms[f"KIVI, {own} bits, bytes of {name}"] = arm
    parts: dict[str, Any] = {
        "no outliers": {"outliers": 0.0},
        "rank 0": {"rank": 0},
        "rank 4": {"rank": 4},
    }
    for name, changes in parts.items():
        c.arms[f"GEAR, 2 bits, {name}"] = alone | {"policy": gear | changes}

    evicting: dict[str, Any] = {
        "Chelsea": {"name": "caches/chelsea"},
        "H2O": {"name": "caches/h2o"},
        "SnapKV": {"name": "caches/snapkv", "window": 16, "bounded": True},
        "StreamingLLM": {"name": "caches/streaming_llm"},
        "key norm": {"name": "caches/key_norm"},
    }
    for budget in (64, 128):
        for name, policy in evicting.items():
            arm = {"part": SLOTS, "policy": policy | {"budget": budget}}
            c.arms[f"{name}, {budget} slots"] = arm

    mini: dict[str, Any] = {"name": "caches/minicache"}
    c.arms["MiniCache"] = {"part": LAYERS, "policy": mini}
    more = mini | {"retained": 0.5}
    c.arms["MiniCache, half retained"] = {"part": LAYERS, "policy": more}

    c.arms["mean of 2 heads"] = {"part": HEADS, "heads": {"how": "mean"}}
    for rank in (16, 32, 48, 64):
        c.arms[f"SVD, rank {rank}"] = {"part": HEADS, "heads": {"rank": rank}}

    for budget in (128, 256):
        for name in ("H2O", "SnapKV"):
            arm = {"part": OVER, "policy": evicting[name] | {"budget": budget}}
            if budget != 128:
                c.arms[f"{name}, {budget} slots"] = arm
            over = arm | {"layout": "int8", "window": 32}
            c.arms[f"{name}, {budget} slots of 8 bits"] = over

    claims = [("GEAR, 2 bits", "KIVI, 2 bits, same blocks")]
    claims += [("GEAR, 4 bits", "KIVI, 4 bits, same blocks")]
    for bits in (2, 4):
        name = f"GEAR, {bits} bits"
        for own in (bits, 2 * bits):
            claims.append((name, f"KIVI, {own} bits, bytes of {name}"))
    claims += [("GEAR, 2 bits", "4 bits"), ("GEAR, 4 bits", "4 bits")]
    for budget in (64, 128):
        ours = f"Chelsea, {budget} slots"
        claims += [(ours, f"{x}, {budget} slots") for x in list(evicting)[1:]]
    claims += [(f"SVD, rank {rank}", "mean of 2 heads") for rank in (16, 32)]
    for budget in (128, 256):
        for name in ("H2O", "SnapKV"):
            own_arm = f"{name}, {budget} slots"
            claims.append((own_arm, f"{own_arm} of 8 bits"))
    c.claims = tuple(claims)  # (better, worse), expected of their nats
    return c
