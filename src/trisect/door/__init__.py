"""The Python door: everything that the command line does, one call each."""

from trisect.door.given import texts
from trisect.door.lessons import ask, chart, recall, theory_page, translate_train
from trisect.door.models import align, explore, explore_page, prove
from trisect.door.studies import annotate, check, corpus, dissect, is_study, list_claims, plan, render, study
from trisect.lab.subject import load

__all__ = [
    "align",
    "annotate",
    "ask",
    "chart",
    "check",
    "corpus",
    "dissect",
    "explore",
    "explore_page",
    "is_study",
    "list_claims",
    "load",
    "plan",
    "prove",
    "recall",
    "render",
    "study",
    "texts",
    "theory_page",
    "translate_train",
]
