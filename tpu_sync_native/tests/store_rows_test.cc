// The table of namespaces from one daemon to the next: who keeps a row, and who makes way.
#include <cstring>
#include <set>
#include <string>

#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

TEST(ANamespaceWithoutChunksMakesWayWhenTheTableIsFull) {
  StoreFixture f;
  const auto id = [](int i) { return "namespace-" + std::to_string(100'000 + i); };
  for (int i = 1; i < 1024; ++i) CHECK(f.store->OpenNamespace(id(i), 4096) == static_cast<uint32_t>(i));
  CHECK_THROWS(f.store->OpenNamespace("namespace-no-row", 4096), "namespaces_max = 1024");
  f.Put(0, 1, 5);
  f.Put(0, 1, 6);
  CHECK(f.store->ClearNamespace(6) == 1);
  CHECK(f.store->Reserve(1, 7, Range(5, 1).batch()).slots.size() == 1);  // its writer lives on
  f.store->SetFloor(8, 4096);
  NextLife next(f);
  next.CheckSound();
  CHECK(next.store->OpenNamespace(id(9), 4096) == 9);
  std::set<uint32_t> rows;
  for (int i = 0; i < 1024 - 3; ++i) {  // but 5, 7 and 9
    const uint32_t ns = next.store->OpenNamespace("namespace-" + std::to_string(200'000 + i), 2 * 4096);
    CHECK(rows.insert(ns).second && ns != 5 && ns != 7 && ns != 9);
    CHECK(next.store->EpochBelow(ns) == 0 && next.store->Namespaces()[ns].floor_bytes == 0);
  }
  CHECK_THROWS(next.store->OpenNamespace("namespace-no-row", 4096), "namespaces_max = 1024");
  next.store->OpenSession(9, 9, 100);
  for (const uint32_t ns : {6u, 8u}) {
    const WriteGrant grant = next.store->Reserve(9, ns, Range(3, 1).batch());
    CHECK(next.store->Commit(9, grant.lease) == Outcome::kOk && next.Has(3, ns) && !next.Has(0, ns));
    const auto& row = next.reader->view().ns(ns);
    CHECK(row.chunk_bytes == 2 * 4096 && row.id[10] == '2');
  }
  next.CheckSound();
  CHECK(next.Has(0, 5));
}

// Killed while a row was given to another: its id is nobody's then.
TEST(RowsWithoutAnIdAreGivenAwayAsAny) {
  StoreFixture f;
  for (int i = 1; i < 1024; ++i) {
    f.store->OpenNamespace("namespace-" + std::to_string(100'000 + i), 4096);
  }
  f.Put(0, 1, 3);
  NextLife next(f, {}, [](MetaView& view) {
    for (const uint32_t ns : {1u, 2u}) {
      auto& row = const_cast<NamespaceRecord&>(view.ns(ns));
      std::memset(row.id, 0, sizeof(row.id));
      std::memcpy(row.id, &ns, sizeof(ns));
    }
  });
  next.CheckSound();
  std::set<uint32_t> rows;
  for (int i = 0; i < 1023; ++i) {
    rows.insert(next.store->OpenNamespace("namespace-" + std::to_string(200'000 + i), 4096));
  }
  CHECK(rows.size() == 1023 && !rows.contains(3) && next.Has(0, 3));
  next.CheckSound();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
