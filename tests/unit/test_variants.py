"""The grammar of attention variants: what is read of a right model or of a wrong one is what the model computed."""

import re

import pytest
from tests import variants

OUTPUT = r"Layer {n}, o: the result of layers\.{i}\.attn\.o_proj changes what follows by another amount than its gradient says"
MOVED = "Left out, layer {n}: its {} are not at the positions of its tokens"
TURNED = f"{MOVED.format('queries', n='2')}|Variant moves its tokens to other positions"
DOUBLED = r"Layer {n} of Variant does not compute .* v is not what layers\.{i}\.attn\.v_proj makes"
REASONS = {  # what is said of each way to be wrong, or of all that begin with the same word
    "W_O": OUTPUT,
    "module": OUTPUT,
    **{part: f"Layer {{n}}, {part}: " for part in "qkv"},
    "scores": "$",
    "keys": MOVED.replace("{}", "keys"),
    "values": MOVED.replace("{}", "values"),
    "keys+values": MOVED.replace("{}", "keys"),
    "heads mixed": r"Left out, layers\.{i}\.attn: its weights go through another product before they multiply the values",
    "weights changed": "Left out, layer {n}: rows of weights sum to less than 1, and not because of a sink",
    "a second attention": "Layer {n}: part of the layer's output, 3[46] %",
    "keys of the pass before": "Layer {n}, k: k is not made by an affine map of this model",
    "values doubled in long texts": DOUBLED,
    "values doubled at one word": DOUBLED,
    "over units": "Left out, layer {n}: it attends over units instead of positions",
    "over heads": "Left out, layer {n}: it attends over heads instead of positions",
    "keys of another text": r"Left out, layer {n}: k of one text depends on the results of layers\.{i}\.attn\.k_proj for others",
    "positions turned": TURNED,
    "texts turned": TURNED,
    "dropout": "Variant answers the same inputs in two ways",
    "sigmoid": r"Left out, layers\.{i}\.attn: it mixes its sequence without a softmax of one product of queries and keys",
}
MODELS = variants.draw_models(24, seed=1)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("wrong", variants.WRONG)
def test_each_way_to_be_wrong_is_named_and_no_number_is_another_than_the_models_own(wrong, where):
    how, why = variants.judge(variants.Variant(variants.PLAIN, wrong, where))
    reason = REASONS.get(wrong) or REASONS[wrong.split()[0]]
    assert how != "wrong", why
    assert re.match(reason.format(n=where + 1, i=where), why)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.wrong or "right")
def test_under_other_rules_no_number_is_another_than_the_models_own(model):
    how, why = variants.judge(model)
    assert how == "read" if not model.wrong else how != "wrong", why


def test_scores_that_are_rounded_straight_through_have_no_one_scale():
    """Their derivative is that of scale · q·k."""
    plain, rounded = (
        variants.Variant(rules={**variants.PLAIN, "scores": "scaled queries"}, wrong=wrong)
        for wrong in ("", "scores rounded")
    )
    for model, has_scale in ((plain, (True, True)), (rounded, (False, True))):
        subject = variants.load(model, inputs=variants.texts(7))
        assert tuple(trace.scale is not None for trace in subject.read(variants.texts(9)).traces) == has_scale
