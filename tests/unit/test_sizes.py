import pytest

from kvtier.sizes import parse_duration, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64GiB", 64 << 30),
        ("512 MiB", 512 << 20),
        (" 4kib ", 4096),
        ("1.5GiB", 3 << 29),
        ("2TB", 2 * 10**12),
        ("100", 100),
        ("100B", 100),
        (4096, 4096),
        ("0", 0),
    ],
)
def test_sizes_as_people_write_them(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1", "64XB", "1e9", "64 Gi B", "0x10", "1.3B", "9999999TiB", None, True, -4, [1], "٣GiB"],
)
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=r"size|unit|whole"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("250ms", 0.25), ("5m", 300), ("1.5 h", 5400), ("2min", 120), ("3", 3), (0.5, 0.5)],
)
def test_durations_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "10 parsecs", float("inf"), float("nan"), None, False])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match=r"duration|unit"):
        parse_duration(text)


def test_sizes_are_shown_short():
    assert [show_size(n) for n in (0, 1023, 1536, 64 << 20, 800 << 30, 3 << 50)] == [
        *("0 B", "1023 B", "1.5 KiB", "64 MiB", "800 GiB", "3072 TiB"),
    ]
