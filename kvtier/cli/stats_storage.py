"""The storage part of `kvtier stats`."""

from collections.abc import Iterable, Mapping
from typing import Final

from rich.text import Text

from kvtier.sizes import show_size
from kvtier.types import NamespaceInfo

_DROPS: Final = (
    ("queue", "storage too slow"),
    ("evicted", "evicted before"),
    ("full", "full"),
    ("down", "down"),
    ("error", "write failed"),
)
_FAILURES: Final = (
    ("missing", "gone"),
    ("corrupt", "corrupt"),
    ("io", "read failed"),
    ("deadline", "too late"),
    ("down", "down"),
)


def storage_rows(
    state: str, counters: Mapping[str, int], before: Mapping[str, int] | None, elapsed_s: float
) -> list[Text]:
    """State and contents; what was written; what was read. Rates since `before`, `elapsed_s` ago."""

    def grown(name: str) -> int:
        name = f"storage_{name}"
        return counters[name] - (before.get(name, 0) if before else 0)

    def rate(name: str) -> str:
        return f" ({show_size(grown(name) / elapsed_s)}/s)" if before and elapsed_s > 0 else ""

    def reasons(kind: str, names: tuple[tuple[str, str], ...]) -> str:
        told = [f"{grown(f'{kind}_{name}'):,} {word}" for name, word in names if grown(f"{kind}_{name}")]
        return ", ".join(told)

    has = Text.assemble(("storage  ", "bold"), (state, "green" if state == "ok" else "bold yellow"))
    quota_bytes = counters["storage_quota_bytes"]
    has.append(f", {counters['storage_records']:,} chunks of {counters['storage_hosts']:,} hosts")
    has.append(f", {show_size(counters['storage_bytes'])}")
    has.append(f" of {show_size(quota_bytes)}" if quota_bytes else "")
    has.append(
        f", {counters['storage_own_segments']:,} of {counters['storage_segments']:,} segments are ours"
    )
    if counters["storage_stuck_threads"]:
        has.append(f", {counters['storage_stuck_threads']:,} threads hang", "bold red")

    written = Text.assemble(("demoted  ", "bold"), f"{grown('demoted_chunks'):,} chunks, ")
    written.append(f"{show_size(grown('demoted_bytes'))}{rate('demoted_bytes')}")
    if counters["storage_demote_queue_bytes"]:
        written.append(f", {show_size(counters['storage_demote_queue_bytes'])} waiting")
    if drops := reasons("dropped", _DROPS):
        written.append(f", dropped {drops}", "yellow")
    if grown("deleted_segments"):
        written.append(f", {grown('deleted_segments'):,} segments deleted")
        written.append(f", write amplification {counters['storage_write_amplification_permille'] / 1000:.2f}")
    if grown("adopted_segments"):
        written.append(f", {grown('adopted_segments'):,} adopted")

    read = Text.assemble(("promoted ", "bold"), f"{grown('promoted_chunks'):,} chunks, ")
    read.append(f"{show_size(grown('promoted_bytes'))}{rate('promoted_bytes')}")
    if failures := reasons("failed", _FAILURES):
        read.append(f", failed {failures}", "yellow")
    return [has, written, read]


def codec_rows(namespaces: Iterable[NamespaceInfo]) -> list[Text]:
    """Of each namespace whose codec is found out: which it is, and why."""
    return [
        Text.assemble(
            ("codec    ", "bold"),
            f"{info.id.hex()[:12]} {info.storage_codec}: {info.storage_codec_tried} stores "
            f"{info.storage_codec_share:.2f} of the bytes in {info.storage_codec_write:.2f} of the time, "
            f"and reads in {info.storage_codec_read:.2f} of it",
        )
        for info in namespaces
        if info.storage_codec_tried
    ]


def on_storage(info: NamespaceInfo) -> str:
    """One cell: what storage has of a namespace, or why it has nothing."""
    kind = info.storage.partition(":")[0]
    if kind not in ("ready", "apart"):
        return kind or "-"
    return f"{info.storage_records:,} ({show_size(info.storage_bytes)})" + (", apart" * (kind == "apart"))
