"""Sphinx: ``python -m sphinx docs docs/_build`` with the extra ``docs``."""

import skuq

project = "skuq"
author = "the skuq developers"
version = release = skuq.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
autosummary_generate = True
numpydoc_show_class_members = False
exclude_patterns = ["_build"]
html_theme = "alabaster"
