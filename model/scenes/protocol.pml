/* The whole protocol on one resource: holders take the lock, claim, mint, write with PATCH, PUT or DELETE, pause, crash;
 * the clock moves both ways, connections break before COMMIT, marks are pruned.
 *
 * -DHOLDERS=n -DWRITES=n   how many holders (2 or 3), and how many writes each makes
 */
#ifndef HOLDERS
#define HOLDERS 2
#endif
#ifndef WRITES
#define WRITES 2
#endif
#include "../postgres.pml"
#include "../fence.pml"
#include "../leases.pml"

/* The end of an operation that wrote: COMMIT and an answer of success; or the connection breaks before COMMIT. `believed` is
 * the version of the row that this holder has seen last: an accepted write overwrites that, and nothing else. */
inline finish(k, t, v) {
#ifdef NO_R4_ANSWER
  printf("%c| is answered: written\n", NAME);
#endif
  if
  :: d_step {
       printf("%c| COMMIT\n", NAME);
       assert(v == KEPT || CONTENT(k) == believed);
       was_accepted(k, t);
       end_transaction(true);
       believed = (v == KEPT -> believed : v);
       outcome = accepted
     }
  :: d_step {
       printf("%c| the connection breaks: rolled back\n", NAME);
#ifdef NO_R4_ANSWER
       assert(false);  /* the answer followed no commit */
#endif
       end_transaction(false);
       outcome = broken
     }
  fi
}

/* The end of an operation that was refused. A refusal is just: the rule (R1, R2) refuses the token by what was accepted, and
 * will go on to; or the floor refuses it, and then its lease is over. */
inline roll_back(t) {
  d_step {
    printf("%c| is answered: %e\n", NAME, outcome);
    assert(!REFUSED || !RULE(last[0], t) || lock_lease != me || lease[me].ended);
    end_transaction(false)
  }
}

/* R7: the claim's answer is the row as the claiming statement left it. */
inline claim(t) {
  outcome = undecided;
  do
  :: outcome == undecided ->
#ifdef NO_R7_BESIDE
     atomic { believed = CONTENT(0); printf("%c| in the statement's snapshot the row is as it was\n", NAME) }
     update(0, t, KEPT);
#else
     update(0, t, KEPT);
     if
     :: hit -> believed = draft[0].value
     :: else
     fi;
#endif
     if
     :: hit -> hit = false; finish(0, t, KEPT)
     :: else ->
        ask(0, t);
        if
        :: outcome == missing ->
           claim_absent(0, t);
           hit = false;
           if
           :: outcome == accepted -> believed = 0; finish(0, t, KEPT)
           :: outcome == appeared -> roll_back(t); outcome = undecided
           :: else -> roll_back(t)
           fi
        :: REFUSED -> roll_back(t)
        :: else
        fi
     fi
  :: else -> break
  od
}

/* PATCH, PUT and DELETE: R5's loop. v: the new version, 0 for DELETE. creates: it is a PUT. */
inline write(t, v, creates) {
  outcome = undecided;
  do
  :: outcome == undecided ->
     if
     :: v == 0 -> remove(0, t)
     :: else -> update(0, t, v)
     fi;
     if
     :: hit -> hit = false; finish(0, t, v)
     :: else ->
        ask(0, t);
        if
        :: outcome == missing && creates ->
           insert(0, t, v);
           hit = false;
           if
           :: outcome == undecided -> finish(0, t, v)
           :: outcome == appeared -> roll_back(t); outcome = undecided
           :: else -> roll_back(t)
           fi
        :: outcome == undecided
        :: else -> roll_back(t)
        fi
     fi
  :: else -> break
  od
}

/* R13: a write without a token. */
inline write_without_token(v) {
#ifdef NO_R13
  atomic {
    OPEN(row_owner[0]) && row[0].alive;
    take_row(0);
    draft[0].value = v;
    printf("%c| UPDATE … without a token: one row\n", NAME)
  };
  finish(0, 0, v)
#else
  outcome = no_token
#endif
}

proctype Holder(byte me) {
  byte token, before, believed, n, version;
  bool granted, creates;
  mtype outcome;
  LOCALS;
  do
  :: granted -> break
  :: else -> !LIVE(lock_lease); acquire(token)
  od;
  granted = false;
#ifdef NO_R7
  atomic { outcome = accepted; believed = CONTENT(0); printf("%c| reads the row\n", NAME) }
#else
  claim(token);
#endif
  do
  :: outcome == accepted && n < WRITES ->
     n++;
#ifndef EPOCH
     if
     :: mint(token)
     :: printf("%c| mints no token\n", NAME); granted = true  /* its own mistake: the next write is refused as spent */
     fi;
     if
     :: !granted -> break
     :: else -> granted = false
     fi;
#endif
     if
     :: version = me * 16 + n
     :: version = me * 16 + n; creates = true
     :: version = 0
     :: token = 0; version = me * 16 + n
     fi;
     if
     :: token -> write(token, version, creates)
     :: else -> write_without_token(version)
     fi;
     version = 0; creates = false
  :: outcome == accepted -> release(); break
  :: break  /* it crashes, or gives up: its lease stays until the clock is past its end */
  od;
  atomic { token = 0; believed = 0; n = 0; granted = false; outcome = 0; hit = false }
}

/* Pruning (R6): the mark of a key without a row goes once the floor refuses what it would have refused. pruning.pml has the
 * same for two locks. */
proctype Pruner() {
  byte horizon, cap, h;
end:
  mark[0] != 0 && mark_owner[0] == 0 && !row[0].alive;
  horizon = sequence;
end_of_grants:
  NO_GRANT_UP_TO(horizon);
  d_step {
    cap = horizon;
    for (h : 1 .. HOLDERS) {
      if
      :: lease[h].granted && !lease[h].ended && lease[h].first <= cap -> cap = lease[h].first - 1
      :: else
      fi
    }
    h = 0
  };
end_skipped:
  atomic {
    /* A mark that another transaction has is skipped. */
    mark[0] != 0 && mark[0] <= cap && mark_owner[0] == 0 && !row[0].alive;
#ifndef NO_R6_FLOOR
    floor = (mark[0] > floor -> mark[0] : floor);
#endif
    printf("-| pruning: the mark of the key is forgotten, the floor is %d\n", floor);
    mark[0] = 0
  }
}

init {
  atomic {
    row[0].alive = true;
    run Pruner();
#if HOLDERS > 2
    run Clock(3); run Holder(3);
#endif
    run Clock(2); run Clock(1);
    run Holder(2); run Holder(1)
  }
}
