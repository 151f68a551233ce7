"""How much less do greedy texts repeat under RPG, and what do other penalties do?

RPG (arXiv 2505.10402) reports fewer repetitions than penalties and n-gram blocking on
CodeRepetEval, whose prompts end in repetitions.

python -m experiments.run --config=configs/studies/rpg.py --workdir=runs/rpg
    --config.data=DIRECTORY

DIRECTORY holds CodeRepetEval's files, from github.com/LYC127/RPG. Without it, held-out
code is continued.

Hardware: a CPU, about five minutes. Expected: less repetition than greedy decoding, the
less the smaller `decay`; a text is greedy decoding's until something repeats.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `rpg`."""
    c = ml_collections.ConfigDict()
    c.stage = "rpg"
    c.model = "tiny"
    c.data = ""  # the folder of the files; "": the project's texts of `tasks`
    # Files of the folder, a row with a field `prompt` each.
    c.files = ("ArtificialSynthesis.jsonl.gz", "CodeGenerationBenchmarks.jsonl.gz")
    c.tasks = ("code",)  # built-in texts, without a folder
    c.prompts = 60  # of a file or task
    c.prompt_tokens = 160  # the end of a prompt that is read
    c.max_new_tokens = 64  # of a text
    c.batch = 60  # prompts decoded at once
    rpg = lambda **fields: ({"name": "transforms/rpg", **fields},)
    # The transforms of each arm; "greedy" and "rpg" are needed.
    c.arms = {
        "greedy": (),
        "rpg": rpg(),
        "rpg_logit": rpg(of="logit"),
        "rpg_half": rpg(decay=0.5),
        "rpg_tenth": rpg(decay=0.1),
        "rpg_half_tokens": rpg(decay=0.5, lines=0),
        "repetition_penalty": (
            {"name": "transforms/repetition_penalty", "penalty": 1.1},
        ),
        "no_repeated_8_grams": ({"name": "transforms/no_repeat_ngram", "n": 8},),
        "no_repeated_4_grams": ({"name": "transforms/no_repeat_ngram", "n": 4},),
    }
    return c
