"""Jobs for tests of engines, and an engine whose jobs share no disk with the driver."""

import json
import os
import signal
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from trisect.core.errors import CorpusError
from trisect.core.files import replace_file
from trisect.core.schema import record
from trisect.engine.drive import JobWork, OnEvent
from trisect.engine.jobs import Files, JobContext, JobOrder, JobProgress, job, write_files
from trisect.engine.start import Here

TEXT = "half"


def write(path: Path, text: str) -> None:
    replace_file(path, lambda scratch: scratch.write_text(text), durable=False)


@record
class Walk:
    """Steps of a chaotic map, whose every bit depends on all before; `marks` is a folder that survives a worker."""

    name: str
    steps: int
    marks: str = ""
    dies_at: tuple[int, ...] = ()  # after which step its worker dies, the first time, the second ...
    ends: str = "well"
    holds_at: int = 0  # the step after which it waits the first time, saying how far it is, until there is a mark 'go'


@job
def walk(asked: Walk, context: JobContext) -> None:
    state, at, x = context.scratch / f"state/{asked.name}.json", 0, context.read("start", read_start)
    if state.exists():
        at, x = json.loads(state.read_text())
    if asked.marks:
        with (Path(asked.marks) / asked.name).open("a") as file:
            file.write(f"{os.getpid()} {at}\n")
    while at < asked.steps:
        at, x = at + 1, 3.9 * x * (1 - x)
        write(context.scratch / f"steps/{asked.name}-{at}.txt", x.hex())
        write(state, json.dumps([at, x]))
        context.send_files()
        context.report(at / asked.steps, TEXT)
        times = len((Path(asked.marks) / asked.name).read_text().splitlines()) if asked.dies_at else 0
        if asked.dies_at[times - 1 : times] == (at,):
            os.kill(os.getpid(), signal.SIGKILL)
        if at == asked.holds_at and len((Path(asked.marks) / asked.name).read_text().splitlines()) == 1:
            hold(asked, context, at)
    if asked.ends == "refused":
        raise CorpusError(f"{state} is wrong.", "known", "todo")
    if asked.ends == "by a bug":
        raise ValueError("a bug")
    if asked.ends == "interrupted":
        raise KeyboardInterrupt
    if asked.ends == "never":
        threading.Event().wait(300)
    state.unlink()
    write(context.scratch / f"ends/{asked.name}.json", json.dumps(x))


def hold(asked: Walk, context: JobContext, at: int) -> None:
    for _ in range(3000):
        if (Path(asked.marks) / "go").exists():
            return
        context.report(at / asked.steps, TEXT)
        threading.Event().wait(0.1)
    raise TimeoutError("nobody ended it")


def read_start(path: Path) -> float:
    return float(path.read_text())


@dataclass(eq=False)
class Walking(JobWork):
    """A walk as work of a folder, which holds its start; it waits for the walks whose names are given."""

    asked: Walk
    folder: Path
    after: tuple[str, ...] = ()
    landed: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"walk {self.asked.name}"

    def ready(self) -> bool:
        return all((self.folder / f"ends/{name}.json").exists() for name in self.after)

    def order(self) -> JobOrder:
        state = f"state/{self.asked.name}.json"
        begins = {state: self.folder / state} if (self.folder / state).exists() else {}
        return JobOrder(walk, self.asked, self.folder, {"start": self.folder / "start.txt"}, begins)

    def land(self, files: Files) -> None:
        self.landed += files
        write_files(files, self.folder, ("state/*", "ends/*"))

    def finish(self) -> None:
        (self.folder / f"state/{self.asked.name}.json").unlink(missing_ok=True)


def folder_of_files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Far:
    """An engine as for another machine: what a job reads travels as bytes to another folder, and files come home as bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.here, self.placed = folder, Here(folder / "node"), 0

    def slots(self) -> int:
        return 1

    def submit(self, number: int, order: JobOrder) -> None:
        needs, begins = ({name: self._place(path) for name, path in of.items()} for of in (order.needs, order.begins))
        self.here.submit(number, replace(order, needs=needs, begins=begins))

    def _place(self, path: Path) -> Path:
        self.placed += 1
        place = self.folder / "read" / str(self.placed)
        for name, content in (folder_of_files(path) if path.is_dir() else {"": path.read_bytes()}).items():
            replace_file(place / name, lambda scratch, content=content: scratch.write_bytes(content))
        return place

    def events(self, timeout: float, on_event: OnEvent) -> None:
        def carry(number, event):
            if isinstance(event, JobProgress):
                files = {name: path.read_bytes() for name, path in event.files.items() if isinstance(path, Path)}
                event = replace(event, files=files)
            on_event(number, event)

        self.here.events(timeout, carry)

    def close(self) -> None:
        self.here.close()
