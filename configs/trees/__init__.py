"""Static trees as data, in the code of `decoding/trees.py`: names to strings.

A recipe takes one as `{"name": "topologies/static", "choices": medusa.TREES[...]}`.
"""
