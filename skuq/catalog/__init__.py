"""What a search leaves behind: trial records, trained members, the catalog of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_catalog": ["Catalog", "HeldOut"],
        "_folder": ["CatalogFolder"],
        "_records": ["FoldedMember", "Member", "TrialRecord"],
    },
)
