// Two engines reserve one key; each commits, aborts or dies, at any step. Does the key have one slot at most, is
// what is readable whole, and is the key free or readable at the end? (Reserve, Commit and Abort in
// src/store/writes.cc, CloseSession and EndWrite in src/store/sessions.cc)
//
// A call of the daemon is one step: it holds the store's mutex. A connection may end while its process still
// copies; only the end of the process is proof.
//
// broken: BROKEN_PENDING BROKEN_DEATH BROKEN_PROOF
#define NONE 9
mtype = { FREE, RESERVED, COMMITTED, QUARANTINED };

mtype state[2] = FREE;
byte holder[2] = NONE;   // whose write lease the slot is under
byte bytes0[2] = NONE, bytes1[2] = NONE;  // who wrote the two halves of the slot
bool gone[2];            // the process has ended
bool connected[2] = true;
byte finished;

inline Reserve(me, slot) {
  atomic {
    slot = NONE;
    if
#ifdef BROKEN_PENDING
    :: state[0] == COMMITTED || state[1] == COMMITTED -> skip
#else
    :: state[0] == RESERVED || state[1] == RESERVED || state[0] == COMMITTED || state[1] == COMMITTED -> skip
#endif
    :: else ->
      if
      :: state[0] == FREE -> slot = 0
      :: state[1] == FREE -> slot = 1
      :: else -> skip
      fi;
      if :: slot != NONE -> state[slot] = RESERVED; holder[slot] = me :: else -> skip fi
    fi
  }
}

proctype Engine(byte me) {
  byte slot = NONE;
  Reserve(me, slot);
  if
  :: slot == NONE -> skip
  :: else ->
    if
    :: goto leave  // dies before the first byte
    :: skip
    fi;
    assert(holder[slot] == me);
    bytes0[slot] = me;
    if :: connected[me] = false :: skip fi;  // the session is lost, the copy goes on
    if :: goto leave :: skip fi;
    assert(holder[slot] == me);
    bytes1[slot] = me;
    atomic {
      if
      :: connected[me] && state[slot] == RESERVED && holder[slot] == me ->
        if
        :: assert(bytes0[slot] == me && bytes1[slot] == me); state[slot] = COMMITTED; holder[slot] = NONE
        :: state[slot] = FREE; holder[slot] = NONE
        fi
      :: else -> skip
      fi
    }
  fi;
leave:
  atomic { gone[me] = true; connected[me] = false; finished++ }
}

// The daemon's watch: ends of connections, ends of processes.
proctype Watch() {
  byte i;
  do
  :: atomic { state[0] == RESERVED && !connected[holder[0]] -> i = 0; goto ended }
  :: atomic { state[1] == RESERVED && !connected[holder[1]] -> i = 1; goto ended }
  :: atomic { state[0] == QUARANTINED && gone[holder[0]] -> state[0] = FREE; holder[0] = NONE }
  :: atomic { state[1] == QUARANTINED && gone[holder[1]] -> state[1] = FREE; holder[1] = NONE }
  :: atomic {
      finished == 2 && (state[0] == FREE || state[0] == COMMITTED) &&
          (state[1] == FREE || state[1] == COMMITTED) -> break
    }
  :: false ->
ended:
    atomic {
#ifdef BROKEN_DEATH
      if :: finished == 2 -> break :: else -> skip fi
#else
      if
      :: state[i] != RESERVED || connected[holder[i]] -> skip
#ifdef BROKEN_PROOF
      :: else -> state[i] = FREE; holder[i] = NONE
#else
      :: else -> state[i] = QUARANTINED
#endif
      fi
#endif
    }
  od;
  assert(state[0] != RESERVED && state[1] != RESERVED)
}

active proctype OneSlot() {
  do
  :: atomic {
      (state[0] == RESERVED || state[0] == COMMITTED) && (state[1] == RESERVED || state[1] == COMMITTED) ->
      assert(false)
    }
  :: atomic { finished == 2 -> break }
  od
}

init { atomic { run Engine(0); run Engine(1); run Watch() } }
