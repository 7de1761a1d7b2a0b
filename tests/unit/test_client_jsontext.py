"""The client's JSON: what it reads can be sent back."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from fencepost.client.http.jsontext import dumps, loads

NUMBERS = [
    "-0", "-0.0", "1.50", "12345678901234567890.12345678901234567890", "1E+400", "1E-30", '[-0.10,{"a":2.0}]',
    "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS, ids=lambda text: text[:20])
def test_with_decimals_each_number_is_sent_as_it_was_read(text: str) -> None:
    assert dumps(loads(text.encode(), decimals=True)).decode() == text


def test_without_decimals_only_what_no_float_holds_is_one() -> None:
    assert dumps(loads(b"[-0,1.5,-1E+400,7]")).decode() == "[-0.0,1.5,-1E+400,7]"


def test_strings_are_strings() -> None:
    given = {"1.5": Decimal("1.5"), "a": "1.5", "b": Decimal("NaN"), "c": '"5"'}
    assert json.loads(dumps(given), parse_float=Decimal) == given | {"b": "NaN"}


@pytest.mark.parametrize(
    ("given", "written"),
    [(timedelta(1, 2, 3), "P1DT2.000003S"), (timedelta(microseconds=-1), "P-1DT86399.999999S")],
)
def test_a_timedelta_is_a_duration(given: timedelta, written: str) -> None:
    assert loads(dumps(given)) == written
