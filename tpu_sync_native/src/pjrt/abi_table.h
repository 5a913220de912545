// What api.h says about the binary interface, as data, under the names of the published header.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tpu_sync_native::pjrt {

struct AbiField {
  const char* name;
  size_t offset;
  size_t bytes;
};

struct AbiStruct {
  const char* name;
  size_t struct_size;  // as it is said to the other side
  size_t bytes;        // in memory
  std::vector<AbiField> fields;
};

struct AbiTable {
  std::vector<AbiStruct> structs;
  std::vector<AbiField> slots;  // name and offset in the table of functions
  int raw_buffer_extension_type;
};

AbiTable DescribeAbi();

}  // namespace tpu_sync_native::pjrt
