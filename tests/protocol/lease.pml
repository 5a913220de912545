// A read lease against eviction and the clear of a namespace, at one slot. Does a pinned slot keep its bytes, is a
// cleared chunk never found, and is its slot free with the last pin? (src/store/leases.cc, src/store/namespaces.cc,
// Unpin in src/store/store.cc)
//
// Calls of the daemon are one step each: they hold the store's mutex. A lookup reads the epoch, then the record.
//
// broken: BROKEN_PIN BROKEN_EPOCH BROKEN_UNPIN
byte pins, epoch = 1, owner = 1;
bool held = true;      // the slot holds the chunk
bool cleared, released, leased;

#ifdef BROKEN_EPOCH
#define READABLE (held)
#else
#define READABLE (held && owner == epoch)
#endif

proctype Reader() {
  atomic { if :: READABLE -> pins++; leased = true; assert(!cleared) :: else -> skip fi }
  if
  :: leased ->
    assert(held);  // the first byte
    assert(held);  // the last one
    atomic {
      pins--;
#ifndef BROKEN_UNPIN
      if :: pins == 0 && owner != epoch -> held = false :: else -> skip fi
#endif
    }
  :: else -> skip
  fi;
  released = true
}

proctype Evictor() {
#ifdef BROKEN_PIN
  if :: atomic { held -> held = false } :: skip fi
#else
  if :: atomic { held && pins == 0 -> held = false } :: skip fi
#endif
}

proctype Clear() {
  atomic { epoch++; cleared = true };
  // What nobody pins is reclaimed later, in steps; what is pinned goes with its last pin.
  atomic { if :: held && pins == 0 -> held = false :: else -> skip fi }
}

init {
  atomic { run Reader(); run Evictor(); run Clear() };
  _nr_pr == 1;
  assert(!held && pins == 0)
}
