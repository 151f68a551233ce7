"""decoding/automata/schema_formats.py: strings of each format, and near misses."""

import datetime
import random

import pytest

from decoding.automata.ecma_syntax import conjunction
from decoding.automata.schema_formats import FORMATS
from decoding.automata.string_automata import matches, searching

CASES = {
    "date": ("1999-12-31 2000-02-29", "1900-02-29 2024-04-31 24-01-01 2024-1-01"),
    "time": ("23:59:59Z 00:00:00.123+05:30", "24:00:00Z 12:00:00 12:60:00Z 12:00Z"),
    "date-time": ("2024-02-29T12:00:00z", "2023-02-29T12:00:00Z 2024-01-01"),
    "duration": ("P1Y2M3D P4W PT1H P1DT2M3S", "P P1 PT 1D P1W2D P1D2M"),
    "email": ("a.b+c@x-y.org a@[127.0.0.1]", "a@ @b a..b@c a@-b a@[1.2.3] a@b@c"),
    "hostname": ("a a-b.c0 A.b", "-a a- a..b a.b. a_b"),
    "ipv4": ("0.0.0.0 255.255.255.255", "256.0.0.1 1.2.3 1.2.3.4.5 01.2.3.4"),
    "ipv6": (
        ":: ::1 1:: 1:2:3:4:5:6:7:8 1::8 fe80::a:b ::ffff:1.2.3.4 1:2:3:4:5:6:1.2.3.4",
        ": ::: 1:2:3:4:5:6:7 1::2::3 1:2:3:4:5:6:7:8:9 12345:: 1:2:3:4:5:6:7:1.2.3.4",
    ),
    "uuid": (
        "123e4567-e89b-12d3-a456-426614174000",
        "123e4567-e89b-12d3-a456-42661417400 123e4567e89b12d3a456426614174000",
    ),
    "uri": (
        "http://a.b/c?d#e urn:x:y http://a.b:80/ mailto:a@b a:/b a: http://u:p@h/%41",
        "//a /a a http://[::1 a:b^c 1a:b http://a:b:c/ a:%4 http://a\\b",
    ),
    "uri-reference": ("//a /a a ./a:b ?c #d a:b", ":// a^b 1a:b %4 http://[::1"),
    "iri": ("http://ä.ö/ü?é#ß urn:x:y", "not-an-iri ä 1a:b a:\\"),
    "iri-reference": ("ä/ü ?é http://ä", ":ä a^b \\"),
    "uri-template": (
        "http://a/{b} {+x,y}{?q*,r:3} a{/b.c_d} %41",
        "http://a/{ {} {a}} {a:0} {a b} % a|b <a> {a-b}",
    ),
    "json-pointer": ("/a/b~0c~1 / //", "a #/a /~ /~2"),
    "relative-json-pointer": ("0 12# 1/a/b", "01 -1 # /a 1a 0##"),
}
EMPTY = ("uri-reference", "iri-reference", "uri-template", "json-pointer")


def _holds(name, text) -> bool:
    parts = conjunction(FORMATS[name])
    return all(matches(searching(tree), text) == wanted for wanted, tree in parts)


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    valid, invalid = CASES[name]
    assert [text for text in valid.split() if not _holds(name, text)] == []
    assert [text for text in [*invalid.split(), "\n"] if _holds(name, text)] == []
    assert _holds(name, "") == (name in EMPTY)


def _wrong_dates(pattern) -> int:
    rng, wrong = random.Random(0), 0
    for _ in range(3_000):
        year, month = rng.choice([1900, 2000, 2023, 2024]), rng.randrange(14)
        day = rng.randrange(33)
        try:
            valid = bool(datetime.date(year, month, day))
        except ValueError:
            valid = False
        text = f"{year:04}-{month:02}-{day:02}"
        [(_, tree)] = conjunction(pattern)
        wrong += matches(searching(tree), text) != valid
    return wrong


def test_dates_are_those_of_the_calendar():
    assert _wrong_dates(FORMATS["date"]) == 0


def test_fault_a_leap_day_in_every_year():
    """Planted: February has 29 days, as in patterns that do not look at the year."""
    assert _wrong_dates("^[0-9]{4}-02-29$|" + FORMATS["date"]) > 0
