// An engine is two processes that copy under one write lease; each may die at any step, the connection that holds
// the lease may end before both. Is the slot given away only when neither can still write, and is it free at the
// end? (EndWrite, EndLate and EndQuarantines in src/store/sessions.cc)
//
// broken: BROKEN_GROUP BROKEN_TIMER BROKEN_END
mtype = { RESERVED, QUARANTINED, COMMITTED, FREE };

mtype state = RESERVED;
bool writing[2] = true;   // it may still write into the slot
bool gone[2];             // its end is proven
bool lost;                // the connection that holds the lease has ended, or the lease has expired

proctype Process(byte me) {
  do
  :: assert(state == RESERVED || state == QUARANTINED)  // writes a byte
  :: break
  od;
  atomic { writing[me] = false; gone[me] = true }
}

proctype Daemon() {
  do
  :: atomic { state == RESERVED && lost ->
#ifdef BROKEN_TIMER
      state = FREE
#else
      state = QUARANTINED
#endif
    }
#ifndef BROKEN_END
#ifdef BROKEN_GROUP
  :: atomic { state == QUARANTINED && gone[0] -> state = FREE }
#else
  :: atomic { state == QUARANTINED && gone[0] && gone[1] -> state = FREE }
#endif
#endif
  // A late word of the group, said only when all its copies have been reported.
#ifndef BROKEN_END
  :: atomic { state == QUARANTINED && !writing[0] && !writing[1] -> state = FREE }
#endif
  :: atomic { state == RESERVED && !writing[0] && !writing[1] -> state = COMMITTED }
  :: state == FREE || state == COMMITTED -> break
  od
}

proctype Connection() {
  if :: lost = true :: skip fi
}

init { atomic { run Process(0); run Process(1); run Daemon(); run Connection() } }
