"""Replace q, k or v of sites by zero, their mean or a second text's, several at once, and compare a model's outputs for one text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError, SpecError, import_optional
from trisect.core.files import Json
from trisect.core.site import Site
from trisect.core.subject import (
    QKV,
    AnsweringSubject,
    Batch,
    EditFunction,
    Readable,
    SharingSubject,
    SiteTarget,
    Writer,
    as_sample,
    edit_name,
    edit_writer,
    write_in_order,
)
from trisect.core.trace import Address, Reading, Side
from trisect.measure.patching import record, replace_at


def put(targets: Sequence[SiteTarget], source: QKV) -> Writer:
    """Make a writer that replaces the targets' components and heads by `source`; all else stays bit for bit.

    All targets have the same address. Each part of `source` is broadcast to the call's [B H T E].
    """

    def write(parts: QKV) -> QKV:
        new = parts._asdict()
        for target in targets:
            old: Tensor = new[target.component]
            part = getattr(source, target.component).to(old).expand_as(old)
            if target.heads is None:
                new[target.component] = part.contiguous()
                continue
            which = torch.tensor([head - 1 for head in target.heads], device=old.device)
            new[target.component] = old.index_copy(1, which, part[:, which])
        return QKV(**new)

    return write


def zeros() -> QKV:
    """Zeros for `put`: with q or k of 0 all scores are equal, with v of 0 a head contributes nothing."""
    nothing = torch.zeros(1, 1, 1, 1)
    return QKV(nothing, nothing, nothing)


def round_to_bits(
    x: Float[Tensor, "B H T E"], bits: int, by: str, real: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B H T E"]:
    """Quantise to 2**bits levels, evenly spaced from the smallest to the largest number of a channel or token.

    A 'channel' is one of a head's E dimensions over the `real` positions of a row (None: all), a 'token' one
    position of a head; other positions stay bit for bit. Source: Liu et al. 2024, KIVI, section 3 (asymmetric rounding).
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    counts = torch.ones_like(x, dtype=torch.bool) if real is None else real[:, None, :, None].expand_as(x)
    axis = {"channel": 2, "token": 3}[by]
    low = wide.masked_fill(~counts, torch.inf).amin(axis, keepdim=True)
    step = (wide.masked_fill(~counts, -torch.inf).amax(axis, keepdim=True) - low) / (2**bits - 1)
    level = torch.where(step > 0, ((wide - low) / step).round() * step + low, wide)
    return torch.where(counts, level.to(x.dtype), x)


def cut_to_rank(
    x: Float[Tensor, "B H T E"], rank: int, real: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B H T E"]:
    """Best approximation of rank `rank` of each head's matrix over the `real` positions of a row, in Frobenius norm.

    Other positions stay bit for bit. Source: Eckart & Young 1936, The Approximation of One Matrix by Another of Lower Rank.
    """
    counts = torch.ones_like(x, dtype=torch.bool) if real is None else real[:, None, :, None].expand_as(x)
    matrix = x.masked_fill(~counts, 0).double()
    main = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[..., -rank:]
    return torch.where(counts, (matrix @ main @ main.mT).to(x.dtype), x)


class Means:
    """Running mean of q, k and v of one attention layer over all real tokens of a corpus, in constant memory."""

    def __init__(self) -> None:
        self._sums: dict[str, Float[Tensor, "H E"]] = {}
        self._counts = dict.fromkeys(QKV._fields, 0)

    def add(self, parts: QKV, query_real: Bool[Tensor, "B T"], key_real: Bool[Tensor, "B S"]) -> None:
        """Add one batch; positions where `query_real` or `key_real` is false do not count."""
        for name, part, real in zip(QKV._fields, parts, (query_real, key_real, key_real), strict=True):
            # selected, not multiplied by 0: values at padding may be infinite
            total = part.detach().transpose(1, 2)[real.to(part.device)].double().sum(0)
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] += int(real.sum())

    def parts(self) -> QKV:
        """The means, each [1 H 1 E] in float64."""
        return QKV(*(self._sums[name][None, :, None] / self._counts[name] for name in QKV._fields))


