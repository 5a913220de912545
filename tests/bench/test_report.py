"""What a benchmark writes down: ratios, budgets, the record that scripts read."""

import json

import pytest

from kvtier.bench.report import Budget, Report, Result


@pytest.mark.parametrize(
    ("value", "reference", "budget", "ratio", "ok"),
    [
        (30.0, 60.0, Budget(30), 0.5, True),
        (30.1, 60.0, Budget(30), 30.1 / 60, False),
        (9.5, 10.0, Budget(0.95, of="ratio", side=">="), 0.95, True),
        (9.4, 10.0, Budget(0.95, of="ratio", side=">="), 0.94, False),
        (1.0, 2.0, None, 0.5, None),
        (1.0, None, Budget(2), None, True),
        (1.0, None, Budget(2, of="ratio"), None, False),  # what was not measured does not hold
        (1.0, 0.0, Budget(2, of="ratio"), None, False),
    ],
)
def test_a_result_keeps_its_budget_or_not(
    value: float, reference: float | None, budget: Budget | None, ratio: float | None, ok: bool | None
) -> None:
    result = Result("case", value, "us", "other", reference, budget)
    assert result.ratio == (None if ratio is None else pytest.approx(ratio))
    assert result.ok is ok


def test_the_record_is_the_documented_one() -> None:
    result = Result("a case", 20.0, "us", "a dict", 40.0, Budget(30))
    record = Report("lookup", {"cores": 2}, (result,)).record()
    assert json.loads(json.dumps(record)) == {
        "name": "lookup",
        "machine": {"cores": 2},
        "results": [
            {
                "case": "a case",
                "value": 20.0,
                "unit": "us",
                "reference": "a dict",
                "reference_value": 40.0,
                "ratio": 0.5,
                "budget": "<= 30 us",
                "ok": True,
            }
        ],
    }


def test_a_ratio_budget_says_so() -> None:
    assert Budget(0.95, of="ratio", side=">=").show("GB/s") == ">= 0.95 x"
