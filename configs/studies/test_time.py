"""Do searches turn more model calls into better texts, as their papers claim?

python -m experiments.run --config=configs/studies/test_time.py --workdir=runs/test_time
--config.data=DIRECTORY

DIRECTORY holds the folders `commongen` and `tldr_pages`. The three models are those of
configs/language_models/{tiny_countdown,tiny_programs,tiny_text}.py. The part `programs`
runs programs that a model wrote: read decoding/execution/tests_runner.py, then set
DECODAX_ALLOW_EXECUTION=1.

Hardware: two CPU cores, some 25 minutes.
Expected, by part: A*-decoding (arXiv 2505.13672) has the accuracy of best-of-n with
fewer nodes, and not with a shuffled reward; PG-TD (2303.05510) passes more hidden tests
than beams and samples that the same public tests filter; DeAL (2402.06147) and Transfer
Q* (2405.20495) have more reward than a reward of beginnings at equal KL; diverse beams
(1610.02424) hold more different words, and a better best text, than beams.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `test_time`."""
    c = ml_collections.ConfigDict()
    c.stage = "test_time"
    c.parts = ("countdown", "programs", "commongen", "tldr")  # parts to measure
    c.countdown_model = "runs/tiny_countdown/export"  # model of `countdown`
    c.programs_model = "runs/tiny_programs/export"  # model of `programs`
    c.text_model = "runs/tiny_text/export"  # model of `commongen` and `tldr`
    c.data = ""  # folder above commongen and tldr_pages
    # Each has problems and noise of its own, in every part.
    c.seeds = (0, 1, 2)

    c.countdown = ml_collections.ConfigDict()
    c.countdown.file = ""  # problems in `data`, in place of held-out ones
    c.countdown.problems = 64  # problems a seed
    c.countdown.samples = 32  # samples of best of n
    c.countdown.votes = 16  # samples of vote and first finish, and beams
    c.countdown.temperature = 1.0  # of everything that samples
    c.countdown.trials = 10  # CNTP's M
    c.countdown.step_samples = 8  # steps that A* samples behind a text
    c.countdown.expansions = 8  # texts that A* continues at most
    c.countdown.step_tokens = 16  # tokens of such a step at most

    c.programs = ml_collections.ConfigDict()
    c.programs.problems = 32  # problems a seed
    c.programs.simulations = 64  # PG-TD's texts
    c.programs.top = 3  # moves of a node
    c.programs.temperature = 1.0  # of the samples

    c.commongen = ml_collections.ConfigDict()
    c.commongen.problems = 12  # word lists a seed
    c.commongen.tokens = 24  # tokens of a text at most
    c.commongen.width = 2  # DeAL's beams
    c.commongen.top = 6  # candidate tokens of a text
    c.commongen.lookahead = 8  # tokens of a look-ahead
    # Nats that full coverage is worth: DeAL's alpha, and 1 / alpha of Transfer Q*.
    c.commongen.weights = (8.0, 24.0, 72.0)
    c.commongen.prefix_weights = (216.0,)  # further ones of rewards of beginnings

    c.tldr = ml_collections.ConfigDict()
    c.tldr.problems = 32  # pages a seed
    c.tldr.tokens = 24  # tokens of a text at most
    c.tldr.width = 6  # beams, of which each is a group of the diverse ones
    c.tldr.diversities = (0.2, 0.5, 0.8)  # penalties of the diverse beams
    return c
