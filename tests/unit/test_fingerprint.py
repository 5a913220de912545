import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.errors import InvalidArgument
from kvtier.format.fingerprint import canonical_json, namespace_id, parse_canonical

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def encodable(value):
    try:
        return repr(value) is not None and str(value).encode() is not None
    except UnicodeEncodeError:
        return False


def test_golden_values():
    # These ids are on disks and in other hosts' memory: a change here is a format change.
    record = {"model": "m", "layers": [1, 2], "dtype": None, "ß": 0.5, "quantised": False}
    text = '{"dtype":null,"layers":[1,2],"model":"m","quantised":false,"ß":0.5}'
    assert canonical_json(record) == text
    assert namespace_id(text).hex() == "349271edf5beb724bdedd3a467fc318e"
    assert namespace_id(canonical_json({"a": 1})).hex() == "015abd7f5cc57a2dd94b7590f04ad808"


def test_order_and_tuples_do_not_matter():
    assert canonical_json({"a": (1, 2), "b": {"y": 1, "x": 2}}) == canonical_json(
        {"b": {"x": 2, "y": 1}, "a": [1, 2]}
    )


def test_values_that_differ_give_other_ids():
    texts = [canonical_json({"a": value}) for value in (1, 1.0, True, "1", None, [1], {"a": 1}, 2, "")]
    assert len({namespace_id(text) for text in texts}) == len(texts)


class Kind(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "fingerprint.a is nan"),
        (float("-inf"), "fingerprint.a is -inf"),
        (b"x", "fingerprint.a is a bytes"),
        ({1}, "fingerprint.a is a set"),
        (np.float32(1), "fingerprint.a is a float32"),
        (Kind.ONE, "fingerprint.a is a Kind"),
        ([1, {"b": [object()]}], r"fingerprint.a\[1\].b\[0\] is a object"),
        ({1: 2}, "fingerprint.a has the key 1"),
        ("\ud800", "UTF-8"),
    ],
)
def test_what_has_no_canonical_form(value, words):
    with pytest.raises(InvalidArgument, match=words):
        canonical_json({"a": value})


def test_empty_deep_large_and_no_mapping():
    with pytest.raises(InvalidArgument, match="empty"):
        canonical_json({})
    with pytest.raises(InvalidArgument, match="list"):
        canonical_json([1])  # type: ignore[arg-type]
    deep: dict = {}
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(InvalidArgument, match="deeper than 16"):
        canonical_json(deep)
    with pytest.raises(InvalidArgument, match="at most 65536"):
        canonical_json({"a": "x" * 70_000})


@given(st.dictionaries(st.text(), PLAIN, min_size=1, max_size=4).filter(encodable))
def test_canonical_text_parses_to_itself(record):
    try:
        text = canonical_json(record)
    except InvalidArgument:
        return  # deeper than allowed, or text that is no UTF-8
    assert canonical_json(parse_canonical(text)) == text
    assert len(namespace_id(text)) == 16


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"b":1,"a":2}', '{"a": 1}', '{"a":NaN}', '{"a":1}\n', '{"\\u00e4":1}', "{}",
     '{"a":1,"a":1}', "[" * 50_000, "x" * 70_000],
)  # fmt: skip
def test_text_of_a_peer_that_is_not_canonical(text):
    with pytest.raises(InvalidArgument, match="fingerprint"):
        parse_canonical(text)
