import torch

from trisect.lm import matmul as products


def test_the_faster_product_is_taken_only_where_it_proves_itself(monkeypatch):
    before = torch.get_float32_matmul_precision()
    for error, expected in ((1e-7, "medium"), (3e-3, "highest")):
        monkeypatch.setattr(products, "_error", lambda _, error=error: error)
        with products.fast_products() as chosen:
            assert chosen == expected
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == before


def test_the_check_measures_a_real_product():
    with products.fast_products():
        assert products._error("highest") < products.TOLERANCE
