"""Twenty-five methods on Spec-Bench's questions, category by category, and REST.

Xia et al., *Unlocking Efficiency in Large Language Model Inference*, 2024, arXiv
2401.07851, github.com/hemingkx/Spec-Bench. Any JSONL with `turns` or `prompt` works.

python -m experiments.run --config=configs/spec_bench.py --workdir=runs/spec_bench \\
    --config.data=question.jsonl

REST and `sam_decoding_corpus` read a datastore of texts: make one, and name it behind
the recipe.

python -m experiments.datastore --model=tiny --text=DIRECTORY --out=runs/datastore
python -m experiments.run --config=configs/spec_bench.py:runs/datastore ...

Hardware: two cores, some forty minutes a temperature; resumes where it stopped.
Expected: `identical_to_plain` true in every row, whatever the temperature.
"""

import ml_collections

# Shipped with `tiny`.
HEADS = {
    "eagle2": "tiny-eagle2",
    "fspad": "tiny-fspad",
    "sam_fspad": "tiny-fspad",
}
DRAFTERS = (
    "model_chain",
    "model_tree",
    "specinfer",
    "sequoia",
    "dyspec",
    "prompt_lookup",
    "copyspec",
    "token_recycling",
    "suffix_decoding",
    "sam_decoding",
    "logitspec",
    "lookahead",
    "aded",
    "copyspec_model",
    "suffix_model",
    "rasd",
    "rapid",
    "pearl",
    "speculative_jacobi",
    "swift",
    "del_exit",
    "easyspec",
)


def get_config(datastore: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    config.trained = HEADS
    config.data = ""
    config.chat = False  # `tiny` was trained on code: it gets the bare questions
    config.tasks = ()  # every category of the file
    config.width = ("auto",)  # "paper" too: each method at its own size as well
    config.methods = ("plain", *DRAFTERS, *HEADS)
    sam = {"name": "drafters/sam_decoding"}
    # A head in Token Recycling's place, under the tree that the head has alone.
    variants: dict[str, dict] = {
        "sam_fspad": {
            "drafter": {**sam, "inner": "drafters/fspad"},
            "topology": {
                "name": "topologies/eagle2",
                "depth": 5,
                "nodes": 32,
                "top_k": 6,
            },
        }
    }
    if datastore:
        rest = {"drafter": {"name": "drafters/rest", "datastore": datastore}}
        stored = {"drafter": {**sam, "datastore": datastore}}
        variants |= {"rest": rest, "sam_decoding_corpus": stored}
        config.methods += ("rest", "sam_decoding_corpus")
    config.variants = variants
    # In tokens a call; none of plain decoding, below which no method falls.
    config.directions = (
        ("token_recycling", "prompt_lookup"),
        ("token_recycling", "lookahead"),
        ("copyspec", "token_recycling"),
        ("suffix_decoding", "token_recycling"),
        ("sam_decoding", "token_recycling"),
        ("sam_decoding", "prompt_lookup"),
        ("sam_fspad", "fspad"),
        ("logitspec", "prompt_lookup"),
        ("copyspec_model", "model_chain"),
        ("suffix_model", "model_chain"),
        ("sequoia", "specinfer"),
        ("dyspec", "specinfer"),
    )
    config.temperatures = (0.0, 0.8, 1.0)
    config.prompts = 4
    config.prompt_tokens = 256
    config.max_new_tokens = 128
    config.repeats = 3
    return config
