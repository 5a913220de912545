#include "client/arena_map.h"

namespace tpu_sync_native {

ArenaMap::ArenaMap(int data_fd, int meta_fd)
    : meta_(meta_fd, FileBytes(meta_fd, "meta_fd"), Mapping::Access::kRead, "meta_fd"),
      index_(meta_.data(), meta_.bytes()),
      data_(data_fd, header().data_bytes, Mapping::Access::kReadWrite, "data_fd"),
      boot_id_(header().boot_id) {}

}  // namespace tpu_sync_native
