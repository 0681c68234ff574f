"""Sphinx: ``python -m sphinx docs docs/_build`` with the extra ``docs``.

The examples are shown with their stored pictures and not run: together they take half an hour.
``-D plot_gallery=1`` runs them and takes their pictures anew.
"""

import re
from pathlib import Path

import skuq

HERE = Path(__file__).parent

project = "skuq"
author = "the skuq developers"
copyright = author  # noqa: A001
version = release = skuq.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "sg_execution_times.rst", "auto_examples/sg_execution_times.rst"]
templates_path = ["_templates"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The gallery

PICTURE = re.compile(r'^# sphinx_gallery_thumbnail_path = "(.+)"$', re.MULTILINE)

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["auto_examples"],
    "plot_gallery": "False",
    "filename_pattern": r"/plot_",
    "doc_module": ("skuq",),
    "backreferences_dir": "_generated/backreferences",
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "thumbnail_size": (400, 280),
}


def stored_picture(app, docname, source):
    """Put the stored picture of an example that is not run below its introduction."""
    script = HERE.parent / "examples" / f"{Path(docname).name}.py"
    is_run = app.config.plot_gallery not in (False, "False", 0, "0")
    if not docname.startswith("auto_examples/") or is_run or not script.exists():
        return
    if found := PICTURE.search(script.read_text()):
        image = f"\n.. image:: /{found[1]}\n   :alt: The picture that this example draws.\n\n"
        introduction = source[0].find(".. GENERATED FROM PYTHON SOURCE LINES", 1)
        source[0] = source[0][:introduction] + image + source[0][introduction:]


# The theme

html_theme = "pydata_sphinx_theme"
html_title = "skuq"
html_static_path = ["_static"]
html_css_files = ["skuq.css"]
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "get_started": []}


def plain_foreign_docstring(app, what, name, obj, options, lines):
    """Take the markup out of docstrings inherited from other libraries.

    They refer to labels of those libraries' own pages, and some are not valid reST.
    """
    if not (getattr(obj, "__module__", None) or "skuq").startswith("skuq"):
        lines[:] = [re.sub(r":ref:`(.*?) <.*?>`", r"\1", line).replace("`", "") for line in lines]


def skip_foreign_member(app, what, name, obj, skip, options):
    """Leave out what classes inherit from other libraries than scikit-learn: Keras, tuple."""
    module = getattr(getattr(obj, "fget", obj), "__module__", None) or "builtins"
    return True if module.split(".")[0] not in ("skuq", "sklearn") else None


def setup(app):
    app.connect("autodoc-process-docstring", plain_foreign_docstring)
    app.connect("autodoc-skip-member", skip_foreign_member)
    app.connect("source-read", stored_picture)
