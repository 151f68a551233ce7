"""The range coder: exact on any symbols and tables, and close to their entropy."""

import numpy as np
import pytest

from decoding.serving.cachegen import rans


def case(seed: int, lanes: int, count: int, most: int, concentration: float):
    """Random lanes with tables of 2 to `most` symbols, and symbols drawn from them."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, most + 1, lanes)
    counts = rng.gamma(concentration, 100.0, (lanes, most))
    table = rans.normalised(counts * (np.arange(most) < sizes[:, None]), sizes)
    laws = table / rans.TOTAL
    symbols = np.stack([rng.choice(most, count, p=law) for law in laws])
    # Rare symbols, too: one of frequency 1 in every lane that has one.
    rarest = np.where(table > 0, table, rans.TOTAL).argmin(1)
    symbols[:, count // 2] = rarest
    return symbols, table


@pytest.mark.parametrize("seed", range(12))
def test_symbols_come_back(seed):
    """Lengths from 1 on, tables of 2 to 255 symbols, some of frequency 1."""
    rng = np.random.default_rng(100 + seed)
    lanes, count = int(rng.integers(1, 40)), int(rng.choice([1, 2, 3, 17, 90]))
    most = int(rng.choice([2, 5, 31, 255]))
    symbols, table = case(seed, lanes, count, most, float(rng.choice([0.02, 0.5])))
    assert (table.sum(1) == rans.TOTAL).all()
    coded = rans.encode(symbols, table)
    assert (rans.decode(coded, table, count) == symbols).all()


def test_frequency_one_is_coded():
    """Of a table (1, 2^16 - 1) both symbols, in any order."""
    table = np.array([[1, rans.TOTAL - 1]], np.uint32)
    for bits in range(32):
        symbols = np.array([[bits >> i & 1 for i in range(5)]])
        coded = rans.encode(symbols, table)
        assert (rans.decode(coded, table, 5) == symbols).all()


def test_size_is_the_tables_entropy():
    """Within 5 % with the lanes' states counted; planted: an even table in its place.

    512 symbols of 64 lanes: a state's 32 bits are about 2 % of a lane's code.
    """
    symbols, table = case(3, 64, 512, 31, 0.6)
    ideal = rans.entropy(symbols, table)
    assert ideal < rans.encode(symbols, table).bits < 1.05 * ideal
    even = rans.normalised(np.ones_like(table), (table > 0).sum(1))
    assert rans.encode(symbols, even).bits > 1.05 * ideal


def test_faults_are_noticed():
    """Planted: a lane's state is dropped or altered, a word lost, another table."""
    symbols, table = case(5, 8, 64, 31, 0.5)
    coded = rans.encode(symbols, table)
    wrong = [
        coded._replace(states=coded.states[:-1]),
        coded._replace(states=coded.states ^ np.uint32(1 << 20)),
        coded._replace(words=coded.words[1:]),
        coded._replace(words=coded.words ^ np.uint16(4)),
    ]
    for fault in wrong:
        with pytest.raises(ValueError, match=r"states|words|left over"):
            rans.decode(fault, table, 64)
    with pytest.raises(ValueError, match=r"words|left over"):
        rans.decode(coded, np.roll(table, 1, 0), 64)


def test_symbols_and_tables_are_checked():
    table = np.array([[rans.TOTAL, 0]], np.uint32)
    assert rans.encode(np.zeros((1, 9), int), table).words.size == 0  # nothing to say
    with pytest.raises(ValueError, match="frequency 0"):
        rans.encode(np.array([[0, 1]]), table)
    with pytest.raises(ValueError, match="sum to"):
        rans.encode(np.array([[0]]), table // 2)


def test_frequencies_are_positive_where_a_symbol_may_occur():
    """However rare; planted: without the floor the symbol has none."""
    counts = np.array([[10**9, 1, 0, 0]])
    table = rans.normalised(counts, np.array([3]))
    assert table.sum() == rans.TOTAL
    assert (table[0, :3] >= 1).all() and table[0, 3] == 0
    share = counts / counts.sum()
    assert (np.round(share * rans.TOTAL)[0, 1:3] == 0).all()
