// May a lookup accept words of two different chunks, while the writer replaces the record? (src/index/probe.h,
// src/index/index_writer.cc)
//
// Stores reach memory, and loads are done, in every order that the code's memory orders allow: a release store
// waits for all stores before it, no load passes an acquire load before it. Words are the number of the change
// that wrote them, so words of one change are equal.
//
// broken: BROKEN_STORE BROKEN_LOAD BROKEN_SECOND_LOOK BROKEN_ODD
#define WORDS 3
#define STORES 5   /* seq odd, words, seq even */
#define CHANGES 2  /* evict, then reserve for another chunk */

byte seq;
byte word[WORDS];

#ifdef BROKEN_STORE
#define RELEASED(i) ((i) == STORES - 1)
#else
#define RELEASED(i) ((i) > 0)
#endif

proctype Writer() {
  byte change = 1, i, j, left;
  bool done[STORES];
  bool may;
  do
  :: change > CHANGES -> break
  :: else ->
    i = 0;
    do :: i < STORES -> done[i] = false; i++ :: else -> break od;
#ifdef BROKEN_ODD
    done[0] = true; left = STORES - 1;
#else
    left = STORES;
#endif
    do
    :: left == 0 -> break
    :: left > 0 ->
      atomic {
        select(i : 0 .. 4);
        may = !done[i];
        j = 0;
        do
        :: j < i -> may = may && (done[j] || !RELEASED(i)); j++
        :: else -> break
        od;
        if
        :: may && i == 0 -> seq = 2 * change - 1
        :: may && i == STORES - 1 -> seq = 2 * change
        :: may && i > 0 && i < STORES - 1 -> word[i - 1] = change
        :: else -> skip
        fi;
        if :: may -> done[i] = true; left-- :: else -> skip fi
      }
    od;
    change++
  od
}

// Load 0 is the counter, 1 to WORDS are words, STORES - 1 is the second look.
#ifdef BROKEN_LOAD
#define ACQUIRED(i) ((i) == 0)
#else
#define ACQUIRED(i) ((i) < STORES - 1)
#endif

proctype Reader() {
  byte got[STORES];
  bool done[STORES];
  byte i, j, left = STORES;
  bool may;
  do
  :: left == 0 -> break
  :: left > 0 ->
    atomic {
      select(i : 0 .. 4);
      may = !done[i];
      j = 0;
      do
      :: j < i -> may = may && (done[j] || !ACQUIRED(j)); j++
      :: else -> break
      od;
      if
      :: may && (i == 0 || i == STORES - 1) -> got[i] = seq
      :: may && i > 0 && i < STORES - 1 -> got[i] = word[i - 1]
      :: else -> skip
      fi;
      if :: may -> done[i] = true; left-- :: else -> skip fi
    }
  od;
  if
#ifdef BROKEN_SECOND_LOOK
  :: got[0] % 2 == 0 ->
#else
  :: got[0] % 2 == 0 && got[0] == got[STORES - 1] ->
#endif
    assert(got[1] == got[2] && got[2] == got[3]);
    assert(got[1] * 2 == got[0])
  :: else -> skip
  fi
}

init { atomic { run Writer(); run Reader() } }
