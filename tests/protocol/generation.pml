// May a reader without a lease take bytes of the next chunk for those of the one it looked up, while the slot is
// evicted, reserved, written and committed? (StateOf and ReadinessOf in src/index/index_reader.cc, Reserve and
// End in src/index/index_writer.cc)
//
// The reader asks before the copy and after it. The payload's bytes are plain loads: the model has them done in
// order before the second question, which the processor must see to.
//
// broken: BROKEN_GENERATION BROKEN_AFTER BROKEN_LOAD_ORDER
#define OLD 1
#define NEW 2

byte generation = 1;
byte payload[2] = OLD;
bool granted, written;

proctype Daemon() {
  // One evicts, the next reserves; a slot that was reserved may be aborted and reserved once more.
#ifndef BROKEN_GENERATION
  generation++;  // evict
  generation++;  // reserve, before the grant is answered
#endif
  granted = true;
  written;
#ifdef BROKEN_GENERATION
  generation++;  // at commit
#endif
}

proctype Engine() {
  granted;
  if :: payload[0] = NEW; payload[1] = NEW :: payload[1] = NEW; payload[0] = NEW fi;
  written = true
}

proctype Reader() {
  byte leased = 1, before, after, first, second;
  before = generation;
#ifdef BROKEN_LOAD_ORDER
  if
  :: after = generation; first = payload[0]; second = payload[1]
  :: first = payload[0]; second = payload[1]; after = generation
  fi;
#else
  if :: first = payload[0]; second = payload[1] :: second = payload[1]; first = payload[0] fi;
  after = generation;
#endif
  if
#ifdef BROKEN_AFTER
  :: before == leased ->
#else
  :: before == leased && after == leased ->
#endif
    assert(first == OLD && second == OLD)
  :: else -> skip
  fi
}

init { atomic { run Daemon(); run Engine(); run Reader() } }
