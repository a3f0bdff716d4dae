"""The served page's component in a notebook: the kernel answers, and no server is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trisect.core.door import door
from trisect.core.errors import SpecError, TrisectError
from trisect.core.extras import need_extra
from trisect.core.finding import Json
from trisect.core.subject import AnsweringSubject
from trisect.server.answering import PageModel
from trisect.server.component import bench, style
from trisect.server.run import link
from trisect.server.state import PageState, read_question

if TYPE_CHECKING:
    from anywidget import AnyWidget


class KernelReply(NamedTuple):
    """What the kernel says to a question: words, and the chunks of the picture as they are."""

    content: dict[str, Json]
    buffers: tuple[bytes, ...] = ()


def reply(model: PageModel, content: Mapping[str, Json]) -> KernelReply:
    """The reply to one message of the component; an error of three parts where it cannot be answered."""
    given = dict(content)
    page, number = given.pop("page", False), given.get("sequence")
    try:
        with door():
            asked = read_question(given)
            if page:
                return KernelReply({"sequence": number, "page": model.page(asked.state)})
            made = model.answer(asked.state, asked.has)
    except TrisectError as error:
        parts: dict[str, Json] = {"given": error.given, "known": error.known, "todo": error.todo}
        return KernelReply({"sequence": number if isinstance(number, int) else 0, "error": parts})
    return KernelReply({"sequence": number, "words": made.words}, made.chunks)


def switchboard(subject: AnsweringSubject, source: str, text: Sequence[str], second: Sequence[str]) -> AnyWidget:
    """The component as a widget of anywidget's; raises SpecError where that is not installed."""
    need_extra("anywidget", "notebook", "trisect.switchboard")
    if not isinstance(subject, AnsweringSubject):
        known = "It cannot say what it predicts."
        raise SpecError(f"{type(subject).__name__} was given.", known, "Give a model that trisect.load returns.")
    state = link(PageState(tuple(text), tuple(second))) if text else ""
    model = PageModel(subject, source)
    made = _widget()(about=json.dumps(model.about()), state=state)

    def answer(widget: Any, content: Any, _: Any) -> None:
        said = reply(model, content)
        widget.send(said.content, buffers=list(said.buffers))

    made.on_msg(answer)
    return made


@cache
def _widget() -> type[Any]:
    import anywidget
    import traitlets

    class Switchboard(anywidget.AnyWidget):
        """Texts, switches and what changes; `state` is what a link of the served page holds."""

        _esm = bench("widget.js")
        _css = style()
        about = traitlets.Unicode().tag(sync=True)
        state = traitlets.Unicode().tag(sync=True)

    return Switchboard
