"""Drafters on your own logs: recorded prompts and responses, and no model at all.

python -m experiments.run --config=configs/replay.py --workdir=runs/replay \\
    --config.data=log.jsonl [--config.tokenizer=path/to/tokenizer.json]

Each line of the file is a JSON object with a prompt and a response, texts or lists of
token ids. Records are replayed in order, and what a method remembers of one serves the
next. Hardware: any; a minute for some hundred records.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "replay"
    config.data = ""
    config.prompt_field = "prompt"
    config.response_field = "response"
    config.records = 100
    config.tokenizer = ""  # a tokenizer.json or its folder; empty: that of `tiny`
    config.methods = (
        "prompt_lookup",
        "copyspec",
        "token_recycling",
        "suffix_decoding",
        "lookahead",
        "aded",
    )
    return config
