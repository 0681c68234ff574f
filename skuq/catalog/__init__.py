"""The results of a search: trial records, trained members, and the catalog of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_catalog": ["Catalog"],
        "_folder": ["CatalogFolder"],
        "_records": ["FoldedMember", "HeldOut", "Member", "TrialRecord"],
    },
)
