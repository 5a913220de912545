// An engine's view of the catalog: mapped read-only, or absent.
#pragma once

#include "base/mapping.h"
#include "catalog/catalog.h"

namespace tpu_sync_native {

class CatalogMap {
 public:
  // Maps the file (the descriptor may be closed afterwards); below 0: there is none, nothing is found. Throws
  // std::invalid_argument naming what does not fit.
  explicit CatalogMap(int catalog_fd) {
    if (catalog_fd < 0) return;
    map_ = Mapping(catalog_fd, FileBytes(catalog_fd, "catalog_fd"), Mapping::Access::kRead, "catalog_fd");
    reader_ = CatalogReader(reinterpret_cast<const uint8_t*>(map_.data()), map_.bytes());
  }
  const CatalogReader& reader() const { return reader_; }

 private:
  Mapping map_;
  CatalogReader reader_;
};

}  // namespace tpu_sync_native
