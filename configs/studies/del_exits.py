"""Does DEL choose its exit as well as the best fixed one? And SWIFT, beside both.

Entezari Zarch et al., *DEL*, 2025, arXiv 2504.05598, sections 4 and 5; Xia et al.,
*SWIFT*, 2025, arXiv 2410.06916. A fixed exit is DEL with one exit to choose from: its
draft length and confidence threshold still adapt to the text. No draft has parameters.

python -m experiments.run --config=configs/studies/del_exits.py --workdir=runs/exits

Hardware: one core, nine minutes; resumes where it stopped. Another target:
--config.model=DIRECTORY --config.data=question.jsonl.
Expected: `identical_to_plain` true in every row, and `del_exit` at least as fast as
every `exit_`, which a target trained to exit early (LayerSkip) shows best.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = ml_collections.ConfigDict(type_safe=False)
    fixed = {
        f"exit_{layer}": {"drafter": {"name": "drafters/del_exit", "exits": (layer,)}}
        for layer in (1, 2, 4, 6)
    }
    config.variants = fixed
    config.methods = ("plain", "del_exit", *fixed, "swift")
    config.directions = tuple(("del_exit", name) for name in fixed)
    config.tasks = ("code",)
    config.temperatures = (0.0, 0.8)
    config.prompts = 8
    config.prompt_tokens = 128
    config.max_new_tokens = 128
    return config
