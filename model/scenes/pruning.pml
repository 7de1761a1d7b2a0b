/* Pruning with two locks (R6): floors are per table, so what one lock's holder leaves behind may raise a floor that the other
 * lock's holder meets. A floor is below the oldest token of every live lease; a grant that has drawn its token and is not
 * committed yet has a lease that no other transaction sees. prune_horizon waits for it.
 */
#define KEYS 2
#include "../postgres.pml"
#include "../fence.pml"

byte sequence;
byte drawing[3];   /* the token of a grant under way */
byte lease[3];     /* the first token of a live lease; 0: none */

/* Each holder has a lock and a key of its own: me - 1. */
proctype Holder(byte me) {
  byte token;
  mtype outcome;
  LOCALS;
  atomic { sequence++; token = sequence; drawing[me] = token; printf("%c| acquire: nextval gives token %d\n", NAME, token) };
  atomic { lease[me] = token; drawing[me] = 0; printf("%c| COMMIT: has its lock\n", NAME) };
  outcome = undecided;
  insert(me - 1, token, 16 * me);
  if
  :: outcome == undecided ->
     d_step { printf("%c| COMMIT: there is a row\n", NAME); was_accepted(me - 1, token); end_transaction(true); hit = false }
  :: else ->
     assert(false)  /* its lease is live, and no other holder writes this key */
  fi;
  atomic { sequence++; token = sequence; printf("%c| mints token %d\n", NAME, token) };
  remove(me - 1, token);
  d_step { printf("%c| COMMIT: the row is deleted\n", NAME); was_accepted(me - 1, token); end_transaction(true) };
  atomic { lease[me] = 0; printf("%c| releases its lock\n", NAME) }
}

#define DRAWN(h, t) (drawing[h] == 0 || drawing[h] > t)

proctype Pruner() {
  byte horizon, cap, k;
end:
  do
  :: atomic { mark[0] + mark[1] > 0; horizon = sequence };
end_of_grants:
#ifndef NO_R6_HORIZON
     DRAWN(1, horizon) && DRAWN(2, horizon);
#endif
     d_step {
       cap = horizon;
       for (k : 1 .. 2) {
         if
         :: lease[k] && lease[k] <= cap -> cap = lease[k] - 1
         :: else
         fi
       }
       k = 0
     };
     if
     :: k = 0
     :: k = 1
     fi;
     if
     :: d_step {
          mark[k] != 0 && mark[k] <= cap && mark_owner[k] == 0 && !row[k].alive;
          floor = (mark[k] > floor -> mark[k] : floor);
          printf("-| pruning: the mark %d is forgotten, the floor is %d\n", mark[k], floor);
          mark[k] = 0
        }
     :: skip
     fi;
     cap = 0; horizon = 0; k = 0
  od
}

init {
  atomic { run Pruner(); run Holder(2); run Holder(1) }
}
