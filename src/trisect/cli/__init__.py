"""The door of the command line: parse, call, print."""

from trisect.cli import models, people, study, translation  # each adds its commands
from trisect.cli.group import main

__all__ = ["main", "models", "people", "study", "translation"]
