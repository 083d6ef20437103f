"""Sphinx settings of the docs site (`make docs`): the repository is the source, so that links work on both sides."""

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import paddle_ldopt

project = "paddle_ldopt"
author = "the authors of paddle_ldopt"
release = paddle_ldopt.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/reference/*.rst", "recipes/*.md", "benchmarks/*.md"]
myst_heading_anchors = 4
default_role = "py:obj"  # `AdamWDL` in a docstring is a link
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"paddle_ldopt {release}"
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"  # of the browser: no script from elsewhere
html_extra_path = ["images/report.html"]  # docs/pictures.md shows it
html_static_path = html_css_files = ["site.css"]

CONTENTS = """

```{toctree}
:hidden:
:caption: Guide
:glob:

docs/guide
docs/choosing
docs/migrating
recipes/README
docs/numerics
docs/evidence
benchmarks/README
docs/*
```
```{toctree}
:hidden:
:caption: Reference
:glob:

docs/reference/optimizers
docs/reference/layers
docs/reference/schedules
docs/reference/trainer
docs/reference/callbacks
docs/reference/*
```
```{toctree}
:hidden:
:caption: Project
:glob:

README.zh-CN
[!R]*
```
"""


def add_contents(app, name, source):
    """Append the contents of the site to the README."""
    if name == root_doc:
        source[0] += CONTENTS


def visit_math(self, node):
    """Write TeX within a line as MathML."""
    self.body.append(str(tex2mathml(node.astext())))
    raise SkipNode


def visit_math_block(self, node):
    """Write TeX of its own lines as MathML."""
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app):
    """Connect both."""
    app.connect("source-read", add_contents)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
