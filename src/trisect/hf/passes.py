"""The state of one forward pass under the product hook: its modules, its products, and what edits put in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from trisect.core.subject import Parts
from trisect.hf.arguments import Arguments, NamedArguments
from trisect.hf.calls import Edits
from trisect.hf.operands import Operand, Product


class ModuleCall(NamedTuple):
    """A module's forward call that is under way: the nth of that module, and the operations before it.

    `around` is how many rows the module around it works on.
    """

    name: str
    nth: int
    start: int
    around: int = 0


@dataclass(eq=False)
class ScoreProduct:
    """A product of two activations, which may be scores; the modules and the operation that made it."""

    product: Product
    frames: tuple[ModuleCall, ...]
    made: int


@dataclass(eq=False)
class MixedScores:
    """What another product made of scores."""

    score: ScoreProduct


@dataclass(eq=False)
class OpenSoftmax:
    """A softmax over scores, a sum of `terms` products, waiting for its product with v; `scale` multiplies q·k in the scores."""

    score: ScoreProduct
    scale: float | None
    terms: int = 1


class TensorView(NamedTuple):
    """An operation on one tensor alone, and which of its results is meant."""

    func: Callable[..., Any]
    args: Arguments
    kwargs: NamedArguments
    which: int

    def of(self, tensor: Tensor) -> Tensor:
        """The same of another tensor."""
        args = (tensor if isinstance(a, Tensor) else a for a in self.args)
        kwargs = {n: tensor if isinstance(a, Tensor) else a for n, a in self.kwargs.items()}
        return pick(self.func(*args, **kwargs), self.which)


def pick(out: Any, index: int) -> Tensor:
    """One of an operation's results."""
    return out[index] if isinstance(out, (tuple, list)) else out


class CallPlan(NamedTuple):
    """One call's places in a forward pass, as counted in a dry pass: operations since a frame began.

    `keep` says which operation makes what v is made of, and which of its results it is; `views` make v of it.
    """

    order: int
    keep: tuple[int, int]
    score: int
    value: int
    v: Operand
    views: tuple[TensorView, ...]


@dataclass(eq=False)
class ForwardPass:
    """What is known of one forward pass; `rows` is its batch, `planning` that it is a rehearsal."""

    rows: int
    planning: bool
    plans: dict[tuple[str, int], list[CallPlan]] = field(default_factory=dict)
    count: int = 0
    order: int = 0
    paused: bool = False
    frames: list[ModuleCall] = field(default_factory=list)
    entered: dict[str, int] = field(default_factory=dict)
    open: dict[int, OpenSoftmax] = field(default_factory=dict)
    remixed: set[int] = field(default_factory=set)
    late: dict[int, str] = field(default_factory=dict)
    births: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    parents: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    kept: dict[int, Tensor] = field(default_factory=dict)
    written: dict[int, Tensor] = field(default_factory=dict)

    def enter(self, name: str, rows: int | None = None) -> None:
        """A module begins, which may say how many rows it works on."""
        nth = self.entered.get(name, 0)
        self.entered[name] = nth + 1
        self.frames.append(ModuleCall(name, nth, self.count, self.rows))
        self.rows = self.rows if rows is None else rows

    def leave(self) -> None:
        """The module that began last is done."""
        self.rows = self.frames.pop().around

    def born(self, out: Any, func: Callable[..., Any], args: Arguments, kwargs: NamedArguments) -> None:
        """Note which operation made a tensor, and of what, where that is one tensor alone."""
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        for i, t in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if isinstance(t, Tensor) and t is not (given[0] if given else None):
                self.births[t] = (self.count, i)
                if len(given) == 1:
                    self.parents[t] = (given[0], TensorView(func, args, kwargs, i))

    def plan(self, score: ScoreProduct, shared: Sequence[ModuleCall], values: Operand) -> None:
        """Note where a call's v, scores and mixing are made; `late` where v is made of more than was there before."""
        tensor, views = values.tensor, []
        while self._made(tensor)[0] >= score.made and (parent := self.parents.get(tensor)) is not None:
            tensor = parent[0]
            views.insert(0, parent[1])
        born, index = self._made(tensor)
        if born >= score.made:
            self.late[self.order] = shared[-1].name
            return
        frame = next((f for f in reversed(shared) if f.start < born), shared[0])
        place = [n - frame.start for n in (born, score.made, self.count)]
        plan = CallPlan(self.order, (place[0], index), place[1], place[2], values, tuple(views))
        self.plans.setdefault((frame.name, frame.nth), []).append(plan)

    def _made(self, tensor: Tensor) -> tuple[int, int]:
        return self.births.get(tensor) or (self.count, 0)

    def _planned(self) -> Iterator[tuple[CallPlan, int]]:
        for frame in self.frames if self.plans else ():
            for plan in self.plans.get((frame.name, frame.nth), ()):
                yield plan, self.count - frame.start

    def keep(self, out: Any, edits: Edits) -> None:
        """Keep a v that will be written to."""
        for plan, now in self._planned():
            if now == plan.keep[0] and plan.order in edits.write:
                self.kept[plan.order] = pick(out, plan.keep[1])

    def edit(self, product: Product, edits: Edits, weights: Callable[[Tensor], bool]) -> Product:
        """The product with what the edits put in place of its operands; `weights` says of a tensor if it is such."""
        for plan, now in self._planned():
            writer = edits.write.get(plan.order)
            if writer is not None and now == plan.score:
                v = plan.v.of(reduce(lambda t, view: view.of(t), plan.views, self.kept.pop(plan.order)))
                parts = writer(Parts(product.query(self.rows), product.key(self.rows), v.take(self.rows)))
                self.written[plan.order] = v.give(parts.v)
                product = product.with_scores_of(parts.q, parts.k)
            elif now == plan.value and plan.order in self.written:
                product = product.replaced(1 if weights(product.left) else 0, self.written.pop(plan.order))
        return product
