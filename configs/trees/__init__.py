"""Static trees as data: name -> string.

`decoding/tree_design/tree_code.py` defines the strings' code.

A recipe uses one as `{"name": "topologies/static", "choices": medusa.TREES[...]}`.
"""
