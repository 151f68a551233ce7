"""JSONSchemaBench on a model: coverage, compliance, time a token, calls saved.

Geng et al., *JSONSchemaBench: A Rigorous Benchmark of Structured Outputs for Language
Models*, 2025, arXiv 2501.10868.

python -m experiments.run --config=configs/studies/jsonschemabench.py
--config.data=../shared/data/jsonschemabench --workdir=runs/jsonschemabench

Hardware: two CPU cores, 50 minutes. Needs pip install -e
".[constraints]". Expected: without a constraint `tiny` writes no instance, with one
nearly all are; compact texts take about a sixth fewer calls with jump-forward around
plain decoding and Token Recycling, and as many around a trained head.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `jsonschemabench`."""
    c = ml_collections.ConfigDict()
    c.stage = "jsonschemabench"
    c.model = "tiny"
    c.seed = 0  # of the draw
    c.data = ""  # the folder of JSONSchemaBench
    c.subsets = (  # to draw from
        *("Github_trivial", "Github_easy", "Github_medium", "Github_hard"),
        *("Glaiveai2K", "Kubernetes", "Snowplow", "WashingtonPost", "JsonSchemaStore"),
    )
    c.schemas = 200  # of them, whose prompts are short enough
    c.prompt_tokens = 700  # of a prompt at most
    c.max_new_tokens = 192  # of a text at most
    c.rows = 8  # prompts at once, each with its schema
    c.width = 8  # nodes of a row that the target verifies at once, at most
    c.methods = ("token_recycling", "tiny_fspad")  # beside plain decoding
    c.trained = {"tiny_fspad": "tiny-fspad"}  # folders of heads, by method
    c.whitespaces = ("compact", "flexible")  # between JSON's tokens
    return c
