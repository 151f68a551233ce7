"""Numbers of objects of the host."""

import gc

from decoding.automata import numbered


class Named:
    """Something that can be named."""


def test_a_number_is_its_object_s_while_it_lives():
    """Planted: the numbers of another collection name other objects."""
    numbers, others = numbered.Numbers[Named](), numbered.Numbers[Named]()
    first, second = Named(), Named()
    names = [numbers.of(first), numbers.of(second)]
    assert names == [numbers.of(first), numbers.of(second)]
    assert [numbers.get(name) for name in names] == [first, second]
    assert numbers.of(None) == numbered.NONE
    assert numbers.get(numbered.NONE) is None
    others.of(second)
    assert others.get(names[0]) is not first
    del first
    gc.collect()
    assert numbers.get(names[0]) is None
    assert numbers.of(Named()) not in names
