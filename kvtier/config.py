"""The daemon's configuration: one frozen tree.

Each field may stand in a TOML file, in an environment variable and on the command line; flags win over
the environment, the environment over the file, the file over the default. `dram` is `dram = "64GiB"` in
the file, `KVTIER_DRAM=64GiB` in the environment, `--dram 64GiB` as a flag.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from kvtier.address import default_address, parse_address, parse_host_port
from kvtier.errors import ConfigError
from kvtier.floors import check_floors, parse_floors
from kvtier.logs import Format, Level
from kvtier.sizes import parse_duration, parse_size, show_size

ENV_PREFIX: Final = "KVTIER_"
DRAM_BYTES_MIN: Final = 4 << 20
SLAB_BYTES_MIN: Final = 2 << 20
SLAB_BYTES_MAX: Final = 1 << 30
SEGMENT_BYTES_MIN: Final = 1 << 20
SEGMENT_BYTES_MAX: Final = 16 << 30
QUOTA_BYTES_MIN: Final = 16 << 20
DEAD_AFTER_POLLS_MIN: Final = 5


def default_shm_dir() -> Path:
    """Root has one; other users have one of their own."""
    return Path("/dev/shm/kvtier" if os.geteuid() == 0 else f"/dev/shm/kvtier-{os.geteuid()}")  # noqa: S108


def _address(text: str) -> str:
    address = parse_address(text)
    if address.path is None and address.port == 0:
        raise ValueError("has port 0; clients must know the port, 1 to 65535")
    return str(address)


def _tls(path: str) -> str:
    if path and not Path(path).is_absolute():
        raise ValueError("is not an absolute path")
    return path


def _tls_ca(path: str, info: ValidationInfo) -> str:
    """The last of the three, so it sees all of them and the address."""
    path = _tls(path)
    if not {"address", "tls_cert", "tls_key"} <= info.data.keys():
        return path  # one of those is wrong, and is said
    address, cert, key = (info.data[name] for name in ("address", "tls_cert", "tls_key"))
    if not parse_address(address).is_loopback and not (path and cert and key):
        raise ValueError(
            f"and address = {address!r} reaches beyond this host, which takes TLS of both sides: tls_cert, "
            "tls_key and tls_ca; else use unix:/path or loopback"
        )
    if path and not cert and parse_address(address).path is None:
        raise ValueError("is set without tls_cert and tls_key")
    return path


def _http(text: str) -> str:
    if text == "off":
        return text
    parse_host_port(text, "http", "host:port or off")
    return text


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("is not an absolute path")
    return path


def _slab(size_bytes: int) -> int:
    if size_bytes and not SLAB_BYTES_MIN <= size_bytes <= SLAB_BYTES_MAX:
        raise ValueError("is outside 2MiB to 1GiB (0: chosen from dram)")
    if size_bytes % 4096:
        raise ValueError("is not a multiple of 4KiB")
    return size_bytes


def _storage(root: str) -> str:
    if "://" in root:
        if root.startswith("file:"):
            raise ValueError("is a URL of a directory: give its path alone")
        if "@" in root or "?" in root:
            raise ValueError(
                "carries credentials or options: the store's client takes them from its environment"
            )
        return root
    if root and not Path(root).is_absolute():
        raise ValueError('is neither an absolute path nor a URL like s3://bucket/prefix ("": no storage)')
    return root


def _key(path: str, info: ValidationInfo) -> str:
    seal = info.data.get("storage_seal")
    if path and not Path(path).is_absolute():
        raise ValueError("is not an absolute path")
    if seal is not None and seal != "none" and not path:
        raise ValueError(f"and storage_seal = {seal!r} takes a key: a file with 32 bytes or 64 hex digits")
    if path and seal == "none":
        raise ValueError("is set, and storage_seal is 'none': mac or encrypt is wanted")
    return path


def _segment(size_bytes: int) -> int:
    if not SEGMENT_BYTES_MIN <= size_bytes <= SEGMENT_BYTES_MAX:
        raise ValueError("is outside 1MiB to 16GiB")
    return size_bytes


def _quota(size_bytes: int) -> int:
    if size_bytes and size_bytes < QUOTA_BYTES_MIN:
        raise ValueError("is below 16MiB (0: no limit)")
    return size_bytes


def _dead_after(seconds: float, info: ValidationInfo) -> float:
    """A host that lives must be seen to move several times within it."""
    least = DEAD_AFTER_POLLS_MIN * info.data.get("storage_poll", 0.0)
    if seconds < least:
        raise ValueError(f"is below {DEAD_AFTER_POLLS_MIN} times storage_poll, which is {least:g}s")
    return seconds


def _floors(floors: dict[str, int], info: ValidationInfo) -> dict[str, int]:
    if "dram" in info.data:  # else that one is wrong, and is said
        check_floors(floors, info.data["dram"])
    return floors


def _floor(size_bytes: int, info: ValidationInfo) -> int:
    if size_bytes > info.data.get("dram", size_bytes):
        raise ValueError(f"exceeds dram, which is {show_size(info.data['dram'])}")
    return size_bytes


def _at_least(minimum: float, words: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value < minimum:
            raise ValueError(f"is below {words}")
        return value

    return check


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]


class Config(BaseModel):
    """Everything `kvtier serve` can be told. Sizes are bytes, durations are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Annotated[str, AfterValidator(_address)] = Field(
        default_factory=default_address,
        description="Where engines and tools reach the daemon: unix:/path, or host:port (control calls only) "
        "on loopback, with TLS also beyond. Change it to run several daemons on one host.",
    )
    dram: Annotated[Size, AfterValidator(_at_least(DRAM_BYTES_MIN, "4MiB"))] = Field(
        default=4 << 30,
        description="Size of the arena that holds chunks in host memory. Give it what the host can spare; "
        "the index takes about 1 % more.",
    )
    shm_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_shm_dir,
        description="Directory of the arena's files, on a tmpfs. Change it to use another mount, e.g. one "
        "bound to a NUMA node or shared between containers.",
    )
    http: Annotated[str, AfterValidator(_http)] = Field(
        default="off",
        description="host:port of /metrics, /healthz and /readyz, or off. It shows counters only, to whoever "
        "reaches it.",
    )
    access_group: str = Field(
        default="",
        description="A group whose members may attach as well as the daemon's own user; empty: none. For "
        "engines of another user: each of them reads and writes the whole arena (docs/SECURITY.md).",
    )
    tls_cert: Annotated[str, AfterValidator(_tls)] = Field(
        default="",
        description="PEM file of the certificate that a TCP address shows; with tls_key it turns TLS on. "
        "Clients read the same three variables: what they show, and whom they believe.",
    )
    tls_key: Annotated[str, AfterValidator(_tls)] = Field(
        default="", description="PEM file of its private key, 0600."
    )
    tls_ca: Annotated[str, AfterValidator(_tls_ca)] = Field(
        default="",
        validate_default=True,
        description="PEM file of the authority that signed the clients' certificates: others are refused. "
        "Beyond loopback it is required, as whoever may call may clear and evict.",
    )
    policy: Literal["lru", "s3fifo"] = Field(
        default="lru",
        description="What is evicted first. s3fifo keeps more when the working set is far above dram.",
    )
    slab: Annotated[Size, AfterValidator(_slab)] = Field(
        default=0,
        description="Unit in which the arena is given to slot sizes; 0 means dram/64, within 2MiB to 1GiB. "
        "Lower it when many chunk sizes share a small arena.",
    )
    slots_max: Annotated[int, Field(ge=0, le=1 << 31)] = Field(
        default=0,
        description="Most chunks the index can hold; 0 means dram/16KiB. Raise it for chunks below 16KiB.",
    )
    floors: Annotated[dict[str, int], BeforeValidator(parse_floors), AfterValidator(_floors)] = Field(
        default={},
        description="What others leave of dram to a namespace, whatever they store: NAME=SIZE, ...; in "
        "the file a table. NAME is a label or the start of an id (kvtier ls), SIZE is for each namespace of "
        "that name. What is above is shared by age.",
    )
    floor: Annotated[Size, AfterValidator(_floor)] = Field(
        default=0,
        description="The same for each namespace that floors does not name, as long as all fit into dram; "
        "0: none.",
    )
    floor_idle: Annotated[Duration, AfterValidator(_at_least(0.0, "0s"))] = Field(
        default=3600.0,
        description="A namespace that nobody used for so long has no floor until it is used again, so that "
        "the floor of a model that was updated makes room for its successor's; 0: it keeps it.",
    )
    dram_checksum: Literal["off", "sampled", "always"] = Field(
        default="off",
        description="Which chunks in memory get a checksum, made in the background after they were stored: "
        "none, one in 16, all. Those that have one are verified after a restart before they are served, and "
        "by kvtier verify --arena. It reads each such chunk once more (kvtier bench checksum).",
    )
    storage: Annotated[str, AfterValidator(_storage)] = Field(
        default="",
        description="Directory below DRAM, on Lustre or any file system that all hosts share, or a URL of an "
        "object store (s3://bucket/prefix); empty: no storage. Every host of a fleet names the same one.",
    )
    storage_segment: Annotated[Size, AfterValidator(_segment)] = Field(
        default=256 << 20,
        description="Size at which a segment file is closed, the unit in which space is freed; with a "
        "small quota a sixteenth of that. Raise it where the file system prefers fewer, larger files.",
    )
    storage_quota: Annotated[Size, AfterValidator(_quota)] = Field(
        default=0,
        description="Most bytes that all hosts together keep under storage; 0: as much as the file system "
        "has free. The coldest segments go first.",
    )
    storage_namespace_quota: Annotated[Size, AfterValidator(_quota)] = Field(
        default=0,
        description="The same for each namespace, so that one model does not push out the others; 0: no "
        "limit.",
    )
    storage_codec: Literal["raw", "lz4", "lz4-shuffle2", "lz4-shuffle4", "auto"] = Field(
        default="raw",
        description="How new chunks are written: raw, lz4, or lz4 after a byte shuffle of 2-byte (bfloat16, "
        "float16) or 4-byte (float32) numbers. It pays where storage is slower than a core compresses and "
        "the cache compresses at all (kvtier bench codec); auto finds out for each namespace whether it does "
        "(kvtier stats says). Every host reads all of them.",
    )
    storage_seal: Literal["none", "mac", "encrypt"] = Field(
        default="none",
        description="Makes records that somebody without storage_key wrote or changed misses: mac lets them "
        "be read, encrypt does not (AES-256-GCM, by OpenSSL 3). All hosts of a root have the same, and the "
        "same key; another one is another root (docs/SECURITY.md).",
    )
    storage_key: Annotated[str, AfterValidator(_key)] = Field(
        default="",
        validate_default=True,
        description="File of the root's key, 0600: 32 random bytes, or 64 hexadecimal digits.",
    )
    storage_poll: Annotated[Duration, AfterValidator(_at_least(0.05, "50ms"))] = Field(
        default=2.0,
        description="How often other hosts' directories are looked at, thus how late their chunks are seen "
        "here.",
    )
    storage_dead_after: Annotated[Duration, AfterValidator(_dead_after)] = Field(
        default=60.0,
        validate_default=True,
        description="A host that gives no sign of life for so long is dead, and its segments are taken over.",
    )
    storage_threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4,
        description="Reads from storage under way at once. Raise it for file systems with high latency.",
    )
    lease_timeout: Annotated[Duration, AfterValidator(_at_least(1.0, "1s"))] = Field(
        default=600.0,
        description="A lease not given back by then is taken back. It must exceed an engine's longest copy.",
    )
    drain_timeout: Annotated[Duration, AfterValidator(_at_least(0.0, "0s"))] = Field(
        default=10.0,
        description="How long a stop waits for leases to come back before it goes on without them.",
    )
    log_level: Level = Field(default="info", description="The least severe lines that are logged.")
    log_format: Format = Field(
        default="auto", description="human, json, or auto: human on a terminal and json elsewhere."
    )


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Config:
    """Merge the sources and check every field.

    `flags`: field -> text, None where the flag was not given. ConfigError has one line a field: its name,
    value and source, and what is allowed.
    """
    env = os.environ if env is None else env
    merged: dict[str, tuple[Any, str]] = {}
    if file is not None:
        merged |= {name: (value, str(file)) for name, value in _read(file).items()}
    for name in Config.model_fields:
        if (variable := ENV_PREFIX + name.upper()) in env:
            merged[name] = (env[variable], variable)
        flag = "--" + name.replace("_", "-")
        if flags is not None and flags.get(name) is not None:
            merged[name] = (flags[name], flag)
    try:
        return Config.model_validate({name: value for name, (value, _) in merged.items()})
    except ValidationError as error:
        raise ConfigError("\n".join(_line(fault, merged) for fault in error.errors())) from None


def unknown_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that look like a misspelt field: variable -> the field's variable."""
    known = [ENV_PREFIX + name.upper() for name in Config.model_fields]
    found = {}
    for variable in env:
        if variable.startswith(ENV_PREFIX) and variable not in known:
            close = difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
            if close:
                found[variable] = close[0]
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as source:
            return tomllib.load(source)
    except OSError as error:
        raise ConfigError(f"config is {str(file)!r}; it cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config is {str(file)!r}; it is not TOML: {error}") from None


def _line(fault: Any, merged: Mapping[str, tuple[Any, str]]) -> str:
    name = ".".join(map(str, fault["loc"]))
    value, source = merged.get(str(fault["loc"][0]), (fault["input"], "default"))
    if fault["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, Config.model_fields, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(Config.model_fields)}"
        return f"{name} (from {source}) is not a field; {hint}"
    reason = fault["msg"]
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
        if reason.startswith(f"{name} is "):  # the checker has already named field and value
            return f"{reason} (from {source})"
        return f"{name} = {str(value)!r} (from {source}) {reason}"
    return f"{name} = {str(value)!r} (from {source}): {reason[0].lower()}{reason[1:]}"
