#include "storage/context.h"

#include <cstring>
#include <utility>

#include "segment/names.h"

namespace tpu_sync_native {

std::shared_ptr<StorageNamespace> StorageContext::Namespace(uint32_t ns) const {
  const std::lock_guard lock(mutex);
  const auto found = namespaces.find(ns);
  return found == namespaces.end() ? nullptr : found->second;
}

std::shared_ptr<StorageNamespace> StorageContext::NamespaceById(const uint8_t id[16]) const {
  const std::lock_guard lock(mutex);
  for (const auto& [index, ns] : namespaces) {
    if (std::memcmp(ns->id, id, sizeof(ns->id)) == 0) return ns;
  }
  return nullptr;
}

std::vector<std::shared_ptr<StorageNamespace>> StorageContext::AllNamespaces() const {
  std::vector<std::shared_ptr<StorageNamespace>> all;
  const std::lock_guard lock(mutex);
  for (const auto& [index, ns] : namespaces) all.push_back(ns);
  return all;
}

void StorageContext::CloseAdmission(std::string why) {
  const std::lock_guard lock(mutex);
  reason = std::move(why);
  admitting.store(false);
}

void StorageContext::OpenAdmission() {
  const std::lock_guard lock(mutex);
  reason.clear();
  admitting.store(true);
}

std::string StorageContext::admission_reason() const {
  const std::lock_guard lock(mutex);
  return reason;
}

bool StorageContext::TakeRoom(StorageNamespace& ns, uint64_t bytes) {
  const auto wanted = static_cast<int64_t>(bytes);
  if (room_bytes.load() < wanted || ns.room_bytes.load() < wanted) {
    refused_bytes.fetch_add(bytes);
    return false;
  }
  room_bytes.fetch_sub(wanted);
  ns.room_bytes.fetch_sub(wanted);
  return true;
}

std::string StorageContext::host_directory(const StorageNamespace& ns) const {
  const std::lock_guard lock(ns.host_mutex);
  return HostsDirectory(ns.id) + "/" + HexId(ns.host_id);
}

}  // namespace tpu_sync_native
