"""REST: what followed the last tokens in a collection of texts.

He, Zhong, Cai, Lee, He, REST: Retrieval-Based Speculative Decoding, 2023, arXiv
2311.08252. First make the datastore:

python -m experiments.datastore --model=tiny --text=DIRECTORY --out=runs/datastore

python -m experiments.generate --model=tiny --method=rest \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {
        "drafter": {"name": "drafters/rest", "datastore": "runs/datastore"},
    }
    return config
