"""What a user may put into `linker_extra_config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvtier_connectors.sglang_hicache.settings import Settings, parse_as

WHERE = "linker_extra_config of unified-cache-external-linker-config"


@dataclass(frozen=True)
class LinkerSettings(Settings):
    """Those of the HiCache backend, and one more."""

    where: ClassVar[str] = WHERE
    least: ClassVar[Mapping[str, int]] = {**Settings.least, "lookup_wait_ms": 0}

    # How long a request's first lookup waits for pages on their way from storage. All of the engine waits
    # with it: what has not come by then is computed, unless the request is still queued when it has.
    lookup_wait_ms: int = 5


def parse(extra: Mapping[str, Any] | None) -> LinkerSettings:
    """Settings out of the configuration. ValueError names key, value and what is allowed."""
    return parse_as(LinkerSettings, extra, frozenset())
