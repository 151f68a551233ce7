"""The contracts of every family of methods, as functions to check your own method.

    from decoding.conformance import transforms
    transforms.check(decoding.Spec("transforms/my_sampler", epsilon=0.1))

Each `check` runs a part on toy models, in seconds on a CPU, and raises an
AssertionError that names the part and the property. Arguments come from the Spec, and
the others from `CARD.examples`. `tests/conformance` calls the checks for every file of
the catalogue, and shows that each catches its planted faults.
"""
