/* A scope is one mark for many rows (R8). Each writer raises the scope's mark, reads both rows, and writes one of them with
 * what it made of both. What it has read must be what is there when it commits.
 */
#define KEYS 2
#ifndef WRITERS
#define WRITERS 3
#endif
#include "../postgres.pml"
#include "../fence.pml"

byte answered;

inline read_both() {
  atomic { first = CONTENT(0); second = CONTENT(1); printf("%c| reads both rows: versions %d and %d\n", NAME, first, second) }
}

/* mark[0] is the scope's. Its token is its number; the older ones may come late. */
proctype Writer(byte me) {
  byte first, second, k;
  mtype outcome;
  LOCALS;
#ifdef NO_R8
  read_both();  /* one statement: its snapshot is from before it waits for the mark */
  raise_mark(0, me);
#else
  raise_mark(0, me);
  if
  :: hit -> read_both()
  :: else
  fi;
#endif
  if
  :: hit ->
     if
     :: k = 0
     :: k = 1
     fi;
     atomic {
       OPEN(row_owner[k]);
       take_row(k);
       draft[k].value = 16 * me;
       printf("%c| writes row %d\n", NAME, k + 1)
     };
     if
     :: d_step {
          printf("%c| COMMIT\n", NAME);
          assert(CONTENT(0) == first && CONTENT(1) == second);
          was_accepted(0, me);
          end_transaction(true)
        }
     :: d_step { printf("%c| the connection breaks: rolled back\n", NAME); end_transaction(false) }
     fi
  :: else -> assert(!RULE(last[0], me))
  fi;
  answered++
}

init {
  atomic {
    row[0].alive = true; row[0].value = 1; row[1].alive = true; row[1].value = 1;
#if WRITERS > 3
    run Writer(4);
#endif
    run Writer(3); run Writer(2); run Writer(1)
  }
}
