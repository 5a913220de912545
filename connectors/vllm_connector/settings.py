"""What a user may put into `kv_connector_extra_config`, and what we add to it for vLLM's framework.

Everything has a default that is right for most; see README.md beside `connectors/`.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any

CHUNK_TOKENS_DEFAULT = 256
_LOADS = (("load_deadline_ms", 1), ("load_window_ms", 1), ("prefetch_requests", 0))

# Keys that vLLM's offloading framework reads itself, with our defaults where they differ from vLLM's.
FRAMEWORK_KEYS = frozenset({"blocks_per_chunk", "offload_prompt_only", "self_describing_kv_events"})
# Keys we put there, so that the framework finds us.
INJECTED = {"spec_name": "KVTierSpec", "spec_module_path": "kvtier_connectors.vllm_connector.spec"}


@dataclass(frozen=True)
class Settings:
    """The adapter's own settings."""

    address: str | None = None  # the daemon's; None: KVTIER_ADDRESS, else the default socket
    chunk_tokens: int = CHUNK_TOKENS_DEFAULT  # wished tokens per chunk; whole engine blocks are taken
    weights_id: str | None = None  # names the weights, instead of what the files say
    copy_threads: int = 0  # of each worker; 0: half the cores, 1 to 4
    deadline_ms: int = 50  # longest wait of one call for the daemon; then the session counts as lost
    load_deadline_ms: int = 10_000  # longest wait of a load for chunks on storage; then it has failed
    load_window_ms: int = 2  # time of each step for loads, on devices that load between steps only
    prefetch_requests: int = 8  # requests in the queue whose chunks are brought up from storage meanwhile
    load_failure_policy: str = "recompute"  # or "fail": end a request whose load failed

    def __post_init__(self) -> None:
        for name, low in (("chunk_tokens", 1), ("copy_threads", 0), ("deadline_ms", 1), *_LOADS):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ValueError(f"kv_connector_extra_config.{name}: {value!r}; allowed: an integer >= {low}")
        for name in ("address", "weights_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"kv_connector_extra_config.{name}: {value!r}; allowed: a non-empty string")
        if self.load_failure_policy not in ("recompute", "fail"):
            raise ValueError(
                f"kv_connector_extra_config.load_failure_policy: {self.load_failure_policy!r}; "
                "allowed: 'recompute' or 'fail'"
            )


OWN_KEYS = tuple(field.name for field in fields(Settings))


def parse(extra: Mapping[str, Any]) -> Settings:
    """Settings out of `kv_connector_extra_config`. ValueError names key, value and what is allowed."""
    for key, value in extra.items():
        if key in INJECTED:
            if value != INJECTED[key]:
                raise ValueError(
                    f"kv_connector_extra_config.{key}: {value!r}; KVTierConnector sets this itself"
                )
        elif key not in FRAMEWORK_KEYS and key not in OWN_KEYS:
            allowed = ", ".join(sorted({*OWN_KEYS, *FRAMEWORK_KEYS}))
            raise ValueError(
                f"kv_connector_extra_config.{key}: unknown key (value {value!r}); allowed: {allowed}"
            )
    return Settings(**{key: extra[key] for key in OWN_KEYS if key in extra})


def inject(extra: MutableMapping[str, Any]) -> None:
    """Add what vLLM's framework needs to find our spec, so that the user's one flag is enough."""
    extra.update(INJECTED)
    # Agents send the model's answers back in the next turn: decode blocks are worth storing.
    extra.setdefault("offload_prompt_only", False)


def blocks_per_chunk(
    chunk_tokens: int,
    tokens_per_block: tuple[int, ...],
    *,
    has_recurrent_state: bool,
    max_model_tokens: int,
    retention_tokens: int | None,
) -> int:
    """Engine blocks per chunk, the same for all groups: the largest count that keeps to `chunk_tokens`.

    One where a group's block is a recurrent state (only its last one can be loaded), and never more than a
    quarter of what the model can hold (else short contexts would never fill a chunk). A retention interval
    must be a multiple of a chunk, or vLLM refuses to start.
    """
    if has_recurrent_state:
        return 1
    block = max(tokens_per_block)
    count = max(1, min(chunk_tokens, max_model_tokens // 4) // block)
    while (
        count > 1
        and retention_tokens
        and any(retention_tokens % (tokens * count) for tokens in tokens_per_block)
    ):
        count -= 1
    return count
