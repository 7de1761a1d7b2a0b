/* Direct SQL (R14): the table's triggers judge what no gateway has seen. A holder writes by psql, with SET LOCAL fencepost.token;
 * an ORM, which holds nothing, loads a row and writes all its columns back, the mark among them; the gateway writes beside them.
 */
#ifndef WRITES
#define WRITES 2
#endif
#include "../postgres.pml"
#include "../fence.pml"

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* The BEFORE trigger of an UPDATE, which stores the mark `stored`; `t` is the token of the setting, 0: none is set. It sees the
 * version that the statement has locked. token: 0 if there is none.
 */
inline judge(t, stored) {
  token = t;
#ifdef NO_R14_ECHO
  if
  :: token == 0 -> token = stored
  :: else
  fi;
#else
  if
  :: token == 0 && stored != draft[0].mark -> token = stored
  :: else
  fi;
#endif
  if
  :: token == 0 -> outcome = no_token
  :: token != 0 && PASSES(draft[0].mark, token) -> outcome = undecided
  :: else -> outcome = WHY(draft[0].mark, token)
  fi
}

/* UPDATE … SET value = v, last_fence_token = stored WHERE key: a transaction of its own. `seen`: what its writer has read. */
inline direct_update(t, stored, v) {
  atomic {
    row_owner[0] == 0;
    take_row(0);
#ifdef NO_R14
    outcome = undecided; token = 0;
#else
    judge(t, stored);
#endif
    if
    :: t == 0 -> printf("%c| UPDATE … SET value, last_fence_token = %d: ", NAME, stored)
    :: else -> printf("%c| SET LOCAL fencepost.token = %d; UPDATE … SET value: ", NAME, t)
    fi;
    printf("the mark was %d\n", draft[0].mark);
    if
    :: outcome == undecided ->
       draft[0].value = v;
       draft[0].mark = (token > draft[0].mark -> token : draft[0].mark);
       printf("%c| COMMIT\n", NAME);
       /* What is written over is what its writer has read. */
       assert(row[0].value == seen);
#ifndef NO_R14
       was_accepted(0, token);
#endif
       had = false; end_transaction(true); outcome = accepted
    :: else -> printf("%c| is refused: %e\n", NAME, outcome); had = false; end_transaction(false)
    fi;
    token = 0
  }
}

#ifdef EPOCH
#define TOKEN(claim, n) (claim)
#else
#define TOKEN(claim, n) (claim + n)
#endif

/* A holder by psql: claims with token 1, reads, writes with 1 or 2. Its lease may be over by then. */
proctype Psql(byte me) {
  byte seen, token;
  mtype outcome;
  LOCALS;
  atomic {
    row_owner[0] == 0;
    if
    :: PASSES(row[0].mark, 1) ->
       row[0].mark = 1; last[0] = 1; seen = row[0].value;
       printf("%c| claims with token 1, and reads\n", NAME)
    :: else -> seen = KEPT; printf("%c| its claim is refused\n", NAME)
    fi
  };
  if
  :: seen != KEPT -> direct_update(TOKEN(1, 1), row[0].mark, 16 * me)
  :: else
  fi
}

/* An ORM that holds nothing. */
proctype Orm(byte me) {
  byte seen, stored, token;
  mtype outcome;
  LOCALS;
  atomic { seen = row[0].value; stored = row[0].mark; printf("%c| loads the row: its mark is %d\n", NAME, stored) };
  direct_update(0, stored, 16 * me)
}

/* A younger holder, through the gateway: it writes with 3, or with 3 and 4. */
proctype Holder(byte me) {
  byte n;
  mtype outcome;
  LOCALS;
  do
  :: n < WRITES ->
     patch(0, TOKEN(3, n), 16 * me + n);
     n++;
     if
     :: outcome == accepted
     :: else -> break
     fi
  :: else -> break
  od
}

init {
  atomic {
    row[0].alive = true; row[0].value = 1;
    run Orm(3); run Holder(2); run Psql(1)
  }
}
