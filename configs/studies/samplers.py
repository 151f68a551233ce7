"""What samplers and searches do to the texts of small models.

python -m experiments.run --config=configs/studies/samplers.py --workdir=runs/samplers
    --config.data=DIRECTORY --config.text_model=runs/tiny_text/export
    --config.class_model=runs/tiny_classes/export

DIRECTORY holds english_novels and wikitext2, as for
configs/language_models/tiny_text.py, which trains the text model, and HumanEval's file
in humaneval. Models without a name leave their parts out.

Hardware: two cores, under 40 minutes. Expected, from the papers: the directions that
the first table of the report lists.
"""

import ml_collections

from configs.language_models import tiny_classes, tiny_text


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `samplers`."""
    c = ml_collections.ConfigDict()
    c.stage = "samplers"
    c.text_model = ""  # writes prose: a directory, such as runs/tiny_text/export
    c.code_model = "tiny"  # writes code
    c.class_model = ""  # the class-conditional model of GeDi's streams
    c.data = ""  # the directory of the texts; it must be given
    c.parts = ()  # names of parts to measure; () measures all
    c.seed = 0  # of the first seed's prompts and noise
    c.seeds = 3  # each draws prompts and noise of its own
    c.prompts = 24  # of a seed
    c.batch = 24  # prompts decoded at once
    c.prompt_tokens = 40  # of a prompt of prose
    c.max_new_tokens = 200  # of a text, where a part has no number of its own
    c.held = 0.02  # share of documents that the models' recipes hold out

    # How the models' recipes cut files into documents.
    novels, articles = tiny_text.get_config().data.parts[:2]
    c.novels = ml_collections.ConfigDict(novels)  # chapters
    c.articles = ml_collections.ConfigDict(articles)  # training articles
    paragraphs = tiny_classes.get_config().data.parts
    c.classes = ml_collections.ConfigDict(  # the wanted class first
        {"articles": paragraphs[1], "novels": paragraphs[0]}
    )

    c.mirostat = ml_collections.ConfigDict()
    c.mirostat.targets = (2.0, 3.0, 4.0)  # bits, rising
    c.mirostat.top_k = (10, 50)  # arms beside it
    c.mirostat.top_p = (0.5, 0.9)  # arms beside it
    c.contrastive = 5  # candidates of contrastive search
    c.xtc_temperature = 1.0  # with XTC and without
    c.dry_temperature = 0.7  # with DRY and without, beside 0

    c.gedi = ml_collections.ConfigDict()
    c.gedi.omegas = (5.0, 15.0, 30.0)  # weights of the class, rising
    c.gedi.prompt = 16  # tokens of a prompt, from a novel
    c.gedi.new = 64  # tokens of a text

    c.uscd = ml_collections.ConfigDict()
    c.uscd.longest = 512  # tokens of a prompt with its reference body
    c.uscd.new = 128  # tokens of a sampled body

    c.knn = ml_collections.ConfigDict()
    c.knn.entries = 50_000  # entries of the datastore
    c.knn.window = 512  # tokens that the model reads at once
    c.knn.neighbours = 1024  # of a query
    c.knn.weights = (0.05, 0.1, 0.25)  # of the neighbours' law, on held-out text
    c.knn.written = 0.25  # the weight that texts are sampled with
    c.knn.top_p = 0.8  # of these
    c.knn.held = "wikitext2/wiki.valid*"  # held-out articles
    c.knn.prompt = 64  # tokens before those that count
    c.knn.new = 128  # tokens that count

    c.adadec = ml_collections.ConfigDict()
    c.adadec.threshold = 2.161  # nats, for `tiny`
    c.adadec.data = ml_collections.ConfigDict()
    c.adadec.data.source = "tfds:stdlib_code"  # the text, its held-out split
    c.adadec.data.directory = ""  # empty: workdir/data
    c.adadec.evaluate = ml_collections.ConfigDict()
    c.adadec.evaluate.prompts = 1000  # places of a seed
    c.adadec.evaluate.prompt_tokens = 128  # before each
    c.adadec.evaluate.batch = 50  # places at once
    c.adadec.evaluate.beams = 3  # tokens to choose from
    c.adadec.evaluate.lookahead = 5  # tokens of a continuation behind each

    c.cntp = ml_collections.ConfigDict()
    c.cntp.trials = 10  # at most
    c.cntp.longest = 32  # tokens of a trial
    c.cntp.temperature = 0.8  # of both arms
    c.cntp.new = 48  # tokens of a text

    c.superposed = ml_collections.ConfigDict()
    c.superposed.drafts = (1, 2, 3, 8)  # k, rising
    c.superposed.prompt = 15  # tokens of a prompt
    c.superposed.new = 10  # tokens of a text
    c.superposed.top_p = 0.9  # of nucleus sampling
    c.superposed.tokens = 200_000  # of the n-grams' text

    c.beams = ml_collections.ConfigDict()
    c.beams.width = 4  # beams
    c.beams.weights = (1.0, 4.0)  # of the classifier's log-probability; the paper's: 1
    c.beams.new = 64  # tokens of a text
    c.beams.decay = 0.01  # of the classifier's weights

    c.hso = ml_collections.ConfigDict()
    c.hso.rates = (0.001, 0.003, 0.01)  # of Adam
    c.hso.steps = 1  # of Adam for every window
    c.hso.window = 64  # tokens of a window
    c.hso.windows = 4  # of a passage
    return c
