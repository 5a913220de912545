import pytest

from kvtier import config
from kvtier.errors import ConfigError
from kvtier.floors import Floors, parse_floors

ID = bytes.fromhex("0123456789abcdef") * 2


def test_text_and_table_say_the_same(tmp_path):
    wanted = {"org/llama tp2": 2 << 30, "a=b": 4096}
    assert parse_floors("org/llama tp2=2GiB, a=b=4KiB,") == wanted
    file = tmp_path / "kvtier.toml"
    file.write_text('floor = "1MiB"\n[floors]\n"org/llama tp2" = "2GiB"\n"a=b" = 4096\n')
    settings = config.load({"dram": "4GiB"}, file=file, env={})
    assert settings.floors == wanted
    assert settings.floor == 1 << 20
    assert config.load(env={}).floors == {}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"floors": "llama"}, ["floors = 'llama'", "--floors", "NAME=SIZE"]),
        ({"floors": "=1GiB"}, ["floors = '=1GiB'", "NAME=SIZE"]),
        ({"floors": "a=1GiB,a=2GiB"}, ["names 'a' twice"]),
        ({"floors": "a=much"}, ["for 'a' 'much'", "64GiB"]),
        ({"floors": "a=1GiB,b=1GiB", "dram": "1GiB"}, ["2 GiB together", "exceeds dram, 1 GiB"]),
        ({"floors": "a=1GiB", "dram": "much"}, ["dram = 'much'"]),
        ({"floor_idle": "never"}, ["floor_idle = 'never'", "duration"]),
        ({"floor": "2GiB", "dram": "1GiB"}, ["floor = '2GiB'", "exceeds dram, which is 1 GiB"]),
    ],
)
def test_a_bad_floor_gives_one_line(flags, words):
    with pytest.raises(ConfigError) as raised:
        config.load(flags, env={})
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words), raised.value


def test_a_label_counts_before_an_id_and_an_id_before_the_default():
    floors = Floors(1, {"llama": 2, "01234567": 3, "0123456789": 4, "0123456": 5})
    assert floors.of(ID, "llama") == 2
    assert floors.of(ID, "other") == 4
    assert floors.of(bytes(16), "other") == 1
    assert Floors(1, {"0123456": 5}).of(ID, "") == 1  # too short for an id
    assert Floors().of(ID, "llama") == 0
