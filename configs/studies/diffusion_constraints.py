"""What do constraints of a canvas cost, and are all finished texts in the language?

Mündler et al., *Constrained Decoding of Diffusion LLMs with Context-Free Grammars*,
2025, arXiv 2508.10111, report near-perfect syntax for diffusion models. Here one pass
of grammars over tokens and of token automata is timed by canvas and rules. The masked
toy then writes the same prompts freely and under three constraints.

Command:  python -m experiments.run --config=configs/studies/diffusion_constraints.py
              --workdir=runs/diffusion_constraints
Hardware: 2 CPU cores, 10 minutes. Every row is stored: the same command resumes.

Expected: every constrained text is in its language, and few free ones are. A pass of 50
rules over 64 positions takes 18 ms at most.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `diffusion_constraints`."""
    c = ml_collections.ConfigDict()
    c.stage = "diffusion_constraints"
    c.model = "the masked toy"  # in the report's title
    c.seed = 0  # of the drawn grammars and canvases
    c.vocabulary = 4096  # tokens of the timed passes
    c.nonterminals = 20  # of a drawn grammar
    # (positions, rules of two symbols) of the timed grammars.
    c.passes = ((32, 50), (64, 50), (64, 200), (128, 50), (256, 50))
    # (positions, states) of the timed automata.
    c.automata = ((64, 50), (64, 500), (256, 50))
    c.repeats = 31  # of every time; medians are taken

    c.seeds = (0, 1, 2)  # of the toy's tables
    c.scale = 3.0  # deviation of its logits
    c.prompts = ((1, 2, 3), (2, 0, 1, 4, 4), (0,), (1,) * 9)
    c.samples = 16  # texts of a prompt
    c.tokens = 16  # of a canvas
    c.temperature = 0.8  # of the draws
    # Name: an argument of `decoding.generate`, or a method file; and the grammar.
    c.constraints = (
        {"name": "regex, on the device", "regex": "(ab|c[de]*c)+"},
        {"name": "grammar over tokens", "cfg": 'root ::= ("a" root "b" | [cde])*'},
        {"name": "byte machine, host", "gbnf": 'root ::= ("a" root "b" | [cde])*'},
    )
    # Schedules, by the lines of the table.
    c.arms = (
        {"name": "1 a step", "schedule": ({"name": "diffusion/llada"},)},
        {
            "name": "threshold .5",
            "schedule": ({"name": "diffusion/fast_dllm", "threshold": 0.5},),
        },
        {
            "name": "4 a step",
            "schedule": ({"name": "diffusion/llada", "steps": 4},),
        },
    )
    return c
