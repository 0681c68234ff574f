"""Choose what a search does where its parameters do not say: by the papers, or as tuned.

This is the only file that knows both sides of the wall between the papers' methods and the
recommended estimators: ``estimators/methods`` imports nothing of ``estimators/tabular``.
"""

from typing import Any

from skuq.estimators.methods._search_plan import SearchDefaults
from skuq.estimators.tabular._preset import TunedDefaults
from skuq.networks import TabularSpace


def defaults_in(space: Any) -> SearchDefaults:
    """Return the tuned defaults if the space of a search is the recommended one."""
    return TunedDefaults() if isinstance(space, TabularSpace) else SearchDefaults()
