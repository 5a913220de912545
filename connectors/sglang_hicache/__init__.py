"""SGLang: HiCache's storage in kvtier.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name":"kvtier","module_path":"kvtier_connectors.sglang_hicache","class_name":"KvtierHiCache",
      "interface_v1":1}'

The class loads when SGLang asks for it: importing this package needs no SGLang.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtier_connectors.sglang_hicache.backend import KvtierHiCache

__all__ = ["KvtierHiCache"]


def __getattr__(name: str) -> Any:
    if name != "KvtierHiCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First: where the release differs, the import fails too, at whatever it misses first.
    from kvtier_connectors.sglang_hicache.compat import check_installed
    from sglang.version import __version__

    check_installed(__version__)
    from kvtier_connectors.sglang_hicache.backend import KvtierHiCache

    return KvtierHiCache
