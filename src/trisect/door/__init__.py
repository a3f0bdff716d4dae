"""The Python API: everything that the command line does, one call each."""

from trisect.door.given import texts
from trisect.door.lessons import chart
from trisect.door.models import explore, prove
from trisect.door.studies import annotate, check, corpus, dissect, is_study, list_claims, render
from trisect.lab.subject import load

__all__ = [
    "annotate",
    "chart",
    "check",
    "corpus",
    "dissect",
    "explore",
    "is_study",
    "list_claims",
    "load",
    "prove",
    "render",
    "texts",
]
