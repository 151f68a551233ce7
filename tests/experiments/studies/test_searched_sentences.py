"""Coverage at equal KL, by hand."""

from experiments.studies import searched_sentences as study


def rows(nats, coverage):
    return [{"nats": [nats, nats], "coverage": [coverage, coverage]}]


def test_a_setting_meets_the_others_at_its_nats():
    base = [rows(1.0, 0.0), rows(3.0, 0.4), rows(4.0, 0.2)]
    cells = study.at_equal_kl(rows(2.0, 0.5), base)
    assert cells == ["2.000", "0.500", "0.200", "+0.300 (+0.300 to +0.300)", "yes"]
    # A setting that covers less at more nats is never the reference.
    assert study.at_equal_kl(rows(4.0, 0.4), base)[2:] == [
        "0.400",
        "+0.000 (+0.000 to +0.000)",
        "even",
    ]
    beyond = study.at_equal_kl(rows(9.0, 0.3), base)
    assert beyond[2] == "0.400 (beyond)" and beyond[-1] == "no"


def test_words_of_a_row():
    row = {"concept_set": ["dog_N", "look_up_V"]}
    assert study.concepts(row) == ["dog", "look_up"]
