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
def test_order_time_and_what_is_within_the_tolerance_do_not_count(limit):
    assert not differences(table(), table().sample(fraction=1, shuffle=True, seed=1), limit)
    assert not differences(table(), table().with_columns(wall_seconds=pl.lit(3.0)), limit)
    assert not differences(table(), changed("high", 7, 1e-8), limit)
    assert not differences(table(), changed("value", 40, 0.02), limit)  # a hundredth of 3


@pytest.mark.parametrize("limit", [SMALL, LARGE])
@pytest.mark.parametrize("row", [0, 7, 59])
def test_one_number_of_one_row_is_named(limit, row):
    (*_, line) = differences(table(), changed("high", row, 0.01), limit)
    assert "t/high" in line


@pytest.mark.parametrize("limit", [SMALL, LARGE])
def test_two_numbers_that_changed_places_are_named(limit):
    swapped = table().with_columns(
        high=pl.Series([*table()["high"][:30], table()["high"][31], table()["high"][30], *table()["high"][32:]])
    )
    assert any("t/high" in line for line in differences(table(), swapped, limit))


def test_a_column_that_was_renamed_hides_no_other():
    renamed = table().rename({"site": "a_place"})
    assert differences(table(), renamed, SMALL) == ["t lacks site", "t has a_place, which was not there"]
    assert any(
        "t/high" in line for line in differences(table(), changed("high", 7, 0.01).rename({"site": "a_place"}), SMALL)
    )
    assert any(
        "sum of all rows" in line
        for line in differences(table(), changed("high", 7, 0.01).rename({"site": "a_place"}), LARGE)
    )


def test_rows_words_and_kinds_count():
    assert "60 rows were there, 59 are" in differences(table(), table().head(59), SMALL)[0]
    for limit in (SMALL, LARGE):
        assert any(
            "t/site" in line
            for line in differences(table(), table().with_columns(pl.col("site").replace("q@3", "q@99")), limit)
        )
    assert list(compare_records({"a": True}, {"a": 1}, TOLERANCES, "t"))
    assert not list(compare_records({"a": 1}, {"a": 1.0}, TOLERANCES, "t"))
    assert list(compare_records([1, 2], [1], TOLERANCES, "t"))


def test_ids_and_fingerprints_are_left_out_of_texts_and_fractions_in_them_are_numbers():
    assert simplify("attack-pos-q@1-s1-0a1b2c3d") == "attack-pos-q@1-s1-#"
    assert simplify('{"low": 0.123456789123, "corpus_fingerprint": "c191fe768de9e567", "n": null}') == {
        "low": 0.12345679
    }
    assert simplify("rows 3e-16") == "rows #"
    assert simplify("x" * 61) != simplify("x" * 62)
