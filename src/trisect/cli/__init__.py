"""The door of the command line: parse, call, print."""

from trisect.cli import models, study  # each adds its commands
from trisect.cli.group import main

__all__ = ["main", "models", "study"]
