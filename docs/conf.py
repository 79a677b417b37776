"""How Sphinx makes the site of these pages: `make docs`. Nothing is fetched from anywhere while it does."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "Waltz for Python"
author = "the authors of Waltz for Python"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
html_show_copyright = False
exclude_patterns: list[str] = []

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings, as GitHub makes them

default_role = "code"  # single backticks in docstrings are code, as everywhere else
suppress_warnings = ["ref.python"]  # the fronts have classes of equal names; a docstring means that of its own front
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
