"""Widget: the explorer inside a notebook, with anywidget, or as plain HTML where that is not installed."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trisect.core.errors import there
from trisect.experiments.explore.page import HERE, html, manifest, pack, script, style, summary
from trisect.experiments.explore.picture import ExplorerPicture

if TYPE_CHECKING:
    from anywidget import AnyWidget


class Framed:
    """The explorer's page in a frame: what a notebook shows when anywidget is not installed."""

    def __init__(self, picture: ExplorerPicture) -> None:
        self._picture = picture

    def __repr__(self) -> str:
        return f"<Explorer {summary(self._picture)}>"

    def _repr_html_(self) -> str:
        frame = '<iframe title="trisect explorer" style="width:100%;height:52rem;border:0" srcdoc="{}"></iframe>'
        return str(Markup(frame).format(html(self._picture)))


def show(picture: ExplorerPicture) -> AnyWidget | Framed:
    """The explorer for a notebook: a widget of anywidget's (`trisect[notebook]`), else an object with HTML.

    Raises CorpusError where the text is too long to be shown.
    """
    if not there("anywidget"):
        return Framed(picture)
    packed = pack(picture)
    starts = [0, *accumulate(map(len, packed.chunks))]
    return _widget()(manifest=manifest(packed), starts=str(starts), data=b"".join(packed.chunks))


def module() -> str:
    """The widget's script as an ES module."""
    return script() + (HERE / "widget.js").read_text(encoding="utf-8")


@cache
def _widget() -> type[Any]:
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        """One text inside one model; the page's script, with bytes from the kernel."""

        _esm = module()
        _css = style()
        manifest = traitlets.Unicode().tag(sync=True)
        starts = traitlets.Unicode().tag(sync=True)
        data = traitlets.Bytes().tag(sync=True)

    return Explorer