def real_parts(
    parts: QKV, row: int, query_real: Bool[Tensor, "B T"], key_real: Bool[Tensor, "B S"]
) -> tuple[Float[Tensor, "H N E"], Float[Tensor, "K M E"], Float[Tensor, "K M V"]]:
    """q, k and v of one row of a batch at its real positions, for use as a donor."""
    queries, keys = query_real[row].to(parts.q.device), key_real[row].to(parts.q.device)
    return parts.q[row][:, queries].detach(), parts.k[row][:, keys].detach(), parts.v[row][:, keys].detach()


def tile_donors(donors: Sequence[Float[Tensor, "H _ E"]], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B H T E"]:
    """Fill each row from one donor: the n-th real position gets the donor's n-th; a shorter donor is repeated.

    Positions are preserved because rotary positions are part of q and k.
    """
    place = (real.long().cumsum(1) - 1).clamp_min(0)
    return torch.stack([d[:, (p % d.shape[1]).to(d.device)] for d, p in zip(donors, place, strict=True)])


def relative_change(y: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
    """|y − clean|² / |clean|² at every position, in float64, row by row to save memory."""
    tiny, rows = torch.finfo(torch.float64).tiny, []
    for new, old in zip(y, clean, strict=True):
        wide = old.double()
        rows.append((new.double() - wide).square().sum(-1) / wide.square().sum(-1).clamp_min(tiny))
    return torch.stack(rows)


def output_change(outputs: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, " B"]:
    """Squared relative change |y − clean|² / |clean|² of the outputs, averaged over a text's real positions (all if unknown)."""
    new, old = (t.flatten(2) if t.dim() > 2 else t[:, None] for t in (outputs, clean))
    real = batch.queries("dec").real
    real = real if real.shape == old.shape[:2] else torch.ones(old.shape[:2], dtype=torch.bool)
    return torch.where(real, relative_change(new, old), 0.0).sum(1) / real.sum(1)


SwitchKind: TypeAlias = Literal["zero", "half", "double", "mean", "second"]
KINDS = get_args(SwitchKind)
SCALES = {"half": 0.5, "double": 2.0}
MAX_PREDICTIONS = 10  # predictions of each side that are listed


class _Prediction(NamedTuple):
    """A token, and its probability at one position before and after the switches."""

    token: str
    number: int
    before: float
    after: float


class ResolvedSwitch(NamedTuple):
    """A switch resolved for a model: the site in canonical spelling, its kind or function, and the targets."""

    site: str
    how: SwitchKind | EditFunction
    targets: tuple[SiteTarget, ...]


@dataclass(frozen=True, eq=False)
class Intervention:
    """A model's outputs for one text, before and after q, k or v of some sites were replaced.

    `before` and `after` [T V] are logits, or last hidden states if the model has no loss; `place` is the position (from 0) whose
    predictions are shown. `switches` are in order of application: the later one overrides the earlier.
    `positions` (from 0) are those that are switched; empty means all.
    """

    model: str
    switches: tuple[tuple[str, str], ...]
    tokens: tuple[str, ...]
    place: int
    before: Float[Tensor, "T V"]
    after: Float[Tensor, "T V"]
    predicts: bool
    name: Callable[[int], str]
    notes: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()

    @functools.cached_property
    def moved(self) -> Float[Tensor, " T"]:
        """Change of each position's output: KL(before ‖ after) in nats of the predicted distributions, else |after - before| / |before|."""
        if not self.predicts:
            return (self.after - self.before).norm(dim=-1) / self.before.norm(dim=-1).clamp_min(1e-30)
        first, then = (part.log_softmax(-1) for part in (self.before, self.after))
        share = first.exp()
        terms = (share * (first - then)).masked_fill_(share == 0, 0)  # 0 log 0 = 0: a logit may be -inf
        return terms.sum(-1).clamp_min(0)

    def predictions(self, count: int = MAX_PREDICTIONS) -> tuple[_Prediction, ...]:
        """The likeliest tokens at `place`, before or after, by their probability before; empty if the model has no logits."""
        if not self.predicts:
            return ()
        both = torch.stack([part[self.place].softmax(-1) for part in (self.before, self.after)])
        numbers = both.topk(min(count, both.shape[1])).indices.flatten().unique()
        order = sorted(numbers.tolist(), key=lambda n: (-float(both[0, n]), -float(both[1, n]), n))
        return tuple(_Prediction(self.name(n), n, float(both[0, n]), float(both[1, n])) for n in order)

    def _switch_words(self, joint: str = " ") -> str:
        return ", ".join(f"{site}{joint}{how}" for site, how in self.switches) or "nothing switched"

    def __repr__(self) -> str:
        return f"<Intervention in {self.model}: {self._switch_words()}; {len(self.before)} positions>"

    def to_dict(self) -> dict[str, Json]:
        """The switches, each position's change, and the predictions at `place`, as JSON-ready data."""
        moves: list[Json] = [{"token": t, "moved": float(m)} for t, m in zip(self.tokens, self.moved, strict=False)]
        shown: list[Json] = [dict(prediction._asdict()) for prediction in self.predictions()]
        return {
            **{"model": self.model, "switches": dict(self.switches), "place": self.place},
            **{"positions": moves, "predictions": shown, "notes": list(self.notes)},
        }

    def to_pandas(self) -> Any:
        """The change of each position's output, as a pandas.DataFrame; needs the package pandas."""
        return import_optional("pandas").DataFrame({"token": list(self.tokens), "moved": self.moved.tolist()})

    def __str__(self) -> str:
        """The predictions at `place`, or the change of each token's output, as lines."""
        where = f" at {_token_words(self.positions)}" if self.positions and self.switches else ""
        lines = [f"{self.model}: {self._switch_words()}{where}", *self.notes]
        if self.predicts:
            token, moved = self.tokens[self.place], float(self.moved[self.place])
            lines.append(f"At token {self.place + 1}, {token!r}: {moved:.4g} nats")
            lines += [f"  {p.token!r:<16} {p.before:8.4f} → {p.after:.4f}" for p in self.predictions()]
        else:
            moves = zip(self.tokens, self.moved.tolist(), strict=False)
            lines += [f"  {token!r:<16} moves by {100 * moved:.3g} %" for token, moved in moves]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class PreparedText:
    """A text prepared for many interventions: computations that they share are made once."""

    subject: AnsweringSubject
    batch: Batch
    second: Batch | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, subject: AnsweringSubject, text: Readable, second: Readable | None = None) -> PreparedText:
        """Prepare the first window of a text and of a second one; raises ModelError."""
        batch, more = _first_window(subject, text)
        other, rest = (None, False) if second is None else _first_window(subject, second)
        long = [which for which, cut in (("text", more), ("second text", rest)) if cut]
        read = dict.fromkeys((*batch.notes, *(() if other is None else other.notes)))
        notes = (*read, *(f"Of a {which} longer than the model's window the first window is read." for which in long))
        if other is not None and (sizes := (_length(batch.source), _length(other.source)))[0] != sizes[1]:
            lengths = f"The texts have {sizes[0]} and {sizes[1]} tokens"
            notes = (*notes, f"{lengths}: only the first {min(sizes)} positions are replaced by the second text's.")
        return cls(subject, batch, other, notes)

    @functools.cached_property
    def before(self) -> Float[Tensor, "T V"]:
        """The outputs without any switch; the pass is verified if the subject can do so."""
        if isinstance(self.subject, SharingSubject):
            return _rows_by_position(self.subject.edited_passes().outputs(self.batch))
        return _rows_by_position(self.subject.outputs(self.batch))

    @property
    def side(self) -> Side:
        """The side that the outputs belong to: the decoder's, if there is one."""
        return self.batch.source if self.batch.target is None else self.batch.target

    @property
    def predicts(self) -> bool:
        """Whether outputs are logits of tokens, one row for each position."""
        return self.subject.objective != "output" and len(self.before) == len(self.side.tokens[0])

    def place(self, position: int | None = None) -> int:
        """The position whose predictions are shown: `position`, else that of the mask token, else the last.

        Raises CorpusError if the text does not have it.
        """
        tokens = self.side.tokens[0]
        if position is None:
            return tokens.index(self.subject.mask) if self.subject.mask in tokens else len(tokens) - 1
        if not isinstance(position, int) or not 0 <= position < len(tokens):
            reason = f"The text has {len(tokens)} tokens, counted from 0."
            raise CorpusError(f"Position {position} was given.", reason, "Choose one of them.")
        return position

    def plan(self, switches: Mapping[str, str | EditFunction]) -> tuple[ResolvedSwitch, ...]:
        """Resolve switches for the model, in order; raises SiteError, SpecError."""
        planned = []
        for site, how in switches.items():
            if not callable(how) and how not in KINDS:
                reason = f"There are {', '.join(KINDS)}, and functions of a tensor and its SiteTarget."
                raise SpecError(f"{site} is switched to {how!r}.", reason, "Use one of them.")
            if how == "second" and self.second is None:
                reason = "It uses q, k or v of a second text, and no second text was given."
                raise SpecError(f"{site} is switched to 'second'.", reason, "Give a second text.")
            parsed = Site.parse(site)
            planned.append(
                ResolvedSwitch(str(parsed), cast("SwitchKind | EditFunction", how), self.subject.shape.resolve(parsed))
            )
        return tuple(planned)

    def positions(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Sorted, distinct positions to switch; raises CorpusError for one that the text does not have."""
        longest = max(_length(side) for side in (self.batch.source, self.batch.target) if side is not None)
        for position in positions:
            if not 0 <= position < longest:
                reason = f"The text has {longest} tokens, counted from 0."
                todo = "Choose some of them, or none for all."
                raise CorpusError(f"Position {position} is to be switched.", reason, todo)
        return tuple(sorted(set(positions)))

    def position_notes(self, planned: tuple[ResolvedSwitch, ...], positions: tuple[int, ...]) -> tuple[str, ...]:
        """Notes on positions beyond a switch's sequence; raises CorpusError if all of them are."""
        notes: list[str] = []
        for switch in planned if positions else ():
            # the number of positions in each layer, for each of q, k and v
            reached: dict[Address, list[int]] = {}
            for target in switch.targets:
                sources = [self._recorded, self._recorded_second] if switch.how == "second" else [self._recorded]
                size = min(source[target.address]._asdict()[target.component].shape[2] for source in sources)
                reached.setdefault(target.address, []).append(size)
            for sizes in reached.values():
                if min(positions) >= max(sizes):
                    where = f"position{'s' * (len(positions) > 1)} {', '.join(map(str, positions))}"
                    problem = f"{switch.site} is to be switched to {edit_name(switch.how)!r} at {where}."
                    reason = f"That sequence has {max(sizes)} tokens, counted from 0: the switch would do nothing."
                    raise CorpusError(problem, reason, "Choose some of them, or none for all, or take this switch out.")
                if left := [position for position in positions if position >= min(sizes)]:
                    notes.append(f"{switch.site} has {min(sizes)} tokens to switch: none of {_token_words(left)}.")
        return tuple(dict.fromkeys(notes))

    def writers(self, planned: tuple[ResolvedSwitch, ...], positions: tuple[int, ...] = ()) -> dict[Address, Writer]:
        """One writer for each address of the switches; with `positions` all others stay bit for bit.

        Raises CorpusError for a switch that would do nothing at these positions.
        """
        self.position_notes(planned, positions)
        writers: dict[Address, list[Writer]] = {}
        for switch in planned:
            for address in dict.fromkeys(target.address for target in switch.targets):
                at_address = tuple(t for t in switch.targets if t.address == address)
                writers.setdefault(address, []).append(self._writer(switch.how, address, at_address))
        joint = {address: functools.partial(write_in_order, tuple(each)) for address, each in writers.items()}
        if not positions:
            return dict(joint)
        return {address: functools.partial(_write_only, write, positions) for address, write in joint.items()}

    def _writer(self, how: SwitchKind | EditFunction, address: Address, targets: tuple[SiteTarget, ...]) -> Writer:
        if callable(how):
            return edit_writer(targets, how)
        if how == "zero":
            return put(targets, zeros())
        if how in SCALES:
            return edit_writer(targets, lambda x, where: SCALES[how] * x)
        if how == "mean":
            means, parts = Means(), self._recorded[address]
            queries, keys = self.batch.queries(address.stack), self.batch.keys(address.stack)
            means.add(parts, _real_positions(queries, parts.q), _real_positions(keys, parts.k))
            return put(targets, means.parts())
        source = self._recorded_second[address]
        sides = (self.batch.queries(address.stack), source.q), (self.batch.keys(address.stack), source.k)
        # positions within the other text's length
        return replace_at(targets, source, *(torch.arange(_length(side))[None] < part.shape[2] for side, part in sides))

    @functools.cached_property
    def _recorded(self) -> Mapping[Address, QKV]:
        return record(self.subject.outputs, self.batch, self.subject.shape.heads).parts

    @functools.cached_property
    def _recorded_second(self) -> Mapping[Address, QKV]:
        assert self.second is not None
        return record(self.subject.outputs, self.second, self.subject.shape.heads).parts

    def switched(
        self, planned: tuple[ResolvedSwitch, ...], place: int | None = None, positions: tuple[int, ...] = ()
    ) -> Intervention:
        """Run the model with these switches and compare; raises ModelError if the change is not finite."""
        write = self.writers(planned, positions)
        after = _rows_by_position(self.subject.outputs(self.batch, write)) if write else self.before
        switches = tuple((switch.site, edit_name(switch.how)) for switch in planned)
        tokens = self.side.tokens[0] if len(self.before) == len(self.side.tokens[0]) else ("the whole text",)
        notes = (*self.notes, *self.position_notes(planned, positions))
        about = (self.place(place), self.before, after, self.predicts, self.subject.token, notes, positions)
        result = Intervention(self.subject.name, switches, tokens, *about)
        if wrong := int((~result.moved.isfinite()).sum()):
            problem = f"The change of the outputs of {result.model} is not finite ({result._switch_words(' to ')})."
            reason = f"That is so at {wrong} of {len(result.moved)} positions: an overflow, or a logit that is -inf on one side only."
            raise ModelError(
                problem, reason, "Take a switch out, give another text, or load the model with dtype='float32'."
            )
        return result

    def reading(self, planned: tuple[ResolvedSwitch, ...], positions: tuple[int, ...] = ()) -> Reading:
        """Read attention with these switches."""
        return self.subject.trace(self.batch, self.writers(planned, positions) or None)


def intervene(
    subject: AnsweringSubject,
    text: Readable,
    switches: Mapping[str, str | EditFunction],
    second: Readable | None = None,
    place: int | None = None,
    positions: Sequence[int] = (),
) -> Intervention:
    """Replace q, k or v of sites in one pass over a text, and compare the outputs with those of the unedited pass.

    `switches` maps a site to 'zero', 'half', 'double', 'mean' (over this text's positions, per head), 'second' (the second text's
    values at the same positions: activation patching), or a function as for `Shape.writers`. `place` is the position (from 0)
    whose predictions are shown; None is the mask, else the last.
    `positions` (from 0) are those that are switched, in the sequence of q, k or v; empty means all.
    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    ready = PreparedText.of(subject, text, second)
    return ready.switched(ready.plan(switches), place, ready.positions(positions))


def _write_only(write: Writer, positions: tuple[int, ...], parts: QKV) -> QKV:
    """Apply a writer at some positions only."""
    merged = []
    for new, old in zip(write(parts), parts, strict=True):
        chosen = torch.zeros(old.shape[2], dtype=torch.bool, device=old.device)
        chosen[[position for position in positions if position < len(chosen)]] = True
        merged.append(torch.where(chosen[None, None, :, None], new, old))
    return QKV(*merged)


def _token_words(positions: Sequence[int]) -> str:
    """Positions from 0 as tokens from 1, in words."""
    return f"token{'s' * (len(positions) > 1)} {', '.join(str(position + 1) for position in positions)}"


def _first_window(subject: AnsweringSubject, text: Readable) -> tuple[Batch, bool]:
    """The first window of a text, and whether there are more."""
    batches = iter(subject.batches([as_sample(text)], size=1))
    if (batch := next(batches, None)) is None:
        raise CorpusError("The text is empty.", "Nothing was read.", "Give a text of at least one token.")
    return batch, next(batches, None) is not None


def _length(side: Side) -> int:
    return side.real.shape[1]


def _real_positions(side: Side, part: Tensor) -> Bool[Tensor, "1 T"]:
    """The real positions of a side; all are real in a layer with another number of positions (pooled, or patches)."""
    same = side.real.shape[1] == part.shape[2]
    return side.real if same else torch.ones(1, part.shape[2], dtype=torch.bool)


def _rows_by_position(outputs: Tensor) -> Float[Tensor, "T V"]:
    """One row for each position; an output without positions is one row."""
    return outputs[0].flatten(1).float() if outputs.dim() > 2 else outputs[:1].float()
