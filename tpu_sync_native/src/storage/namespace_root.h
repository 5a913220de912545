// What the root holds for all hosts: the marker of the root, and of a namespace its meta.json and its epochs.
// All of it blocks in the medium: pool threads only.
#pragma once

#include <cstdint>
#include <string>

#include "storage/context.h"

namespace tpu_sync_native {

// kvtier.json: made where there is none. "" or why the root cannot be used, in words. A root that was made by
// a newer format, or a file of this name that is not the marker, stays as it is.
std::string CheckMarker(FileSystem& files);

// Makes the namespace's directories, publishes meta.json or compares it byte by byte, and reads the epoch. An
// error is to be tried again; `refused` not empty: the root holds another fingerprint under this id.
IoError OpenOnRoot(StorageContext& context, StorageNamespace& ns, std::string* refused);

// Of a namespace that is not open here: makes an epoch higher than any there is, *made. An error of
// not_found: the root has nothing of it.
IoError ClearOnRoot(FileSystem& files, const uint8_t namespace_id[16], uint64_t* made);

// Makes the epoch that follows a clear of this host, and ends `clearing`, unless another clear came
// meanwhile.
IoError ConfirmClear(StorageContext& context, StorageNamespace& ns);

}  // namespace tpu_sync_native
