"""Falcon's static trees for blocks of two tokens (k = 2), 165 and 75 drafts.

Gao et al., *Falcon*, 2025, arXiv 2412.12639, under the names of its repository, which
lists one node of the first tree twice. They take four and two passes of the draft
layer. The repository's `tree_2` to `tree_6` are not here: in them a node has children
of higher ranks without those of all lower ones, and the code cannot express that.
"""

TREES = {
    "kmask2_8layer_tree": (
        "20 | 10,2,2,1 | 10,2,2,1,0,0,0,0,0,0,2,0,1,0,1"
        " | 10,2,1,0,0,0,0,0,0,0,2,1,1,1,1,2,0,1,1"
        " | 10,2,1,0,0,0,0,0,0,0,1,0,1,1,0,0,1,0,1,1,0,1,1"
        " | 9,2,1,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1,1,1,1"
        " | 9,2,1,0,0,0,0,0,0,1,0,0,1,0,0,1,1,1,1,1,1,1"
        " | 8,2,1,0,0,0,0,0,0,1,1,1,1,1,1,1,1,1,1,1,1"
    ),
    "kmask2_4layer_tree": (
        "20 | 11,4,4 | 7,10,1,1,0,0,0,0,0,0,0,1,0,0,0,1"
        " | 10,0,0,0,0,0,0,1,0,0,0,0,0,0,0,0,0,1,1,1,1"
    ),
}
