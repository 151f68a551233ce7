"""decoding/search/README.md: its Python runs, block after block."""

import pathlib
import re

import pytest

import decoding

PAGE = pathlib.Path(decoding.__file__).parent / "search" / "README.md"


@pytest.mark.long
def test_the_page_runs(capsys):
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, "the page", "exec"), names)
    assert names["out"].stats.host_syncs > 0
    assert capsys.readouterr().out
    with pytest.raises(NameError):  # planted: a block alone
        exec(compile(blocks[-1], "the page", "exec"), {})


def test_every_name_of_the_page_is_there():
    """Names in backquotes that look like parts are parts; planted: one that is not."""
    known = {name.rpartition("/")[2] for name in decoding.catalogue.catalogue()}
    known |= {"beam"}
    text = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.S)
    named = set(
        re.findall(r"`((?:[a-z]+_)+[a-z]+|gedi|icn|uscd|dry|xtc|mbr|smc)`", text)
    )
    assert named - known == set()
    assert {"no_such_part"} - known
