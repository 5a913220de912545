// What may be done to a payload before it is written: nothing, or lz4, with or without a byte shuffle before
// it (per namespace). docs/formats/segment.md draws what comes out.
#pragma once

#include <cstdint>
#include <string>

#include "segment/layout.h"

namespace tpu_sync_native {

// "" when this codec can be used in this process, else why not (liblz4 is loaded when first asked for).
std::string CodecUnavailable(Codec codec);
// Encodes bytes of `source` into `target` (room for `bytes`). Returns the encoded size; 0 when it would be
// more than 15/16 of it, or cannot be done here: then the record is stored raw. It gives up early on what
// does not shrink.
uint64_t EncodePayload(Codec codec, const uint8_t* source, uint64_t bytes, uint8_t* target);
// False when `source` does not decode to exactly `bytes` bytes. Never reads or writes beyond either.
bool DecodePayload(Codec codec, const uint8_t* source, uint64_t source_bytes, uint8_t* target,
                   uint64_t bytes);

}  // namespace tpu_sync_native
