// Is a wake-up lost, between two clients and the thread that serves both, with one of them killed at any step?
// (SendLocked and SleepUntil in src/client/ring_client.cc, LookLocked and Sleep in src/ring/ring_server.cc)
//
// Nobody's sleep ends by time here, so a lost wake-up is a client that waits for ever: an invalid end state. A
// sleeper of a futex sleeps only if the word still holds what it read. BROKEN_RUNG is the order that the code
// once had: docs/SHARED_MEMORY.md says what it cost.
//
// broken: BROKEN_SECOND_LOOK BROKEN_RUNG BROKEN_STORE_ORDER BROKEN_CLIENT_LOOK
#define CALLS 2
#define AWAKE 0
#define SLEEPING 2

byte tail[2], reply[2], rest[2] = SLEEPING, client_sleeping[2], client_futex[2], bell;

inline MayDie() {
  if
  :: me == 1 -> goto dead
  :: skip
  fi
}

proctype Client(byte me) {
  byte sent, seen, rung;
  do
  :: sent == CALLS -> break
  :: else ->
    sent++;
    MayDie();
#ifdef BROKEN_STORE_ORDER
    seen = rest[me];
    tail[me] = sent;
#else
    tail[me] = sent;
    MayDie();
    seen = rest[me];
#endif
    if
    :: seen != AWAKE -> rest[me] = AWAKE; MayDie(); bell++
    :: else -> skip
    fi;
    MayDie();
    client_sleeping[me] = 1;
    do
    :: rung = client_futex[me];
#ifdef BROKEN_CLIENT_LOOK
       client_futex[me] != rung
#else
       if
       :: reply[me] == sent -> break
       :: else -> skip
       fi;
       MayDie();
       client_futex[me] != rung
#endif
    od;
    client_sleeping[me] = 0
  od;
dead:
  skip
}

active proctype Server() {
  byte head[2], rung, i;
  bool news;
  do
  :: news = false;
    i = 0;
    do
    :: i < 2 ->
      rest[i] = AWAKE;
      if
      :: tail[i] != head[i] ->
        head[i]++;
        news = true;
        reply[i] = head[i];
        if :: client_sleeping[i] == 1 -> client_futex[i]++ :: else -> skip fi
      :: else -> skip
      fi;
      i++
    :: else -> break
    od;
    if
    :: news -> skip
    :: else ->
#ifndef BROKEN_RUNG
      rung = bell;
#endif
      rest[0] = SLEEPING;
      rest[1] = SLEEPING;
#ifdef BROKEN_RUNG
      rung = bell;
#endif
#ifndef BROKEN_SECOND_LOOK
      if
      :: tail[0] != head[0] -> goto again
      :: else -> skip
      fi;
      if
      :: tail[1] != head[1] -> goto again
      :: else -> skip
      fi;
#endif
end_asleep:
      bell != rung
    fi;
again:
    skip
  od
}

init { atomic { run Client(0); run Client(1) } }
