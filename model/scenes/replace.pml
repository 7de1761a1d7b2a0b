/* Zero rows is a question (R5): a row is deleted and made anew in one transaction while a PATCH waits for it; another holder
 * deletes it, perhaps. What the PATCH is answered must be true, and its loop must end.
 */
#ifndef REPLACING
#define REPLACING 2
#endif
#include "../postgres.pml"
#include "../fence.pml"

bool was_absent;   /* since B began, there was a committed state without the row */
byte ended;

inline finish(k, t, v) {
  d_step {
    printf("%c| COMMIT\n", NAME);
    was_accepted(k, t);
    end_transaction(true);
    was_absent = was_absent || !row[0].alive;
    outcome = accepted
  }
}

/* Direct SQL: DELETE and INSERT in one transaction, each with a token. */
proctype Replacing(byte me) {
  byte n;
  mtype outcome;
  LOCALS;
  do
  :: n < REPLACING ->
     n++;
     remove(0, 2 * n);
     if
     :: hit ->
        insert(0, 2 * n + 1, n);
        assert(outcome == undecided || last[0] > 2 * n);
        if
        :: outcome == undecided -> hit = false; finish(0, 2 * n + 1, n)
        :: else -> end_transaction(false)
        fi
     :: else
     fi
  :: else -> break
  od;
  ended++
}

proctype Patching(byte me) {
  mtype outcome;
  LOCALS;
  was_absent = !row[0].alive;
  patch(0, 20, 20);
  atomic {
    printf("%c| is answered: %e\n", NAME, outcome);
    assert(outcome != missing || was_absent);
    assert(!REFUSED || !RULE(last[0], 20));
    ended++
  }
}

proctype Deleting(byte me) {
  mtype outcome;
  LOCALS;
  if
  :: skip
  :: remove(0, 30);
     if
     :: hit -> hit = false; finish(0, 30, 0)
     :: else
     fi
  fi;
  ended++
}

init {
  atomic {
    row[0].alive = true; row[0].mark = 1; row[0].value = 1; last[0] = 1;
    run Deleting(3); run Patching(2); run Replacing(1)
  }
}

#ifdef LIVENESS
ltl ends { <> (ended == 3) }
#endif
