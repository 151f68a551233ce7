"""Static trees as data, names to strings.

The code is that of `decoding/tree_design/tree_code.py`.

A recipe takes one as `{"name": "topologies/static", "choices": medusa.TREES[...]}`.
"""
