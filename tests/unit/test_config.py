import pytest

from kvtier import config
from kvtier.errors import ConfigError, InvalidArgument


def test_flags_win_over_environment_over_file_over_default(tmp_path):
    file = tmp_path / "kvtier.toml"
    file.write_text('dram = "1GiB"\npolicy = "s3fifo"\nslots_max = 100\n')
    env = {"KVTIER_DRAM": "2GiB", "KVTIER_POLICY": "lru", "KVTIER_UNRELATED": "x"}
    settings = config.load({"dram": "3GiB", "policy": None}, file=file, env=env)
    assert settings.dram == 3 << 30
    assert settings.policy == "lru"
    assert settings.slots_max == 100
    assert settings.lease_timeout == 600.0


def test_every_field_says_what_it_is():
    for name, field in config.Config.model_fields.items():
        assert field.description, name
        assert len(field.description) > 30, name


def test_the_tree_is_frozen():
    settings = config.load(env={})
    with pytest.raises(ValueError, match="frozen"):
        settings.dram = 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"dram": "64XB"}, ["dram = '64XB'", "--dram", "unit 'XB'", "GiB"]),
        ({"dram": "1MiB"}, ["dram = '1MiB'", "below 4MiB"]),
        ({"dram": "-1"}, ["dram = '-1'", "size"]),
        ({"address": "tcp"}, ["address is 'tcp'", "unix:/path or host:port"]),
        ({"address": "10.1.2.3:99"}, ["10.1.2.3:99", "TLS", "loopback"]),
        ({"address": "unix:/" + "a" * 120}, ["121 bytes", "99"]),
        ({"address": "127.0.0.1:0"}, ["address = '127.0.0.1:0'", "port"]),
        ({"policy": "arc"}, ["policy = 'arc'", "'lru' or 's3fifo'"]),
        ({"slab": "1MiB"}, ["slab = '1MiB'", "2MiB to 1GiB"]),
        ({"slab": "2097153"}, ["slab = '2097153'", "4KiB"]),
        ({"slots_max": "many"}, ["slots_max = 'many'", "integer"]),
        ({"slots_max": "-1"}, ["slots_max = '-1'", "greater"]),
        ({"http": "9400"}, ["http is '9400'", "host:port or off"]),
        ({"shm_dir": "here"}, ["shm_dir = 'here'", "absolute"]),
        ({"storage": "here"}, ["storage = 'here'", "absolute"]),
        ({"storage_segment": "4KiB"}, ["storage_segment = '4KiB'", "1MiB to 16GiB"]),
        ({"storage_quota": "1MiB"}, ["storage_quota = '1MiB'", "below 16MiB"]),
        ({"storage_namespace_quota": "-1"}, ["storage_namespace_quota = '-1'", "size"]),
        ({"storage_codec": "zip"}, ["storage_codec = 'zip'", "'lz4-shuffle4' or 'auto'"]),
        ({"storage_seal": "hmac"}, ["storage_seal = 'hmac'", "'mac' or 'encrypt'"]),
        ({"storage_seal": "mac"}, ["storage_key = ''", "storage_seal = 'mac' takes a key"]),
        ({"storage_key": "/key"}, ["storage_key = '/key'", "storage_seal is 'none'"]),
        ({"storage_seal": "mac", "storage_key": "key"}, ["storage_key = 'key'", "absolute"]),
        ({"tls_cert": "here.pem"}, ["tls_cert = 'here.pem'", "absolute"]),
        ({"storage_poll": "1ms"}, ["storage_poll = '1ms'", "below 50ms"]),
        ({"storage_poll": "1m"}, ["storage_dead_after", "5 times storage_poll", "300s"]),
        ({"storage_threads": "0"}, ["storage_threads = '0'", "greater"]),
        ({"storage_threads": "65"}, ["storage_threads = '65'", "less"]),
        ({"lease_timeout": "10ms"}, ["lease_timeout = '10ms'", "below 1s"]),
        ({"drain_timeout": "soon"}, ["drain_timeout = 'soon'", "duration"]),
        ({"log_level": "loud"}, ["log_level = 'loud'", "'warning'"]),
        ({"log_format": "xml"}, ["log_format = 'xml'", "'json'"]),
    ],
)
def test_a_bad_value_gives_one_line_with_field_value_and_allowed(flags, words):
    with pytest.raises(ConfigError) as raised:
        config.load(flags, env={})
    message = str(raised.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_the_line_names_its_source(tmp_path):
    file = tmp_path / "kvtier.toml"
    file.write_text("dram = true\n")
    with pytest.raises(ConfigError, match=rf"dram = 'True' \(from {file}\)"):
        config.load(file=file, env={})
    with pytest.raises(ConfigError, match=r"dram = 'x' \(from KVTIER_DRAM\)"):
        config.load(file=file, env={"KVTIER_DRAM": "x"})


def test_unknown_fields_are_refused_with_a_hint(tmp_path):
    file = tmp_path / "kvtier.toml"
    file.write_text('darm = "1GiB"\nledger = "/mnt"\n')
    with pytest.raises(ConfigError) as raised:
        config.load(file=file, env={})
    first, second = str(raised.value).splitlines()
    assert first == f"darm (from {file}) is not a field; did you mean dram?"
    assert second.startswith(f"ledger (from {file}) is not a field; known are address, dram,")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load(file=tmp_path / "none.toml", env={})
    broken = tmp_path / "broken.toml"
    broken.write_text("dram = \n")
    with pytest.raises(ConfigError, match="not TOML"):
        config.load(file=broken, env={})
    broken.write_bytes(b"dram = '\xff'\n")
    with pytest.raises(ConfigError, match="not TOML"):
        config.load(file=broken, env={})


def test_misspelt_variables_are_noticed():
    env = {"KVTIER_DARM": "1", "KVTIER_ADDRESS": "unix:/x", "KVTIER_SOMETHING_ELSE": "1", "HOME": "/"}
    assert config.unknown_variables(env) == {"KVTIER_DARM": "KVTIER_DRAM"}


def test_a_config_error_is_an_invalid_argument():
    assert issubclass(ConfigError, InvalidArgument)
    assert issubclass(ConfigError, ValueError)
