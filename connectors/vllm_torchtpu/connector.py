"""`KVTierConnector` as vllm_torchtpu's runner uses one. How it differs from vLLM's own runners:

- the KV cache is a few storages that all layers and groups share, and a Mamba layer is a list of tensors: so
  whole rows of the storages are moved, as opaque bytes;
- loads start before the forward pass, and completions are asked for by `get_finished`: a failed load is named
  by its blocks, as there is no place for its request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from kvtier_connectors.common.guard import guarded, nothing, record_fault
from kvtier_connectors.vllm_connector.absent_worker import AbsentWorker
from kvtier_connectors.vllm_connector.connector import KVTierConnector
from vllm.config import VllmConfig
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor


class TPURaidenOffloadingConnector(KVTierConnector):
    """The class name is vllm_torchtpu's; see the package."""

    WHOLE_ROWS: ClassVar[bool] = True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """None: any will do. What vLLM's own class asks for has another meaning on TPUs."""
        return None

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Whether one tensor should hold all layers of a block, which makes a block one copy."""
        try:
            from vllm_torchtpu import envs
        except ImportError:
            return False
        return bool(getattr(envs, "VLLM_TPU_BLOCK_MAJOR_KV", False))

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> None:
        """Each storage behind the layers once, as rows of bytes, one row a block.

        Where no layer lies so, as vLLM's own class has it, which knows no lists of tensors.
        """
        side = cast(Any, self.connector_worker)
        blocks = side.kv_cache_config.num_blocks
        try:
            if all(
                isinstance(cache, torch.Tensor) and not in_rows(cache, blocks) for cache in kv_caches.values()
            ):
                super().register_kv_caches(cast(Any, kv_caches))
            else:
                side._init_worker(rows_of(kv_caches, blocks, groups=len(side.spec.config.groups)))
        except Exception as error:  # an engine without cache is better than none
            record_fault("TPURaidenOffloadingConnector.register_kv_caches", error)
            side.worker = AbsentWorker()

    def register_runner(self, runner: Any) -> None:
        """The runner's tensors are those that were registered; nothing else of it is used."""

    def start_load_kv(
        self,
        forward_context: Any,
        *,
        wait_for_completion: bool = False,
        report_completion: bool = True,
        **more: Any,
    ) -> None:
        """Start this step's jobs. `wait_for_completion`: and let its loads land before the forward pass.

        Completions are always reported: kvtier's scheduler side is told nothing of loads that end unreported.
        """
        super().start_load_kv(forward_context, **more)
        if wait_for_completion:
            self._land_loads()

    @guarded(nothing)
    def _land_loads(self) -> None:
        cast(Any, self.connector_worker).worker.land_loads()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose loads ended; what failed of them is told by `get_block_ids_with_load_errors`."""
        sent, received = super().get_finished(finished_req_ids)
        self._collect_failures()
        return sent, received

    @guarded(nothing)
    def _collect_failures(self) -> None:
        worker = cast(Any, self.connector_worker).worker
        self._failed_jobs |= worker.take_failed()
        _, blocks = worker.take_partial()
        self._lost_blocks |= blocks | worker.take_unwritten()

    def get_block_ids_with_load_errors_group_index(self) -> int | None:
        """None: the block ids above are meant for whichever group has them."""
        return None


def in_rows(tensor: torch.Tensor, num_blocks: int) -> bool:
    """Whether the blocks of a view are the rows of its storage: else a row would be parts of several."""
    outer = max(range(tensor.dim()), key=tensor.stride)
    covered = tensor.shape[outer] * tensor.stride(outer) * tensor.element_size()
    return tensor.shape[outer] % num_blocks == 0 and covered == tensor.untyped_storage().nbytes()


def rows_of(
    kv_caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]], num_blocks: int, *, groups: int
) -> CanonicalKVCaches:
    """vLLM's description of a pool that all groups overlay. ValueError: a storage's rows are not blocks."""
    storages: dict[int, tuple[Any, torch.device]] = {}
    for cache in kv_caches.values():
        for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
            storage = tensor.untyped_storage()
            if not in_rows(tensor, num_blocks):
                raise ValueError(
                    f"a KV tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}, in a storage of "
                    f"{storage.nbytes()} bytes, does not lie there block by block ({num_blocks} blocks)"
                )
            storages.setdefault(storage.data_ptr(), (storage, tensor.device))
    tensors = []
    for storage, device in storages.values():
        row = storage.nbytes() // num_blocks
        view = torch.empty(0, dtype=torch.int8, device=device).set_(storage).view(num_blocks, row)
        tensors.append(CanonicalKVCacheTensor(tensor=view, page_size_bytes=row))
    refs = [CanonicalKVCacheRef(index, one.page_size_bytes) for index, one in enumerate(tensors)]
    return CanonicalKVCaches(tensors=tensors, group_data_refs=[list(refs) for _ in range(groups)])
