// Storage: the tier below DRAM, beside the daemon's Store.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "bindings.h"
#include "fs/posix_file_system.h"
#include "gil.h"
#include "python_files.h"
#include "storage/storage_tier.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

constexpr double kWaitMaxS = 86'400;

using Field = std::variant<uint64_t StorageOptions::*, uint32_t StorageOptions::*, double StorageOptions::*>;

constexpr struct {
  const char* name;
  Field field;
} kFields[] = {
    {"quota_bytes", &StorageOptions::quota_bytes},
    {"namespace_quota_bytes", &StorageOptions::namespace_quota_bytes},
    {"segment_bytes", &StorageOptions::segment_bytes},
    {"records_max", &StorageOptions::records_max},
    {"load_threads", &StorageOptions::load_threads},
    {"store_threads", &StorageOptions::store_threads},
    {"demote_queue_bytes", &StorageOptions::demote_queue_bytes},
    {"promote_queue_bytes", &StorageOptions::promote_queue_bytes},
    {"io_bytes", &StorageOptions::io_bytes},
    {"sync_ms", &StorageOptions::sync_ms},
    {"sync_bytes", &StorageOptions::sync_bytes},
    {"poll_ms", &StorageOptions::poll_ms},
    {"heartbeat_ms", &StorageOptions::heartbeat_ms},
    {"dead_after_ms", &StorageOptions::dead_after_ms},
    {"promote_deadline_ms", &StorageOptions::promote_deadline_ms},
    {"free_low", &StorageOptions::free_low},
    {"free_high", &StorageOptions::free_high},
    {"copy_forward_share", &StorageOptions::copy_forward_share},
};

void SetOption(StorageOptions& options, const std::string& name, const py::handle& value) {
  for (const auto& known : kFields) {
    if (name != known.name) continue;
    try {
      std::visit(
          [&](auto field) {
            using Value = std::remove_reference_t<decltype(options.*field)>;
            options.*field = value.cast<Value>();
          },
          known.field);
    } catch (const py::cast_error&) {
      throw py::value_error("options: " + name + " is " + py::repr(value).cast<std::string>() +
                            ", which is not a number that it can have");
    }
    return;
  }
  throw py::value_error("options: there is no " + name);
}

StorageOptions OptionsOf(const std::string& host_id, uint64_t boot_id, const py::dict& values) {
  StorageOptions options;
  if (host_id.size() != sizeof(options.host_id)) {
    throw py::value_error("host_id has 16 bytes, not " + std::to_string(host_id.size()));
  }
  std::memcpy(options.host_id, host_id.data(), host_id.size());
  options.boot_id = boot_id;
  for (const auto& [name, value] : values) SetOption(options, name.cast<std::string>(), value);
  return options;
}

std::shared_ptr<const Sealer> SealerOf(const std::string& seal, const std::string& key) {
  if (seal == "none") return nullptr;
  if (seal != "mac" && seal != "encrypt") throw py::value_error("seal: there is no " + seal);
  std::string why;
  auto sealer = Sealer::Make(key, seal == "mac" ? Seal::kMac : Seal::kEncrypt, &why);
  if (sealer == nullptr) throw py::value_error("seal: " + why);
  return sealer;
}

// NaN and what lies before now is no time at all.
uint64_t WaitMs(double wait_s) {
  return wait_s > 0 ? static_cast<uint64_t>(std::min(wait_s, kWaitMaxS) * 1000) : 0;
}

class PyStorage {
 public:
  PyStorage(const py::handle& store, const std::string& root, const py::object& files, int catalog_fd,
            const py::bytes& host_id, uint64_t boot_id, const py::dict& options, const std::string& seal,
            const py::bytes& seal_key) {
    if (files.is_none() == root.empty()) throw py::value_error("root: a directory, or else files");
    StorageOptions wanted = OptionsOf(host_id, boot_id, options);
    wanted.sealer = SealerOf(seal, seal_key);
    const StoreParts parts = StoreOf(store);
    const std::shared_ptr<FileSystem> medium =
        files.is_none() ? MakePosixFileSystem(root) : MakePythonFiles(files);
    tier_ = WithoutGil(
        [&] { return std::make_unique<StorageTier>(medium, *parts.store, parts.arena, catalog_fd, wanted); });
  }

  ~PyStorage() {
    const py::gil_scoped_release release;
    tier_.reset();
  }

