/* Multi-row writes are all or nothing (R10): two PATCHes of all rows, one write of a single row. No two wait in a circle.
 */
#define KEYS 2
#ifdef NO_R10_ORDER
#define BACKWARDS true
#else
#define BACKWARDS false
#endif
#include "../postgres.pml"
#include "../fence.pml"

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* Lock a row that the snapshot matched, if it still matches when it is ours. A row that is gone is not met. */
inline lock_row(k) {
  atomic {
    OPEN(row_owner[k]);
    if
    :: row[k].alive -> take_row(k); had = false; printf("%c| locks row %d, whose mark is %d\n", NAME, k + 1, draft[k].mark)
    :: else
    fi
  }
}

#define MET(k) (row_owner[k] == me)
#define LETS_PASS(k, t) (!MET(k) || PASSES(draft[k].mark, t))

inline write_row(k, t, v) {
  if
  :: MET(k) -> draft[k].mark = t; draft[k].value = v
  :: else
  fi
}

/* UPDATE of all rows by a filter that all match. backwards: it takes them in another order than that of their keys. */
proctype Many(byte me; byte t; bool backwards) {
  byte first, second = 1;
  mtype outcome;
  LOCALS;
  if
  :: backwards -> first = 1; second = 0
  :: else
  fi;
#ifdef NO_R10
  /* UPDATE … WHERE mark < t: a row that refuses is one that does not match. */
  update(first, t, 16 * me);
  hit = false;
  update(second, t, 16 * me);
  hit = false;
#else
  lock_row(first);
  lock_row(second);
  d_step {
    if
    :: LETS_PASS(0, t) && LETS_PASS(1, t) ->
       write_row(0, t, 16 * me); write_row(1, t, 16 * me);
       printf("%c| no mark refuses %d: writes them\n", NAME, t)
    :: else -> outcome = stale; printf("%c| a mark refuses %d: writes nothing\n", NAME, t)
    fi
  };
#endif
  if
  :: outcome == stale ->
     d_step { assert(!RULE(last[0], t) || !RULE(last[1], t)); end_transaction(false) }
  :: else ->
     d_step {
       printf("%c| COMMIT: %d of 2 rows\n", NAME, MET(0) + MET(1));
       /* All rows that are there are written. */
       assert(MET(0) || !row[0].alive);
       assert(MET(1) || !row[1].alive);
       if
       :: MET(0) -> was_accepted(0, t)
       :: else
       fi;
       if
       :: MET(1) -> was_accepted(1, t)
       :: else
       fi;
       end_transaction(true);
       outcome = accepted
     }
  fi
}

/* Another holder's write of one row, or its DELETE, or nothing. */
proctype Single(byte me; byte t) {
  byte k;
  mtype outcome;
  LOCALS;
  if
  :: k = 0
  :: k = 1
  fi;
  if
  :: skip
  :: update(k, t, 16 * me)
  :: remove(k, t)
  fi;
  if
  :: hit -> hit = false; finish(k, t, 16 * me)
  :: else
  fi
}

init {
  atomic {
    row[0].alive = true; row[1].alive = true;
    run Single(3, 3);
    run Many(2, 4, BACKWARDS); run Many(1, 2, false)
  }
}
