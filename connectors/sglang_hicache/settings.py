"""What a user may put into `--hicache-storage-backend-extra-config`, beside the keys that SGLang reads
itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

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

    address: str | None = None  # the daemon's; None: KVTIER_ADDRESS, else the default socket
    weights_id: str | None = None  # names the weights, instead of what the files say
    copy_threads: int = 0  # of each rank; 0: half the cores, 1 to 4
    deadline_ms: int = 50  # longest wait of one call for the daemon; then the session counts as lost
    load_deadline_ms: int = 5_000  # longest time of one get; what has not come from storage then is a miss

    def __post_init__(self) -> None:
        for name, low in (("copy_threads", 0), ("deadline_ms", 1), ("load_deadline_ms", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ValueError(f"{WHERE}: {name} is {value!r}; allowed: an integer >= {low}")
        for name in ("address", "weights_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{WHERE}: {name} is {value!r}; allowed: a non-empty string")


OWN_KEYS = tuple(field.name for field in fields(Settings))


def parse(extra: Mapping[str, Any] | None) -> Settings:
    """Settings out of the extra config. ValueError names key, value and what is allowed."""
    extra = extra or {}
    for key, value in extra.items():
        if key not in FRAMEWORK_KEYS and key not in OWN_KEYS:
            allowed = ", ".join(sorted({*OWN_KEYS, *FRAMEWORK_KEYS}))
            raise ValueError(f"{WHERE}: unknown key {key!r} (value {value!r}); allowed: {allowed}")
    return Settings(**{key: extra[key] for key in OWN_KEYS if key in extra})
