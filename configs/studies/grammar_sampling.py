"""ASAp and AWRS: how near a text's law comes to the conditional one, and at what cost.

Park et al., *Grammar-Aligned Decoding*, 2024, arXiv 2405.21047; Lipkin et al., *Fast
Controlled Generation from Language Models with Adaptive Weighted Rejection Sampling*,
2025, arXiv 2504.05410.

python -m experiments.run --config=configs/studies/grammar_sampling.py
--workdir=runs/grammar_sampling

Hardware: a CPU, ten minutes. Expected: ASAp is further from the conditional law than
the mask at first, and near it after hundreds of texts; AWRS asks about a small share of
the vocabulary.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `grammar_sampling`."""
    c = ml_collections.ConfigDict()
    c.stage = "grammar_sampling"
    c.model = "tiny"
    c.seed = 0
    # Languages: form, deviation of the logits, what allowed words have more.
    c.forms = (("d?nv?", 1.5, 2.5), ("d?nv", 1.0, 2.0), ("d?nva?", 1.5, 2.0))
    c.runs = 5  # of each language
    c.marks = (0, 1, 5, 20, 50, 200, 1000)  # texts after which a law is compared
    c.prompt = "def is_even(n):\n    return"  # what the model continues
    c.gbnf = (  # of the answers to the prompt, by the model
        'root ::= " " ("not "? value | value " " op " " value) "\\n"\n'
        'value ::= "True" | "False" | "None" | "n" | [0-2]\n'
        'op ::= "==" | "%" | "-" | "and"'
    )
    c.samples = 400  # texts of the model
    c.tokens = 16  # of a text at most
    c.laws = 12  # texts along whose prefixes questions are counted
    c.draws = 200  # tokens that each scheme draws behind a prefix
    c.shipped = 64  # tokens that the host gets at first
    return c