  void CheckRoot(double wait_s) {
    const std::string why = WithoutGil([&] { return tier_->CheckRoot(WaitMs(wait_s)); });
    if (!why.empty()) throw py::value_error(why);
  }

  uint64_t ClearUnopened(const py::bytes& id, double wait_s) {
    const std::string text = id;
    uint64_t made = 0;
    const std::string why = WithoutGil([&] { return tier_->ClearUnopened(text, WaitMs(wait_s), &made); });
    if (!why.empty()) throw py::value_error(why);
    return made;
  }

  void Start() {
    const py::gil_scoped_release release;
    tier_->Start();
  }

  bool Stop(double wait_s) {
    return WithoutGil([&] { return tier_->Stop(WaitMs(wait_s)); });
  }

  void OpenNamespace(uint32_t ns, const py::bytes& id, uint64_t chunk_bytes, std::string meta_json,
                     const std::string& codec_name, uint64_t told) {
    std::optional<Codec> codec;
    if (codec_name != "auto" && !ParseCodec(codec_name, &codec.emplace()))
      throw py::value_error("codec: there is no " + codec_name);
    const std::string text = id;
    const py::gil_scoped_release release;
    tier_->OpenNamespace(ns, text, chunk_bytes, std::move(meta_json), codec, told);
  }

  void ClearNamespace(uint32_t ns) {
    const py::gil_scoped_release release;
    tier_->ClearNamespace(ns);
  }

  bool Flush(double wait_s) {
    return WithoutGil([&] { return tier_->Flush(WaitMs(wait_s)); });
  }

  std::string State() const {
    return WithoutGil([&] { return tier_->state(); });
  }

  py::dict Stats() const {
    const auto stats = WithoutGil([&] { return tier_->Stats(); });
    py::dict values;
    for (const Counter& counter : stats) {
      values[py::str(counter.name.data(), counter.name.size())] = counter.value;
    }
    return values;
  }

  py::list Namespaces() const {
    const auto all = WithoutGil([&] { return tier_->Namespaces(); });
    py::list rows;
    for (const StorageTier::NamespaceState& ns : all) {
      py::dict row;
      row["index"] = ns.ns;
      row["state"] = ns.state;
      row["records"] = ns.records;
      row["bytes"] = ns.bytes;
      row["hosts"] = ns.hosts;
      row["codec"] = CodecName(ns.codec.codec);
      row["codec_tried"] = ns.codec.tried == Codec::kRaw ? "" : CodecName(ns.codec.tried);
      row["codec_share"] = ns.codec.share;
      row["codec_write"] = ns.codec.cost.write;
      row["codec_read"] = ns.codec.cost.read;
      rows.append(row);
    }
    return rows;
  }

 private:
  std::unique_ptr<StorageTier> tier_;
};

}  // namespace

void BindStorage(py::module_& module) {
  py::class_<PyStorage>(module, "Storage")
      // The store outlives the tier, which calls it.
      .def(py::init<const py::handle&, const std::string&, const py::object&, int, const py::bytes&, uint64_t,
                    const py::dict&, const std::string&, const py::bytes&>(),
           py::keep_alive<1, 2>(), py::arg("store"), py::kw_only(), py::arg("root"),
           py::arg("files") = py::none(), py::arg("catalog_fd"), py::arg("host_id"), py::arg("boot_id"),
           py::arg("options"), py::arg("seal") = "none", py::arg("seal_key") = py::bytes())
      .def("check_root", &PyStorage::CheckRoot, py::arg("wait_s"))
      .def("start", &PyStorage::Start)
      .def("stop", &PyStorage::Stop, py::arg("wait_s"))
      .def("open_namespace", &PyStorage::OpenNamespace, py::arg("ns"), py::arg("id"), py::arg("chunk_bytes"),
           py::arg("meta_json"), py::arg("codec") = "raw", py::arg("told") = 0)
      .def("clear_namespace", &PyStorage::ClearNamespace, py::arg("ns"))
      .def("clear_unopened", &PyStorage::ClearUnopened, py::arg("id"), py::arg("wait_s"))
      .def("flush", &PyStorage::Flush, py::arg("wait_s"))
      .def("state", &PyStorage::State)
      .def("stats", &PyStorage::Stats)
      .def("namespaces", &PyStorage::Namespaces);
}

}  // namespace tpu_sync_native
