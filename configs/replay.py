"""Drafters on your own logs: recorded prompts and responses, without any model.

python -m experiments.run --config=configs/replay.py --workdir=runs/replay \\
    --config.data=log.jsonl [--config.tokenizer=path/to/tokenizer.json]

Each line of the file is a JSON object with a prompt and a response, texts or lists of
token ids. Braces compose a text of several fields, as in
--config.prompt_field='{instruction} {input}'. Records are replayed in order, and a
method keeps its memory from one to the next. With --config.times=2 all records are
replayed twice, and the second time counts. Hardware: any; a minute for some hundred
records.

Papers: Token Recycling (arXiv 2408.08696), CopySpec (2502.08923), SuffixDecoding
(2411.04975), ADED (2407.12021), REST (2311.08252), SAM-Decoding (2411.10666).

`suffix_fixed_L` is SuffixDecoding with L drafts whatever the length of the match.
`aded_corpus`, `rest_corpus` and `sam_decoding_corpus` have the same text, and the first
two the same memory: with
python -m experiments.datastore --text=... --most=851968 --out=runs/datastore
REST's index, which SAM-Decoding searches too, takes the 6.8 MB of ADED's table. Run
them with '--config.methods=("aded_corpus","rest_corpus","sam_decoding_corpus")'.

LogitSpec is left out: it takes the runners-up of a token for guesses of the token after
it, and a record's are the text's own bigrams, guesses of the token itself.
"""

import ml_collections

FIXED = (2, 4, 8, 16)


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "replay"
    config.data = ""  # JSONL or parquet: a prompt and its response a row
    config.prompt_field = "prompt"  # name of the prompt in a line
    config.response_field = "response"  # name of the response in a line
    config.records = 100  # lines that are read; 0: all
    config.longest = 2048  # tokens of a record; a longer one is left out
    config.times = 1  # replays of all records; the last one counts
    config.tokenizer = ""  # a tokenizer.json, its folder or owner/name; empty: tiny's
    # Names of recipes in configs/, or of `variants`.
    config.methods = (
        "prompt_lookup",
        "copyspec",
        "token_recycling",
        "suffix_decoding",
        "sam_decoding",
        "lookahead",
        "aded",
        *(f"suffix_fixed_{n}" for n in FIXED),
    )
    # More methods by name, as a recipe's field `method`.
    config.variants = {
        f"suffix_fixed_{n}": {
            "drafter": {
                "name": "drafters/suffix_decoding",
                "alpha": 0.0,
                "offset": float(n),
            }
        }
        for n in FIXED
    } | {
        f"{name}_corpus": {
            "drafter": {"name": f"drafters/{name}", "datastore": "runs/datastore"}
        }
        for name in ("aded", "rest", "sam_decoding")
    }
    # Pairs (more, less) of methods compared in tokens a call.
    config.directions = (
        ("token_recycling", "prompt_lookup"),
        ("token_recycling", "lookahead"),
        ("suffix_decoding", "token_recycling"),
        ("copyspec", "token_recycling"),
        *(("suffix_decoding", f"suffix_fixed_{n}") for n in FIXED),
        ("sam_decoding", "token_recycling"),
        ("sam_decoding", "prompt_lookup"),
        ("aded_corpus", "rest_corpus"),
        ("sam_decoding_corpus", "rest_corpus"),
    )
    return config
