// What is refused as a PJRT plugin, and why. Tables made by hand: no plugin is loaded.
#include <cstdint>
#include <memory>
#include <string>

#include "check.h"
#include "pjrt/library.h"
#include "pjrt/pjrt_backend.h"

namespace tpu_sync_native::testing {
namespace {

using pjrt::Library;

constexpr size_t kSlots = 128;

pjrt::Error* Unused(void*) { return nullptr; }

// A table that is good as it comes.
struct Table {
  struct {
    pjrt::Api head;
    void* slots[kSlots];
  } api{};
  pjrt::RawBufferExtension raw{};
  pjrt::Extension other{};

  Table() {
    api.head.struct_size = sizeof(api);
    api.head.version.minor = 114;
    for (void*& slot : api.slots) slot = reinterpret_cast<void*>(&Unused);
    raw.base.struct_size = sizeof(raw);
    raw.base.type = pjrt::kRawBufferExtensionType;
    raw.create_alias = reinterpret_cast<decltype(raw.create_alias)>(&Unused);
    raw.destroy = reinterpret_cast<decltype(raw.destroy)>(&Unused);
    raw.copy_host_to_device = reinterpret_cast<decltype(raw.copy_host_to_device)>(&Unused);
    raw.copy_device_to_host = reinterpret_cast<decltype(raw.copy_device_to_host)>(&Unused);
    other.struct_size = sizeof(other);
    other.type = 5;
    other.next = &raw.base;
    api.head.extensions = &other;
  }
  Table(const Table&) = delete;  // it points into itself
  Table& operator=(const Table&) = delete;
  std::shared_ptr<const Library> Adopt() const { return Library::Adopt(&api.head); }
};

void Refused(void (*spoil)(Table&), const char* reason) {
  Table table;
  spoil(table);
  CHECK_THROWS(table.Adopt(), reason);
}

TEST(AGoodTableIsTaken) {
  Table table;
  const std::shared_ptr<const Library> library = table.Adopt();
  CHECK(library->version() == "0.114");
  CHECK(&library->raw() == &table.raw);
  table.raw.base.struct_size += 8;  // newer ones have more functions behind
  CHECK(&table.Adopt()->raw() == &table.raw);
}

TEST(WhatIsNoTableOfAKnownVersionIsRefused) {
  CHECK_THROWS(Library::Adopt(nullptr), "GetPjrtApi answered null");
  Refused([](Table& table) { table.api.head.struct_size = sizeof(pjrt::Api) - 8; },
          "its table of 32 bytes is too small");
  Refused([](Table& table) { table.api.head.version.major = 1; }, "speaks version 1.114, known is 0.x");
  Refused(
      [](Table& table) {
        table.api.head.struct_size = sizeof(pjrt::Api) + 8 * pjrt::BufferReadyEvent::kCall.slot;
      },
      "version 0.114 lacks PJRT_Buffer_ReadyEvent");
  Refused([](Table& table) { table.api.slots[pjrt::EventOnReady::kCall.slot] = nullptr; },
          "lacks PJRT_Event_OnReady");
}

TEST(WithoutRawBufferNothingGoes) {
  const char* const reason = "has no RawBuffer extension, so buffers cannot be written in place nor kept";
  Refused([](Table& table) { table.other.next = nullptr; }, reason);
  Refused([](Table& table) { table.other.next = &table.other; }, reason);  // a ring
  Refused([](Table& table) { table.api.head.extensions = nullptr; }, reason);
}

TEST(ARawBufferExtensionOfAnotherShapeIsRefused) {
  Refused([](Table& table) { table.raw.base.struct_size = 72; },
          "its RawBuffer extension has 72 bytes, known are 80 and more");
  Refused([](Table& table) { table.raw.copy_host_to_device = nullptr; },
          "its RawBuffer extension lacks a function");
}

TEST(ACallThatIsNewerThanThePluginIsAnError) {
  Table table;
  table.api.head.struct_size = sizeof(pjrt::Api) + 8 * pjrt::ClientDmaMap::kCall.slot;
  const std::shared_ptr<const Library> library = table.Adopt();
  pjrt::ClientDmaMap map;
  CHECK(library->Try(&map) == "PJRT_Client_DmaMap is not in this plugin");
  pjrt::BufferIsDeleted deleted;
  CHECK(library->Try(&deleted).empty());
}

TEST(PathsThatAreNoPlugins) {
  CHECK_THROWS(Library::Open("/nowhere/libnothing.so"), "PJRT plugin /nowhere/libnothing.so: ");
  CHECK_THROWS(Library::Open("libm.so.6"), "PJRT plugin libm.so.6: has no GetPjrtApi");
  CHECK_THROWS(MakePjrtBackend({}), "no library is named");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
