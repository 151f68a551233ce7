"""Constrained decoding: all schemas of JSONSchemaBench, costs, and other engines.

Geng et al., *JSONSchemaBench: A Rigorous Benchmark of Structured Outputs for Language
Models*, 2025, arXiv 2501.10868.

python -m experiments.run --config=configs/studies/constraints.py
--config.data=../shared/data/jsonschemabench --workdir=runs/constraints

Verdicts: every schema as a byte machine, with its instances. Costs: a draw of schemas
over vocabularies of three sizes. Peers: the same draw by llguidance, outlines-core and
xgrammar, where they are installed (pip install llguidance outlines-core xgrammar).
Speed: decoding with and without a constraint.

Hardware: two CPU cores, 15 minutes. --config.schemas=60 --config.draws=4
--config.sizes="(0,)" is a small run; the same workdir goes on with more.
"""

import ml_collections

TEXTS = (
    "english_novels/*.jsonl.gz",
    "wikitext2/wiki.train*.txt.gz",
    "tinyshakespeare/*.txt.gz",
    "tinystories_sample/*.txt.gz",
    "tldr_pages/*.jsonl.gz",
    "alpaca/alpaca_data.json.gz",
    "code_alpaca/*.json.gz",
)
SCHEMA = (
    '{"type": "array", "minItems": 80, "items": {"type": "object", "properties": '
    '{"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", '
    '"minimum": 0, "maximum": 999}}, "required": ["name", "count"], '
    '"additionalProperties": false}}'
)


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `constraints`."""
    c = ml_collections.ConfigDict()
    c.stage = "constraints"
    c.parts = ("verdicts", "costs", "peers", "speed")  # to run
    c.data = ""  # the folder of JSONSchemaBench
    c.schemas = 0  # of it, drawn; 0: all
    c.seed = 0  # of the draws
    c.processes = 2  # of `verdicts`
    c.chunk = 50  # schemas of a stored piece of `verdicts`
    c.limit = 60.0  # seconds after which a schema is stopped
    c.model = "tiny"  # whose vocabulary is size 0, and whose speed is measured
    c.sizes = (0, 32_768, 114_989)  # of vocabularies; 0: the model's
    c.text = ""  # folder of the texts that train vocabularies; empty: that above `data`
    c.texts = TEXTS  # patterns of its files
    c.draws = (200, 200, 60)  # schemas of `costs` by size
    c.timed = 20  # of these, schemas whose masks are timed
    c.repeats = 5  # of every time; medians are taken
    c.cost_chunk = 10  # schemas of a stored piece of `costs` and `peers`
    c.peers = (  # engines of `peers`
        *("decodax, device", "decodax, host", "llguidance"),
        *("outlines-core", "xgrammar"),
    )
    c.peers_size = 32_768  # their vocabulary
    c.peers_draw = 60  # their schemas
    c.peer_limit = 10.0  # seconds after which a peer is stopped at a schema
    c.speed_schema = SCHEMA  # of `speed`
    c.prompt = "# A list of parts, as JSON, number "  # of `speed`
    c.tokens = 64  # new ones of a row
    c.batches = (1, 8)  # rows at once
    return c
