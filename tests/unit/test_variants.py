"""A sample of the grammar of attention variants: what is read of a right model or of a wrong one is what the model computed."""

import pytest
from tests import variants

MODELS = variants.draw_models(24, seed=1)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.wrong or "right")
def test_no_number_that_is_read_is_another_than_the_models_own(model):
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
