"""EAGLE's static tree (`eagle/model/choices.py`), 25 drafts, five levels deep.

Li, Wei, Zhang, Zhang, *EAGLE*, 2024, arXiv 2401.15077. Its repository calls it
`mc_sim_7b_63` too, although it is not Medusa's tree of that name.
"""

TREES = {"eagle": "4 | 3,2,2,1 | 3,2,2,1 | 3 | 2"}
