#include "fs/file_system.h"

#include <cerrno>
#include <cstring>

namespace tpu_sync_native {

bool IoError::not_found() const { return code == ENOENT || code == ESTALE || code == ENOTDIR; }

bool IoError::no_space() const { return code == ENOSPC || code == EDQUOT || code == EROFS; }

std::string IoError::text() const {
  if (code == 0) return "ok";
  if (code == kShort) return "the file ends earlier";
  const char* name = strerrorname_np(code);
  const char* words = strerrordesc_np(code);
  if (name == nullptr || words == nullptr) return "error " + std::to_string(code);
  return std::string(name) + ": " + words;
}

bool PathIsSafe(std::string_view path) {
  bool at_start = true;  // of a name
  for (const char c : path) {
    if (c == '/') {
      if (at_start) return false;
      at_start = true;
      continue;
    }
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !at_start);
    if (!plain) return false;
    at_start = false;
  }
  return !at_start;
}

bool IsTemporaryName(std::string_view name) {
  constexpr std::string_view kPrefix = ".tmp-";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  size_t digits = 0;
  while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9') ++digits;
  if (digits == 0 || digits > 10 || digits == name.size() || name[digits] != '-') return false;
  name.remove_prefix(digits + 1);
  if (name.size() != 16) return false;
  for (const char c : name) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

}  // namespace tpu_sync_native
