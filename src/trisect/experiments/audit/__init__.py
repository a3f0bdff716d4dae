"""Audit a handle of another library, or a module: is it q, k or v of a site, and does a write there reach the answer?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trisect.core.errors import ModelError
from trisect.core.schema import Option, record
from trisect.core.site import Site
from trisect.lab.experiment import Utility
from trisect.lab.inputs import ModelSource

if TYPE_CHECKING:
    from trisect.hf.verify.handle import Audit


@record
class AuditSettings:
    """A model, a handle of something inside it, and the site that it is to be."""

    source: ModelSource
    handle: Annotated[
        Any,
        Field(
            description="A module's path as named_modules() has it, or another library's name, as in "
            "transformer_lens:blocks.1.attn.hook_q or pyvene:1.query_output; in Python also a function (model, inputs) -> tensor, "
            "None where it does not fire."
        ),
        Option(metavar="MODULE", positional=True),
    ]
    site: Annotated[
        Site | str,
        Field(description="q, k or v of one layer, of all its heads or one: v@3, k@2.h1."),
        Option(metavar="SITE", grammar=Site.parse),
    ]
    text: Annotated[
        Any, Field(description="The text that is read; in Python also the model's own inputs."), Option(metavar="TEXT")
    ]
    end: Annotated[
        str,
        Field(description="Which tensor of a module: its output or its input."),
        Option(choices=("output", "input"), metavar="END"),
    ] = "output"
    write: (
        Annotated[
            Any,
            Field(description="A function (model, inputs, tensor) -> output, to a function as handle."),
            Option(name=""),
        ]
        | None
    ) = None


class _Audit(Utility[AuditSettings]):
    """Audit a handle on q, k or v: is it called, is it the same tensor as at the site, does writing to it change the output?

    Names of TransformerLens, pyvene, nnsight and nnterp, whose layers count from 0, need the extra `peers`. In Python a handle is
    also a function. Unless every verdict is right the command exits with 1, and `.assert_same()` of what is returned in Python
    raises AssertionError.

    \b
    trisect audit MODEL --handle encoder.layer.2.attention.self.value --site v@3.h2 --text "The cat sat on the mat."
    trisect audit lookup/models/seed-1 --handle model.layers.1.self_attn.v_proj --site v@2 --text "teri ga kivol ."
    """

    name = "audit"
    settings = AuditSettings

    @property
    def gives(self) -> type[Audit]:
        """What it replies with."""
        from trisect.hf.verify.handle import Audit

        return Audit

    def answer(self, settings: AuditSettings) -> Audit:
        """What it says to these settings; raises TrisectError."""
        from trisect.hf.load import Pretrained
        from trisect.hf.verify.handle import audit_handle

        subject, site = settings.source.open(), settings.site
        if not isinstance(subject, Pretrained):
            weights = "A model that a study trained is weights without modules."
            raise ModelError(f"A handle of {subject.name} was given.", weights, "Choose a model of Hugging Face's.")
        site = site if isinstance(site, Site) else Site.parse(site)
        return audit_handle(subject, settings.handle, site, settings.text, settings.end, settings.write)

    def failed(self, reply: Audit) -> bool:
        """Whether any verdict is not right."""
        return not reply.same


AUDIT = _Audit()
