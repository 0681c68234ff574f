"""Data of the papers: synthetic problems, and loaders of real sets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_image_corruptions": ["TEST_CORRUPTIONS", "VALIDATION_CORRUPTIONS", "corrupt_images"],
        "_table_corruptions": ["TABLE_CORRUPTIONS", "corrupt_table"],
        "_toy": ["make_gapped_sine"],
    },
)
