// The double of a shared directory for tests of what stands on one:
//
//   FakeFiles fake;                       hand fake.files() to the code under test
//   fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .skip = 3, .error = ENOSPC, .bytes_done = 4096});
//   fake.memory->Crash();                 forgets what was not synced; reopen everything
//   fake.memory->Flip("v1/...", 17, 1);   see memory_files.h, fault_plan.h, hooked_files.h
#pragma once

#include <memory>
#include <utility>

#include "fault_plan.h"
#include "hooked_files.h"
#include "memory_files.h"

namespace tpu_sync_native::testing {

struct FakeFiles {
  explicit FakeFiles(FileSystemTraits traits = {})
      : memory(std::make_shared<MemoryFiles>(std::move(traits))),
        plan(std::make_shared<FaultPlan>()),
        faulty(WithFaults(memory, plan)) {}
  ~FakeFiles() { plan->Release(); }
  FakeFiles(const FakeFiles&) = delete;
  FakeFiles& operator=(const FakeFiles&) = delete;

  std::shared_ptr<FileSystem> files() const { return faulty; }

  const std::shared_ptr<MemoryFiles> memory;  // without faults: what is really there
  const std::shared_ptr<FaultPlan> plan;
  const std::shared_ptr<FileSystem> faulty;
};

}  // namespace tpu_sync_native::testing
