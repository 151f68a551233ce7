"""Prompt lookup: copy what followed the last tokens earlier in the text.

Saxena, Prompt Lookup Decoding, 2023, github.com/apoorvumang/prompt-lookup-decoding.

python -m experiments.generate --model=tiny --method=prompt_lookup \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/prompt_lookup"}
    return config
