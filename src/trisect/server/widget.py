"""The page of `trisect serve` as a notebook widget: the kernel answers, without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trisect.core.errors import ModelError, SpecError, TrisectError, require_extra, translate_system_errors
from trisect.core.finding import Json
from trisect.core.printable import safe
from trisect.core.schema import read
from trisect.core.subject import AnsweringSubject
from trisect.server.answering import PageModel, PageQuestion, page_script, style
from trisect.server.run import initial_state, link

if TYPE_CHECKING:
    from anywidget import AnyWidget

MAX_ERROR = 300  # characters of an unexpected error that a page shows


class _KernelReply(NamedTuple):
    """The kernel's reply to a question: JSON content, the picture's binary chunks, and an unexpected error."""

    content: dict[str, Json]
    buffers: tuple[bytes, ...] = ()
    fault: Exception | None = None


def reply(model: PageModel, content: Mapping[str, Json]) -> _KernelReply:
    """The reply to one message of the widget; an error in three parts if it cannot be answered.

    A reply holds the client and number of its question, since every view of a widget receives all messages.
    """
    message = dict(content)
    page, number, client = message.pop("page", False), message.get("sequence"), message.get("client")
    recipient: dict[str, Json] = {
        "client": client if isinstance(client, str) else "",
        "sequence": number if isinstance(number, int) else 0,
    }
    try:
        with translate_system_errors():
            question = read(PageQuestion, message, "the request")
            if page:
                return _KernelReply({**recipient, "page": model.page(question.state)})
            answer = model.answer(question.state, question.has)
    except TrisectError as error:
        return _KernelReply({**recipient, "error": _parts(error)})
    except Exception as error:
        reason = safe(f"{type(error).__name__}: {error}"[:MAX_ERROR])
        wrong = ModelError("The kernel could not answer.", reason, "See its log, or the output of the cell.")
        return _KernelReply({**recipient, "error": _parts(wrong)}, fault=error)
    return _KernelReply({**recipient, "words": answer.words}, answer.chunks)


def _parts(error: TrisectError) -> dict[str, Json]:
    return {"problem": error.problem, "reason": error.reason, "todo": error.todo}


def switchboard(subject: AnsweringSubject, source: str, text: Sequence[str], second: Sequence[str]) -> AnyWidget:
    """The page as a widget; raises SpecError if anywidget is not installed."""
    require_extra("anywidget", "notebook", "trisect.switchboard")
    if not isinstance(subject, AnsweringSubject):
        reason = "It has no predictions."
        raise SpecError(f"{type(subject).__name__} was given.", reason, "Give a model that trisect.load returns.")
    initial = initial_state(tuple(text), tuple(second))
    state = "" if initial is None else link(initial)
    model = PageModel(subject, source)
    view = _widget()(about=json.dumps(model.about()), state=state)

    def answer(widget: Any, content: Any, _: Any) -> None:
        kernel_reply = reply(model, content)
        widget.send(kernel_reply.content, buffers=list(kernel_reply.buffers))
        if kernel_reply.fault is not None:
            raise kernel_reply.fault

    view.on_msg(answer)
    return view


@cache
def _widget() -> type[Any]:
    import anywidget
    import traitlets

    class Switchboard(anywidget.AnyWidget):
        """Texts, switches and changes; `state` is the query string of a link to the served page."""

        _esm = page_script("widget.js")
        _css = style()
        about = traitlets.Unicode().tag(sync=True)
        state = traitlets.Unicode().tag(sync=True)

    return Switchboard
