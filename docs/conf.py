"""How Sphinx builds these pages: `make docs`. A warning is an error."""

from superopt._version import __version__

project = "superopt"
author = copyright = "The superopt developers"
version = release = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"superopt {__version__}"
html_copy_source = False
html_show_sphinx = False
