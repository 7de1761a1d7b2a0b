/* Stale is not spent (R3): a client that is answered `spent` mints another token and writes again; one that is answered `stale`
 * gives up. A's lease is over when B has come, and B writes at any moment. A's work must end.
 */
#include "../postgres.pml"
#include "../fence.pml"

byte ended;

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* A has written with token 2 already, and may mint 3. */
proctype Older(byte me) {
  byte token = 2;
  mtype outcome;
  LOCALS;
  do
  :: patch(0, token, 16 + token);
     printf("%c| is answered: %e\n", NAME, outcome);
     if
     :: outcome == accepted -> break
#ifdef NO_R3
     :: REFUSED -> outcome = undecided  /* "conflict": it repeats */
#else
     :: outcome == stale -> break
     :: outcome == spent -> token = 3; printf("%c| mints token 3\n", NAME)
#endif
     fi
  od;
  ended++
}

proctype Newer(byte me) {
  mtype outcome;
  LOCALS;
  patch(0, 4, 32);
  assert(outcome == accepted);
  ended++
}

init {
  atomic {
    row[0].alive = true; row[0].mark = 2; row[0].value = 1; last[0] = 2;
    run Older(1); run Newer(2)
  }
}

ltl ends { <> (ended == 2) }
