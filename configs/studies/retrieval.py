"""ADED's table of trigrams and REST's datastore: the same text, the same memory.

Liu et al., *ADED*, 2025, arXiv 2407.12021, section 4, which compares the two; He et
al., *REST*, 2024, arXiv 2311.08252. First make the datastore of the text, for both.
850,000 tokens take 6.8 MB as REST's datastore; ADED's table takes 6.8 MB for any text:

python -m experiments.datastore --model=tiny --text=DIRECTORY --suffix=.py \\
    --most=850000 --out=runs/datastore
python -m experiments.run --config=configs/studies/retrieval.py --workdir=runs/retrieval

Hardware: one core, nine minutes; resumes where it stopped. `aded_empty` is ADED
without the text: its table starts empty and fills from the decoded text alone.
Expected: `identical_to_plain` true in every row; ADED at least REST in tokens a call.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = ml_collections.ConfigDict(type_safe=False)
    config.variants = {
        name: {"drafter": {"name": f"drafters/{name}", "datastore": "runs/datastore"}}
        for name in ("aded", "rest")
    }
    config.variants["aded_empty"] = {"drafter": "drafters/aded"}
    config.methods = ("plain", *config.variants)
    config.directions = (("aded", "rest"), ("aded", "aded_empty"))
    config.tasks = ("code",)
    config.temperatures = (0.0, 0.8)
    config.prompts = 8
    config.prompt_tokens = 128
    config.max_new_tokens = 128
    return config
