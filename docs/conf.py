"""Sphinx: ``python -m sphinx docs docs/_build`` with the extra ``docs``."""

import re

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


def plain_foreign_docstring(app, what, name, obj, options, lines):
    """Take the markup out of docstrings inherited from other libraries.

    They refer to labels of those libraries' own pages, and some are not valid reST.
    """
    if not (getattr(obj, "__module__", None) or "skuq").startswith("skuq"):
        lines[:] = [re.sub(r":ref:`(.*?) <.*?>`", r"\1", line).replace("`", "") for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", plain_foreign_docstring)
