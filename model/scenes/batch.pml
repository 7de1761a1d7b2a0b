/* Group commit: a batch of two writes in one transaction, beside a write of another gateway. Which rows and tokens the two
 * have, and whether the second is one that PostgreSQL refuses (a bad value), is chosen at the start.
 *
 * A statement of a batch skips a row that another transaction has (SKIP LOCKED); such a write is decided alone. An error undoes
 * the batch, and each write is tried alone. Neither changes what the neighbour is answered.
 */
#define KEYS 2
#include "../postgres.pml"
#include "../fence.pml"

byte key[2], token[2];
bool bad;                 /* the second write has a value that PostgreSQL refuses */
bool landed[2];
mtype answer[2];
byte which;               /* the write that is decided alone */

/* An answer is true: accepted means committed; a refusal means that it was not, and that the rule refuses the token. */
inline answer_write(n, what) {
  answer[n] = what;
  printf("%c| write %d is answered: %e\n", NAME, n + 1, what);
  assert(what != accepted || landed[n]);
  assert((what != stale && what != spent) || (!landed[n] && !RULE(last[key[n]], token[n])))
}

inline finish(k, t, v) {
  d_step {
    printf("%c| COMMIT\n", NAME);
    was_accepted(k, t);
    end_transaction(true);
    outcome = accepted;
    if
    :: me == 1 -> landed[which] = true
    :: else
    fi
  }
}

#ifdef NO_R1_OWN
#define IS_OWN_WRITE(k, t) (row_owner[k] == me && draft[k].mark == t)
#else
#define IS_OWN_WRITE(k, t) false
#endif

/* UPDATE … WHERE mark < t AND EXISTS (SELECT … FOR UPDATE SKIP LOCKED): snapshot, lock and write without a wait in between. */
inline update_or_skip(n, v) {
  atomic {
    if
    :: !OPEN(row_owner[key[n]]) -> printf("%c| write %d: its row is held, left alone\n", NAME, n + 1)
    :: else ->
       take_row(key[n]);
       if
       :: PASSES(draft[key[n]].mark, token[n]) || IS_OWN_WRITE(key[n], token[n]) ->
          draft[key[n]].mark = token[n]; draft[key[n]].value = v;
          wrote[n] = accepted;
          printf("%c| write %d: one row, its mark is %d\n", NAME, n + 1, token[n])
       :: else ->
          wrote[n] = WHY(draft[key[n]].mark, token[n]);
          printf("%c| write %d: the mark %d refuses %d\n", NAME, n + 1, draft[key[n]].mark, token[n]);
          leave_row(key[n])
       fi;
       had = false
    fi;
#ifdef NO_R4_BATCH
    if
    :: wrote[n] == accepted -> answer[n] = accepted; printf("%c| write %d is answered: accepted\n", NAME, n + 1)
    :: else
    fi
#endif
  }
}

inline commit_batch() {
  d_step {
    printf("%c| COMMIT of the batch\n", NAME);
    if
    :: wrote[0] == accepted -> was_accepted(key[0], token[0]); landed[0] = true
    :: else
    fi;
    if
    :: wrote[1] == accepted -> was_accepted(key[1], token[1]); landed[1] = true
    :: else
    fi;
    end_transaction(true)
  }
}

proctype Batch(byte me) {
  mtype outcome, wrote[2];
  LOCALS;
  update_or_skip(0, 16);
  if
  :: bad ->
     d_step {
       printf("%c| write 2 has a bad value: the batch is undone\n", NAME);
       end_transaction(false);
       wrote[0] = 0
     };
     atomic { printf("%c| write 2 is answered: its error\n", NAME); answer[1] = broken }
  :: else -> update_or_skip(1, 17); commit_batch()
  fi;
  which = 0;
  do
  :: which < 2 && answer[which] == 0 && wrote[which] != 0 -> atomic { answer_write(which, wrote[which]) }
  :: which < 2 && answer[which] == 0 && wrote[which] == 0 ->
     patch(key[which], token[which], 16 + which);
     atomic { answer_write(which, outcome) }
  :: which < 2 && answer[which] != 0 ->
     assert(answer[which] != accepted || landed[which]);
     which++
  :: which == 2 -> break
  od
}

proctype Other(byte me) {
  mtype outcome;
  LOCALS;
  patch(0, 3, 32)
}

init {
  atomic {
    row[0].alive = true; row[1].alive = true;
    if
    :: key[1] = 0
    :: key[1] = 1
    fi;
    token[0] = 2;
    if
    :: token[1] = 2
    :: token[1] = 4
    :: token[0] = 4; token[1] = 2
    fi;
    if
    :: bad = true
    :: bad = false
    fi;
    printf("A| a batch: row 1 with token %d, row %d with token %d\n", token[0], key[1] + 1, token[1]);
    run Other(2); run Batch(1)
  }
}
