// The end of a segment in this host's memory: misses at once; its number is used again only after no cell of
// the catalog names it any more.
#pragma once

#include "storage/context.h"

namespace tpu_sync_native {

// Its namespace was cleared since it was begun.
bool Outdated(const StorageContext& context, const Segment& segment);
// Nothing of it is found from now on, and another copy of a chunk takes its cell.
void RetireSegment(StorageContext& context, const Segment& segment);
// Takes the cells of all retired segments and of those of earlier epochs away, in one pass over the catalog,
// and forgets the retired ones. Nothing to do costs a look at the table. One caller at a time.
void SweepRetired(StorageContext& context);
// Removes the files of a segment, index first, so that nobody finds a record of what is about to go. Files
// that are gone already are no error.
IoError RemoveSegmentFiles(StorageContext& context, const std::string& directory, uint64_t number);

}  // namespace tpu_sync_native
