// A test framework of one screen: TEST(name) { CHECK(...); CHECK_THROWS(..., "part of the message"); } and
// CHECK_MAIN() once per file. A failed check ends the process, and says with which seed (seed.h); a name as
// argument runs that test alone.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "seed.h"

namespace tpu_sync_native::testing {

struct TestCase {
  const char* name;
  void (*run)();
};

inline std::vector<TestCase>& Tests() {
  static std::vector<TestCase> tests;
  return tests;
}

struct Register {
  Register(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

[[noreturn]] inline void Fail(const char* file, int line, const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: %s %s\n", file, line, what, detail.c_str());
  if (!Now().replay.empty()) std::fprintf(stderr, "again: %s\n", Now().replay.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

inline int RunTests(int argc, char** argv) {
  int ran = 0;
  for (const TestCase& test : Tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    std::fprintf(stderr, "[ RUN ] %s\n", test.name);
    StartTest(argv[0], test.name);
    test.run();
    ++ran;
  }
  std::fprintf(stderr, "[ OK  ] %d tests\n", ran);
  return ran == 0 ? 1 : 0;
}

}  // namespace tpu_sync_native::testing

#define TEST(name)                                                                        \
  static void Test_##name();                                                              \
  static const ::tpu_sync_native::testing::Register register_##name(#name, &Test_##name); \
  static void Test_##name()

#define CHECK(condition)                                                                         \
  do {                                                                                           \
    if (!(condition)) ::tpu_sync_native::testing::Fail(__FILE__, __LINE__, "CHECK", #condition); \
  } while (false)

#define CHECK_THROWS(expression, part)                                                                      \
  do {                                                                                                      \
    bool thrown = false;                                                                                    \
    try {                                                                                                   \
      expression;                                                                                           \
    } catch (const std::exception& error) {                                                                 \
      thrown = true;                                                                                        \
      if (std::string(error.what()).find(part) == std::string::npos) {                                      \
        ::tpu_sync_native::testing::Fail(__FILE__, __LINE__, "CHECK_THROWS: other message:", error.what()); \
      }                                                                                                     \
    }                                                                                                       \
    if (!thrown) ::tpu_sync_native::testing::Fail(__FILE__, __LINE__, "CHECK_THROWS: none", #expression);   \
  } while (false)

#define CHECK_MAIN() \
  int main(int argc, char** argv) { return ::tpu_sync_native::testing::RunTests(argc, argv); }
