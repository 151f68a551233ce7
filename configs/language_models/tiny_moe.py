"""`tiny`'s recipe for a mixture: 8 experts a layer, of which a token visits two.

11.8 M parameters, 4.7 M of them active. The weight of the loss that spreads tokens over
the experts is that of Fedus et al., *Switch Transformers*, 2021, arXiv 2101.03961. The
model is saved as Mixtral, and is not shipped. Half of `tiny`'s windows: on a CPU all
experts' products are made for every token.

Command:  python -m experiments.run --config=configs/language_models/tiny_moe.py
              --workdir=runs/tiny_moe
Hardware: 2 CPU cores; 1.8 hours on one.
"""

import ml_collections

from configs.language_models import tiny


def get_config() -> ml_collections.ConfigDict:
    c = tiny.get_config()
    c.name = "tiny_moe"
    c.data.tokenizer = "models/packaged/tiny/tokenizer.json"
    c.model.experts = 8  # of a layer
    c.model.active = 2  # of a token
    c.model.d_ff = 192  # width of an expert
    c.data.stages = ((100, 8, 512), (1900, 4, 512), (40, 2, 2048))
    c.train.balance = 0.01  # weight of the loss that spreads tokens over experts
    c.train.decay = 500
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_moe.py "
        "--workdir=runs/tiny_moe"
    )
    c.notes = ""
    return c
