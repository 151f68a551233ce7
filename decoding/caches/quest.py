"""Quest: read the pages whose keys may fit the query best.

Tang, Zhao, Zhu, Xiao, Kasikci, Han, *Quest: Query-Aware Sparsity for Efficient
Long-Context LLM Inference*, 2024, arXiv 2406.10774, section 3.3. Of every page of
`page` tokens the least and the largest value of each key channel are kept, m and M. No
key of the page has a larger product with a query q than

    U = sum_i max(q_i m_i, q_i M_i)

and a node reads the pages of the largest U, `budget` / `page` in all. The last page,
which is not full, is always read. So are all slots in the first `full` layers.

Deviations: a KV head's U is the largest of its query heads'; at least the last page is
read, where the official evaluation takes 3 pages or more; a round ends at the end of a
page, so that no page holds tokens of a draft (`newest=2` reads the last two pages and
lets a round go a page further). `refresh` > 1 is not in the paper. Cost: two products
with m and M per page, 2 / `page` of the keys' bytes.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import pages, selected
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2406.10774",
    guarantee=base.LOSSY,
    family="sparse reads",
    sources=("tang2024quest",),
    examples={"budget": 12, "page": 4, "full": 0},
)


def policy(
    budget: budgets.Budget = 1024,
    page: int = 16,
    full: int = 2,
    newest: int = 1,
    refresh: int = 1,
) -> base.CachePolicy:
    """Read the pages of the largest upper bounds.

    Args:
        budget: slots that a KV head reads, or a share of the prompt; a part of a page
            counts as a page.
        page: tokens of a page.
        full: the first layers, which read all slots.
        newest: the last pages, which are always read.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: a number out of range.
    """
    if page < 2 or full < 0 or newest < 1:
        raise MethodError(
            f"page={page}, full={full}, newest={newest}: use at least 2, 0 and 1"
        )

    def score(layer, asked):
        low, high = layer.extra["low"], layer.extra["high"]
        q = asked.q.astype(jnp.float32)
        bound = jnp.einsum("bngrd,bgpd->bgrnp", jnp.maximum(q, 0), high)
        bound += jnp.einsum("bngrd,bgpd->bgrnp", jnp.minimum(q, 0), low)
        ends = (jnp.arange(low.shape[2], dtype=jnp.int32) + 1) * page
        start = (asked.prefix // page + 1 - newest) * page
        old = ends <= start[:, None]
        return jnp.where(old[:, None, None], bound.max(2), -jnp.inf)

    def bounds(keys):
        return {"low": keys.min(2), "high": keys.max(2)}

    def learn(layer, about):
        return pages.filled(layer, about.before, about.length, page, bounds)

    def sized(slots, heads):
        return jnp.float32, (max(slots // page, 1), heads[1])

    rule = selected.Rule(
        score,
        extra={"low": sized, "high": sized},
        learn=learn,
        unit=page,
        newest=newest,
        cost=1 / page,
    )
    return selected.policy(rule, budget, selected.own(full), refresh)
