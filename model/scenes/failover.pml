/* Which database this is (R19): an asynchronous standby is promoted and lacks acknowledged writes, and their marks. Until an
 * operator raises the generation nothing is written; then all older tokens are void.
 *
 * The promotion ends every connection: here it happens while no transaction is under way. The sequence comes back older, too,
 * and the generation moves it past everything.
 */
#ifndef WRITES
#define WRITES 2
#endif
#include "../postgres.pml"
#include "../fence.pml"

Version standby;
byte standby_sequence;
byte sequence = 1;
byte oldest;        /* the oldest token of the generation: older ones are void */
bool promoted;      /* the timeline of the server */
bool vouched;       /* the timeline that is stored as the newest generation's */

/* What a connection compares, when it is made and whenever it is lent. */
#ifdef NO_R19
#define MAY_WRITE true
#else
#define MAY_WRITE (promoted == vouched)
#endif

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT, acknowledged\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* The trigger: a token of an older generation is void, whatever the mark. */
inline write_once(t, v) {
  atomic {
    MAY_WRITE && row_owner[0] == 0;
    if
    :: t < oldest -> outcome = stale; printf("%c| token %d is void\n", NAME, t)
    :: else ->
       look(0);
       hit = hit && PASSES(seen_mark, t);
       outcome = undecided;
       if
       :: hit -> take_row(0); draft[0].mark = t; draft[0].value = v; had = false
       :: else -> outcome = WHY(seen_mark, t)
       fi;
       printf("%c| UPDATE … WHERE mark < %d: the mark is %d\n", NAME, t, seen_mark);
       hit = false; life = 0; seen_mark = 0
    fi
  };
  if
  :: outcome == undecided -> finish(0, t, v)
  :: else
  fi
}

proctype Holder(byte me) {
  byte token, n;
  mtype outcome;
  LOCALS;
  do
  :: n < WRITES ->
     n++;
     if
     :: atomic { MAY_WRITE && row_owner[0] == 0; sequence++; token = sequence; printf("%c| draws token %d\n", NAME, token) }
     :: token != 0
     fi;
     write_once(token, 16 * me + n);
     if
     :: outcome == accepted
     :: else -> break
     fi
  :: break
  od;
end:
  false
}

/* Replication follows at its own pace, then the primary dies. */
proctype Failover() {
end:
  do
  :: atomic {
       !promoted && (standby.mark != row[0].mark || standby_sequence != sequence);
       copy(standby, row[0]); standby_sequence = sequence;
       printf("-| the standby has all until here\n")
     }
  :: atomic {
       !promoted && row_owner[0] == 0;
       copy(row[0], standby); sequence = standby_sequence; promoted = true;
       printf("-| the primary dies, the standby is promoted: its mark is %d\n", row[0].mark);
     }
     break
  od;
#ifndef NO_R19
end_operator:
  atomic {
    row_owner[0] == 0;
    vouched = true;
#ifndef NO_R19_VOID
    sequence = 64; oldest = 65;
#endif
    printf("-| an operator raises the generation: the oldest token is %d\n", oldest)
  }
#endif
}

init {
  atomic {
    row[0].alive = true; row[0].mark = 1; last[0] = 1;
    copy(standby, row[0]); standby_sequence = 1;
    run Failover();
#ifdef THREE
    run Holder(3);
#endif
    run Holder(2); run Holder(1)
  }
}
