"""Sphinx settings of the documentation: `make docs` writes build/site.

The source folder is the root of the repository, so that links between pages, and from a page to a
file of the sources, are the same here and in a checkout.
"""

import importlib.util
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from snailps import __version__

ROOT = Path(__file__).resolve().parents[2]

project = "snailps"
author = "The snailps maintainers"
copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = [
    "*.md", "docs/**", "bench/README.md", "examples/**.md", "findings/README.md",
    "tests/README.md", "tools/README.md", "changelog.d/README.md",
]  # fmt: skip
exclude_patterns = ["docs/site"]

myst_heading_anchors = 4
"""Levels of headings that links name by their slugs, as in a checkout."""
suppress_warnings = ["misc.highlighting_failure"]
"""Fences of hexadecimal bytes are named after their frame, not after a language."""

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
"""Docstrings say types, with shapes and units."""
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]
napoleon_google_docstring = False
napoleon_use_ivar, napoleon_use_param, napoleon_use_rtype = True, False, False
"""Types are words of the docstrings, and no names to link."""
default_role = "code"

html_theme = "furo"
html_title = f"snailps {release}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["root"]
"""`index.html`, which leads to the first page: that is below docs/."""
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
"""Pages for users rank before records of measurements."""


def keep_text_of_folders(app: Sphinx, page: nodes.document) -> None:
    """Show links to folders of the sources as text: the site has no pages for them."""
    folder = (ROOT / app.env.doc2path(app.env.docname, base=False)).parent
    for link in list(page.findall(pending_xref)):
        if link["reftype"] == "myst" and (folder / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", keep_text_of_folders)
