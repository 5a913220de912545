"""What a user may put into `--hicache-storage-backend-extra-config`, beside the keys that SGLang reads
itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

WHERE = "hicache-storage-backend-extra-config"

# SGLang reads these. Some it takes out before we see them; which ones depends on the release.
FRAMEWORK_KEYS = frozenset(
    {
        "allocator",
        "backend_name",
        "class_name",
        "hicache_storage_pass_prefix_keys",
        "interface_v1",
        "module_path",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "tp_lcm_size",
    }
)


@dataclass(frozen=True)
class Settings:
    """The adapter's own settings."""

    where: ClassVar[str] = WHERE
    least: ClassVar[Mapping[str, int]] = {"copy_threads": 0, "deadline_ms": 1, "load_deadline_ms": 1}

    address: str | None = None  # the daemon's; None: KVTIER_ADDRESS, else the default socket
    weights_id: str | None = None  # names the weights, instead of what the files say
    copy_threads: int = 0  # of each rank; 0: half the cores, 1 to 4
    deadline_ms: int = 50  # longest wait of one call for the daemon; then the session counts as lost
    load_deadline_ms: int = 5_000  # longest time of one get; what has not come from storage then is a miss

    def __post_init__(self) -> None:
        for name, low in self.least.items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ValueError(f"{self.where}: {name} is {value!r}; allowed: an integer >= {low}")
        for name in ("address", "weights_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{self.where}: {name} is {value!r}; allowed: a non-empty string")


S = TypeVar("S", bound=Settings)


def parse(extra: Mapping[str, Any] | None) -> Settings:
    """Settings out of the extra config. ValueError names key, value and what is allowed."""
    return parse_as(Settings, extra, FRAMEWORK_KEYS)


def parse_as(kind: type[S], extra: Mapping[str, Any] | None, framework_keys: frozenset[str]) -> S:
    """The same, of another place for settings. framework_keys: allowed there, and not ours."""
    extra, own = extra or {}, [field.name for field in fields(kind)]
    for key, value in extra.items():
        if key not in framework_keys and key not in own:
            allowed = ", ".join(sorted({*own, *framework_keys}))
            raise ValueError(f"{kind.where}: unknown key {key!r} (value {value!r}); allowed: {allowed}")
    return kind(**{key: extra[key] for key in own if key in extra})
