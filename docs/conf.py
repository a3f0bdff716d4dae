"""The manual's settings for Sphinx: python -m sphinx -W -c docs . build/manual (from the repository's root, offline)."""

from importlib import metadata

project, author = "trisect", "The trisect maintainers"
release = metadata.version("trisect")
copyright = f"MIT licence, {author}"
extensions = ["myst_nb"]
root_doc = "docs/index"
include_patterns = ["docs/**", "results/README.md", "results/*/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = ["build/**", ".venv/**", "**/.ipynb_checkpoints"]
myst_heading_anchors = 4
suppress_warnings = [
    "toc.not_included"
]  # decisions are linked from their list; tests/unit/test_manual.py holds that every page is reached
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
html_theme = "pydata_sphinx_theme"
html_title = "trisect"
html_static_path = []
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
