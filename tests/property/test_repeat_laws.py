"""Products that are as exact as float32, and rows added at places that repeat: the same sums, and the same bits in any order."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.elsewhere import elsewhere, moved

from trisect.lm import matmul as products
from trisect.lm.matmul import _sum_repeats, add_at


def drawn(members: int, places: int, words: int, wide: int | None, seed: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    shape = () if wide is None else (wide,)
    at = torch.randint(0, words, (places,), generator=draw)
    return at, torch.randn(members, places, *shape, generator=draw), torch.randn(members, words, *shape, generator=draw)


CASES = given(
    members=st.integers(1, 3),
    places=st.integers(1, 40),
    words=st.integers(1, 30),
    wide=st.none() | st.integers(1, 4),
    seed=st.integers(0, 1000),
)


@settings(max_examples=50, deadline=None)
@CASES
def test_off_the_cpu_rows_are_added_as_on_it(members, places, words, wide, seed):
    at, rows, table = drawn(members, places, words, wide, seed)
    want = table.clone().double().index_add_(1, at, rows.double(), alpha=-0.5)
    there = moved(table)
    with elsewhere() as mode:
        found = add_at(there, moved(at), moved(rows), -0.5)
        assert mode.left == mode.looks == 0
        torch.testing.assert_close(found.cpu().double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(add_at(table.clone(), at, rows, -0.5), table.index_add_(1, at, rows, alpha=-0.5))


@settings(max_examples=50, deadline=None)
@CASES
def test_what_is_added_has_the_same_bits_in_any_order(members, places, words, wide, seed):
    at, rows, table = drawn(members, places, words, wide, seed)
    order = torch.randperm(places, generator=torch.Generator().manual_seed(seed + 1))
    own = _sum_repeats(at, rows)
    one = table.clone().index_add_(1, at, own)
    assert torch.equal(one, table.clone().index_add_(1, at[order], own[:, order]))
    for place in at.unique():
        filled = own[:, at == place].reshape(members, int((at == place).sum()), -1).ne(0).any(2)
        assert int(filled.sum(1).max()) <= 1


def test_rows_added_as_they_come_have_other_bits_in_another_order():
    at, rows, table = drawn(1, 40, 2, 3, 0)
    order = torch.arange(39, -1, -1)
    one, other = table.clone().index_add_(1, at, rows), table.clone().index_add_(1, at[order], rows[:, order])
    assert not torch.equal(one, other)


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
