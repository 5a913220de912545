"""SGLang without a host tier of its own: device pools and kvtier, nothing between them.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config
    '{"linker":"KvtierLinker","linker_module_path":"kvtier_connectors.sglang_linker"}'

The class loads when SGLang asks for it: importing this package needs no SGLang.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtier_connectors.sglang_linker.linker import KvtierLinker

__all__ = ["KvtierLinker"]


def __getattr__(name: str) -> Any:
    if name != "KvtierLinker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvtier_connectors.sglang_linker.compat import check_installed
    from sglang.version import __version__

    check_installed(__version__)
    from kvtier_connectors.sglang_linker.linker import KvtierLinker

    return KvtierLinker
