"""Sphinx: ``python -m sphinx docs docs/_build`` with the extra ``docs``.

The examples are shown with their stored pictures and not run: together they take half an hour.
``-D plot_gallery=1`` runs them and takes their pictures anew.
"""

import inspect
import re
from configparser import ConfigParser
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes

import skuq

HERE = Path(__file__).parent

project = "skuq"
author = "the skuq developers"
copyright = author  # noqa: A001
version = release = skuq.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "sg_execution_times.rst",
    "auto_examples/index.rst",  # examples.md is the gallery, by task
    "auto_examples/sg_execution_times.rst",
]
templates_path = ["_templates"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_preserve_defaults = True  # no paths of this machine in signatures
autodoc_typehints = "none"  # the docstrings say the types
default_role = "py:obj"
html_math_renderer = "mathml"  # needs neither a script nor a network
viewcode_line_numbers = True
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
        picture = found[1].replace("thumbs/", "")
        image = f"\n.. image:: /{picture}\n   :alt: The picture that this example draws.\n\n"
        introduction = source[0].find(".. GENERATED FROM PYTHON SOURCE LINES", 1)
        source[0] = source[0][:introduction] + image + source[0][introduction:]


# The theme

metadata = ConfigParser()
metadata.read(HERE.parent / "setup.cfg")
urls = dict(line.split(" = ") for line in metadata["metadata"]["project_urls"].strip().split("\n"))
SOURCE = urls["Source"]
LOGO = "_static/logo.svg"

html_theme = "pydata_sphinx_theme"
html_title = f"skuq {version}"
html_static_path = ["_static"]
html_css_files = ["skuq.css"]
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "icon_links": [{"name": "Source", "url": SOURCE, "icon": "fa-solid fa-code-branch"}],
    "logo": {
        "text": f"skuq {version}",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "get_started": [], "examples": [], "about": []}


# Names become links, in docstrings and on pages

DOCUMENTATION = {
    "joblib": "https://joblib.readthedocs.io/en/stable/generated/{}.html",
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{}.html",
    "sklearn": "https://scikit-learn.org/stable/modules/generated/{}.html",
}


def public_names():
    """Every public name, with and without ``skuq.`` and its package, and its full name."""
    names = {}
    for name in skuq.__all__:
        value = getattr(skuq, name)
        if not inspect.ismodule(value):
            names |= dict.fromkeys((name, f"skuq.{name}"), f"skuq.{name}")
            continue
        for member in value.__all__:
            full = f"skuq.{name}.{member}"
            names |= dict.fromkeys((member, f"{name}.{member}", full), full)
    return names


NAMES = public_names()


def link_names(app, doctree):
    """Link the code on pages that is nothing but a public name."""
    if app.env.docname.startswith(("_generated", "auto_examples")):
        return
    for node in list(doctree.findall(nodes.literal)):
        target = NAMES.get(node.astext().removesuffix("()"))
        ancestors = (nodes.reference, nodes.title, addnodes.pending_xref)
        if target is None or any(isinstance(parent, ancestors) for parent in _parents(node)):
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=False
        )
        node.replace_self(link)
        link += node


def _parents(node):
    while node.parent is not None:
        node = node.parent
        yield node


def fold_sections(app, doctree):
    """Fold what follows a heading after a comment "% fold". Links open folds."""
    wanted = False
    for node in list(doctree.findall()):
        if isinstance(node, nodes.comment) and node.astext() == "fold":
            wanted = True
        elif isinstance(node, nodes.section) and wanted:
            wanted = False
            opening = "<details class='skuq-fold'><summary>Show this section</summary>"
            node.insert(1, nodes.raw("", opening, format="html"))
            node += nodes.raw("", "</details>", format="html")


def link_elsewhere(app, env, node, content):
    """Link names of other libraries by the pattern of their pages: this needs no network."""
    target = node.get("reftarget", "")
    pattern = DOCUMENTATION.get(target.split(".")[0])
    if pattern and target.count(".") and "._" not in target:
        return nodes.reference("", "", content, internal=False, refuri=pattern.format(target))
    return None


# Formulas


def inline_formula(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_formula(self, node):
    formula = convert(node.astext(), display="block")
    self.body.append(f'<div class="math" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


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


def wide_page(app, pagename, templatename, context, doctree):
    """Leave out the menu at the right of pages with wide tables."""
    if pagename.startswith("results/"):
        remove = {"html_theme.sidebar_secondary.remove": "true"}
        context["meta"] = {**(context.get("meta") or {}), **remove}


def setup(app):
    app.add_html_math_renderer("mathml", (inline_formula, None), (block_formula, None))
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", fold_sections)
    app.connect("missing-reference", link_elsewhere)
    app.connect("html-page-context", wide_page)
    app.connect("autodoc-process-docstring", plain_foreign_docstring)
    app.connect("autodoc-skip-member", skip_foreign_member)
    app.connect("source-read", stored_picture)
