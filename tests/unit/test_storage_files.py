"""The readable files of a storage root, and the names below it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.errors import InvalidArgument
from kvtier.format.fingerprint import canonical_json, namespace_id
from kvtier.format.seal import parse_key, seal_name
from kvtier.format.storage import namespace_meta, parse_marker, parse_meta, seal_of
from kvtier.storage import names

FINGERPRINTS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3)
    ),
    min_size=1,
    max_size=5,
)


@given(fingerprint=FINGERPRINTS, chunk_bytes=st.integers(1, 2**40))
def test_meta_round_trip(fingerprint: dict[str, object], chunk_bytes: int) -> None:
    try:
        canonical = canonical_json(fingerprint)
    except InvalidArgument:
        return  # lone surrogates
    text = namespace_meta(canonical, chunk_bytes)
    record = {"chunk_bytes": chunk_bytes, "fingerprint": fingerprint}
    assert text == json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    assert parse_meta(text) == (json.loads(canonical), chunk_bytes, namespace_id(canonical))


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_a_sealed_meta_names_kind_and_key(seal: str) -> None:
    key = bytes(range(32))
    name = seal_name(seal, key)
    assert name.startswith(f"{seal}-")
    assert name != seal_name(seal, bytes(32))
    assert key.hex()[:16] not in name
    text = namespace_meta('{"model":"m"}', 4096, name)
    assert text == f'{{"chunk_bytes":4096,"fingerprint":{{"model":"m"}},"seal":"{name}"}}\n'
    assert parse_meta(text) == ({"model": "m"}, 4096, namespace_id('{"model":"m"}'))
    assert seal_of(text) == name
    assert seal_of(namespace_meta('{"model":"m"}', 4096)) == ""


@pytest.mark.parametrize("seal", ['""', "1", '"mac"', '"aes-0123456789abcdef"', '"mac-0123456789abcdeF"'])
def test_seals_that_are_none(seal: str) -> None:
    with pytest.raises(InvalidArgument, match="seal is"):
        parse_meta(f'{{"chunk_bytes":4096,"fingerprint":{{"model":"m"}},"seal":{seal}}}\n')


def test_keys() -> None:
    key = bytes(range(100, 132))
    assert (
        parse_key(key) == parse_key(key.hex().encode()) == parse_key(b" " + key.hex().encode() + b"\n") == key
    )
    for content in (b"", key[:31], key + b"\n", key.hex().encode()[:-2], b"g" * 64):
        with pytest.raises(InvalidArgument, match=f"has {len(content)} bytes that are no key") as raised:
            parse_key(content)
        if content:
            assert content.decode(errors="replace") not in str(raised.value)


@given(text=st.text(max_size=200))
def test_meta_that_is_none(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_meta(text)


@pytest.mark.parametrize("text", ['{"format": 1}\n', '{"format":1}'])
def test_markers(text: str) -> None:
    parse_marker(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[]", 'has no "format"'),
        ('{"format": true}', 'has no "format"'),
        ('{"format": 0}', 'has no "format"'),
        ('{"format": "1"}', 'has no "format"'),
        ('{"format": 2}', "format is 2; this version of kvtier reads format 1"),
    ],
)
def test_markers_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_marker(text)


@given(number=st.integers(1, 2**64 - 1))
def test_names_round_trip(number: int) -> None:
    assert names.parse_segment(names.segment_name(number)) == number
    assert names.parse_index(names.index_name(number)) == number
    assert names.parse_epoch(f"epoch-{number}") == number


@pytest.mark.parametrize(
    "name",
    [
        "seg-1.kvs",
        "seg-0000000000.kvs",
        "seg-00000000001.kvs",
        "seg-0000000001.kvs\n",
        "seg-000000000١.kvs",
        "seg-18446744073709551616.kvs",
        "../seg-0000000001.kvs",
        "epoch-0",
        "epoch-01",
        "epoch-18446744073709551616",
        "0" * 31,
        "0" * 33,
        "A" * 32,
        "0" * 32 + ".adopt.",
        "0" * 32 + ".adopt." + "0" * 31,
    ],
)
def test_foreign_names(name: str) -> None:
    assert names.parse_segment(name) is None
    assert names.parse_index(name) is None
    assert names.parse_epoch(name) is None
    assert names.parse_host(name) is None


def test_hosts() -> None:
    host, adopter = bytes(range(16)), bytes(range(1, 17))
    assert names.parse_host(host.hex()) == names.HostName(host, None)
    assert names.parse_host(f"{host.hex()}.adopt.{adopter.hex()}") == names.HostName(host, adopter)
    assert names.parse_id(host.hex()) == host
    assert names.is_temporary(".tmp-123-0123456789abcdef")
    assert not names.is_temporary(".tmp-x-0123456789abcdef")
