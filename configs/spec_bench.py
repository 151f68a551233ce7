"""The training-free methods on Spec-Bench's questions, category by category.

Xia et al., *Unlocking Efficiency in Large Language Model Inference*, 2024, arXiv
2401.07851, github.com/hemingkx/Spec-Bench. Any JSONL with `turns` or `prompt` works.

python -m experiments.run --config=configs/spec_bench.py --workdir=runs/spec_bench \\
    --config.data=question.jsonl

Hardware: two cores, some forty minutes; resumes where it stopped.
Expected: `identical_to_plain` true in every row, whatever the temperature.
"""

import ml_collections

DRAFTERS = (
    "model_chain",
    "model_tree",
    "prompt_lookup",
    "copyspec",
    "token_recycling",
    "suffix_decoding",
    "lookahead",
    "aded",
    "copyspec_model",
    "rasd",
    "pearl",
    "speculative_jacobi",
    "swift",
    "del_exit",
    "easyspec",
)


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    config.data = ""
    config.chat = False  # `tiny` was trained on code: it gets the bare questions
    config.tasks = ()  # every category of the file
    config.width = ("auto",)  # "paper" too: each method at its own size as well
    config.methods = ("plain", *DRAFTERS)
    # In tokens a call; none of plain decoding, below which no method falls.
    config.directions = (
        ("token_recycling", "prompt_lookup"),
        ("token_recycling", "lookahead"),
        ("copyspec", "token_recycling"),
        ("suffix_decoding", "token_recycling"),
        ("copyspec_model", "model_chain"),
        ("rasd", "model_tree"),
    )
    config.temperatures = (0.0, 0.8, 1.0)
    config.prompts = 4
    config.prompt_tokens = 256
    config.max_new_tokens = 128
    config.repeats = 3
    return config
