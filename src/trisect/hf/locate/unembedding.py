"""The map from the residual stream to logits, found by value: the final norm and the output embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, StreamPoint, StreamSubject
from trisect.core.trace import Address, Rescaling, Unembedding
from trisect.hf.locate.affine import TOLERANCE, Normed, affine_modules, affine_of, norm_modules, watch_uses
from trisect.hf.locate.blocks import measure_norm, near, same
from trisect.measure.norms import rescale_parts


@torch.no_grad()
def find_unembedding(subject: StreamSubject, model: nn.Module, batch: Batch) -> Unembedding:
    """How logits are made of what leaves the last layer that attends, after one pass over a batch.

    The last map of the pass makes the logits, of the stream or of one norm of it; a factor behind it, alike for all tokens, is taken
    into its weight and bias. All is computed again and compared. Raises ModelError for a model whose logits are made otherwise.
    """
    maps, norms = dict(affine_modules(model)), dict(norm_modules(model))
    # tied weights that are multiplied by without a module
    bare = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    stream, normed, last = list[Tensor](), list[Normed](), list[tuple[str, Tensor, Tensor]]()

    def keep(x: Tensor) -> Tensor:
        stream[:] = [x.clone()]
        return x

    def note(name: str, x: Tensor, y: Tensor) -> None:
        if name not in norms:
            last[:] = [(name, x.clone(), y.clone())]
        elif stream and same(x, stream[0]):
            normed[:] = [Normed(name, norms[name], x.clone(), y.clone(), 0, 0, x)]

    end = StreamPoint(Address("plain", subject.shape.layers("plain")[-1]), "output")
    with watch_uses(model, {*maps, *norms, *bare}, note):
        logits = subject.stream_outputs(batch, {end: keep})
    given = f"The logits of {subject.name} are no sum over its writers."
    todo = "Choose a model whose logits are one map of a norm of its stream, such as GPT-2, GPT-NeoX or Llama."
    if subject.objective == "output" or not last:
        raise ModelError(given, "It gives hidden states.", "Load it with its language-model head.")
    name, x, y = last[0]
    allowed = TOLERANCE[logits.dtype]
    factor = float((logits * y).sum() / y.square().sum()) if logits.shape == y.shape else 0.0
    factor = 1.0 if same(logits, y) else factor
    if not near(logits, factor * y if factor else 0 * logits, allowed):
        raise ModelError(given, f"What its last map {name!r} makes is changed before it is given as logits.", todo)
    norm: Rescaling | None = None
    if same(x, stream[0]):
        norm = Rescaling(x.new_ones(x.shape[-1]))
    elif normed and same(normed[0].y, x):
        norm = measure_norm(normed[0])
    if norm is None:
        raise ModelError(given, f"What enters its last map {name!r} is no norm of what leaves its last layer.", todo)
    affine = affine_of(name, maps[name], x.shape[-1], x) if name in maps else None
    weight = model.get_parameter(name) if affine is None else affine.weight
    bias = None if affine is None else affine.bias
    if factor != 1:
        weight, bias = factor * weight, None if bias is None else factor * bias
    found = Unembedding(norm, weight.detach(), None if bias is None else bias.detach())
    made = rescale_parts(stream[0].flatten(0, 1)[:, None], norm)[:, 0] @ found.weight.T
    if not near(logits.flatten(0, 1), made if found.bias is None else made + found.bias, allowed):
        raise ModelError(given, f"Its final norm and its last map {name!r} do not make its logits.", todo)
    return found
