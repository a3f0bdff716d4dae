"""Records of tables: what is left out of them, and which changes a comparison names."""

import polars as pl
import pytest
from tests.records import RowLimit, Tolerance, compare_records, dump_record, load_record, record_table, simplify

TOLERANCES = {"t/value": Tolerance(0.01, 0.0), "*": Tolerance(1e-5, 1e-7)}
SMALL, LARGE = RowLimit(200, 10), RowLimit(20, 10)


def table(count: int = 60) -> pl.DataFrame:
    sites = [f"{'qkv'[i % 3]}@{i // 3}" for i in range(count)]
    values = [0.1 * i - 1 for i in range(count)]
    return pl.DataFrame({"site": sites, "value": values, "high": [v + 1 / 3 for v in values], "wall_seconds": values})


def differences(before: pl.DataFrame, after: pl.DataFrame, limit: RowLimit) -> list[str]:
    first, second = (load_record(dump_record(record_table(one, limit))) for one in (before, after))
    return list(compare_records(first, second, TOLERANCES, "t"))


def changed(column: str, row: int, by: float) -> pl.DataFrame:
    return table().with_columns(
        pl.when(pl.int_range(pl.len()) == row).then(pl.col(column) + by).otherwise(pl.col(column)).alias(column)
    )


@pytest.mark.parametrize("limit", [SMALL, LARGE])
def test_order_time_and_what_is_within_the_tolerance_do_not_count_and_one_number_or_two_that_changed_places_do(limit):
    assert not differences(table(), table().sample(fraction=1, shuffle=True, seed=1), limit)
    assert not differences(table(), table().with_columns(wall_seconds=pl.lit(3.0)), limit)
    assert not differences(table(), changed("high", 7, 1e-8), limit)
    assert not differences(table(), changed("value", 40, 0.02), limit)  # a hundredth of 3
    high = table()["high"]
    swapped = table().with_columns(high=pl.Series([*high[:30], high[31], high[30], *high[32:]]))
    for other in (*(changed("high", row, 0.01) for row in (0, 7, 59)), swapped):
        assert "t/high" in differences(table(), other, limit)[-1]


def test_columns_rows_and_kinds_count():
    assert differences(table(), table().rename({"site": "a_place"}), SMALL) == [
        "t lacks site",
        "t has a_place, which was not there",
    ]
    assert "60 rows were there, 59 are" in differences(table(), table().head(59), SMALL)[0]
    assert list(compare_records({"a": True}, {"a": 1}, TOLERANCES, "t"))
    assert not list(compare_records({"a": 1}, {"a": 1.0}, TOLERANCES, "t"))
    assert simplify("attack-pos-q@1-s1-0a1b2c3d") == "attack-pos-q@1-s1-#"
    assert simplify("x" * 61) != simplify("x" * 62)
