"""What do filters of a vocabulary cost, and does every text pass them?

CTGS (arXiv 2306.15926) reports that masks beat fine-tuning in perplexity on prose
without the letter e, since no probability is lost to tokens that break the rule.

python -m experiments.run --config=configs/studies/ctgs.py --workdir=runs/ctgs

Hardware: a CPU, about three minutes. Expected: all texts pass; under the filtered law
they are likelier than under the model's own; truncation before the filters leaves no
token at some places.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `ctgs`."""
    c = ml_collections.ConfigDict()
    c.stage = "ctgs"
    c.model = "tiny"
    c.data = ""  # a folder of question files; "": the project's texts
    c.task = "code"  # whose prompts are continued
    c.tasks = ("code",)  # tasks to read, `task` among them
    c.prompts = 60  # texts of an arm
    c.prompt_tokens = 96  # of a prompt
    c.max_new_tokens = 64  # of a text
    c.seed = 0  # of the samples
    c.top_k = 50  # tokens that truncation keeps
    c.top_p = 0.9  # mass that it keeps
    c.shown = 2  # texts of an arm that the run's files hold
    spaces = " \n\t"
    # Arguments of constraints/ctgs for each arm; "plain" is needed.
    c.arms = {
        "plain": {},
        "no_e": {"filters": {"banned": ("e", "E")}},
        "no_e_no_a": {"filters": {"banned": ("e", "E", "a", "A")}},
        "shorter_than_5": {"filters": {"shorter": 5}, "texts": ("strip",)},
        "isogram": {
            "filters": {"isogram": 1},
            "texts": ("lower", "strip"),
            "spare": spaces,
        },
        "starts_with_s": {"filters": {"starts": "s"}, "texts": ("strip",)},
    }
    return c
