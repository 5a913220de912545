// A directory of its own for a test, removed with everything in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "check.h"

namespace tpu_sync_native::testing {

class TemporaryRoot {
 public:
  // above: "" for the usual place of temporaries.
  explicit TemporaryRoot(const std::string& above = "") {
    std::string name =
        (above.empty() ? std::filesystem::temp_directory_path().string() : above) + "/kvtier-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) Fail(__FILE__, __LINE__, "mkdtemp", name);
    path_ = name;
  }
  ~TemporaryRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryRoot(const TemporaryRoot&) = delete;
  TemporaryRoot& operator=(const TemporaryRoot&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tpu_sync_native::testing
