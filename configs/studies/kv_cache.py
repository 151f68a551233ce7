"""What cache policies keep of a model's abilities, and what memory they free.

python -m experiments.run --config=configs/studies/kv_cache.py --workdir=runs/kv

Tasks: a needle by depth, key-value retrieval among like lines, nats of the last tokens
of long windows, calls of functions that are defined far back, and the recall model of
models/synthetic/recall.py, whose attention is known. Each policy compresses the prompt
with its question in it (`seen`), or the context alone, before it sees the question
(`unseen`), to every share in `kept`.

Hardware: two CPU cores; 60 minutes at most with the three `kept` of the default. The
full grid, by resuming in the same workdir: --config.kept="(0.75, 0.5, 0.25, 0.1)".
Another model: --config.model=DIRECTORY, with --config.rope_theta=0 for its own base.
Expected (design figures for `tiny` at 32 of 512 slots): nats above dense: SnapKV below
StreamingLLM and H2O; needles: SnapKV above H2O above StreamingLLM.
"""

import ml_collections

CLAIMS = (
    ("needle seen", "SnapKV", "H2O"),
    ("needle seen", "H2O", "StreamingLLM"),
    ("key_value seen", "SnapKV", "H2O"),
    ("key_value unseen", "H2O", "SnapKV"),
    ("long_nats seen", "SnapKV", "StreamingLLM"),
    ("long_nats seen", "SnapKV", "H2O"),
    ("long_nats seen", "SnapKV", "random"),
    ("long_nats seen", "SnapKV", "PyramidKV"),
    ("needle unseen", "SnapKV", "random"),
)


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `kv_cache`."""
    c = ml_collections.ConfigDict()
    c.stage = "kv_cache"
    c.model = "tiny"  # the target, but for the task `recall`
    c.rope_theta = 40_000.0  # its base; 0: the checkpoint's
    c.data = ""  # text: empty, held-out code; or the folder of `tiny_text`
    c.tasks = ("needle", "key_value", "long_nats", "far_definition", "recall")  # to run
    c.views = ("seen", "unseen")  # whether a policy sees the question
    c.kept = (0.5, 0.25, 0.1)  # shares of the prompt that policies keep
    c.seeds = (0, 1, 2)  # each has cases of its own
    c.cases = 10  # of a task and seed
    c.length = 512  # tokens of a prompt
    c.last = 64  # tokens that `long_nats` judges
    c.depths = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the needle; `cases` are of all depths
    c.pairs = 8  # lines of key_value
    c.facts = 32  # of the recall model
    c.least = 100  # tokens to a definition that is far back
    c.tree = "model_tree"  # method whose tokens a call are measured; empty: none
    c.draft = "tiny-draft"  # draft model of trees and of SpecKV, at the same base
    c.tree_kept = 0.25  # share that policies keep of its prompts
    c.prompts = 4  # of the tree's measurement
    c.written = 48  # tokens of each

    # Name -> the file of decoding/caches and its arguments but `budget`.
    c.policies = ml_collections.ConfigDict(
        {
            "StreamingLLM": {"name": "caches/streaming_llm"},
            "H2O": {"name": "caches/h2o"},
            "TOVA": {"name": "caches/tova"},
            "SnapKV": {"name": "caches/snapkv", "window": 16},
            "PyramidKV": {"name": "caches/pyramid_kv"},
            "expected attention": {"name": "caches/expected_attention"},
            "KeyDiff": {"name": "caches/keydiff"},
            "random": {"name": "caches/random"},
        }
    )
    # (task and view, better, worse), of those that run: a table of paired differences.
    c.claims = CLAIMS
    return c
