/* The part of PostgreSQL that the rules stand on: rows, marks, locks, transactions in READ COMMITTED.
 *
 * Which step is atomic, and why that is faithful
 *
 *   snapshot   A statement begins by reading what it will see of the newest committed versions: one step. In PostgreSQL too
 *              a snapshot is one moment. What the own transaction has written is seen as well.
 *   lock       A statement that found a row waits until no other transaction in progress has it, takes it, compares the WHERE
 *              with the newest version, and writes: one step. PostgreSQL does this under the row's lock (EvalPlanQual).
 *              A row that was deleted meanwhile is not found again, even where one of the same key is there by now: `life`
 *              distinguishes the rows of one key. A row that fails the second comparison is not locked.
 *   unique     An INSERT waits until no other transaction in progress has the key's entry in the unique index. Entry and row
 *              have one owner here. PostgreSQL lets an INSERT see at once a row that is locked and not written; here it waits
 *              a little longer, and then sees the same duplicate.
 *   ON CONFLICT DO UPDATE (marks)   waits for the mark's row, judges its newest version whatever the snapshot has: one step.
 *   COMMIT     All that a transaction wrote becomes the newest version and all its locks are free: one step. Every snapshot
 *              has all of it or nothing.
 *   trigger    Each statement of a PL/pgSQL function takes a snapshot of its own: each is a step of its own here.
 *
 * Between any two steps any other process may take any number of steps: that is what a pause is. A process that takes no
 * more steps has crashed. There is no time limit, no deadlock detector and no serialization failure: who waits in a circle
 * is an error of the model. Memory of one process, networks and disks are not modelled; an acknowledged COMMIT is durable
 * (failover.pml is about one that is not).
 *
 * A transaction has the number of its process, `me`. A process that includes this file has these local variables.
 */
#ifndef KEYS
#define KEYS 1
#endif

typedef Version {
  bool alive;   /* there is a row */
  byte life;    /* which row of this key: a row that was deleted and made anew is another one */
  byte mark;    /* last_fence_token */
  byte value    /* who wrote it: each write of a model has a number of its own */
}

Version row[KEYS];       /* the newest committed version */
Version draft[KEYS];     /* what the owner has made of it, not committed yet */
byte row_owner[KEYS];    /* the transaction that has the row, or its key's entry in the index; 0: none */

byte mark[KEYS];         /* fencepost.marks: the mark of a key without a row, or of a scope; 0: none */
byte mark_draft[KEYS];
byte mark_owner[KEYS];
byte floor;              /* fencepost.floors */

#define LOCALS byte i, life, seen_mark; bool hit, had
#define OPEN(owner) (owner == 0 || owner == me)
#define CONTENT(k) (row[k].alive -> row[k].value : 0)
#define NAME (64 + me)

inline copy(to, from) {
  to.alive = from.alive; to.life = from.life; to.mark = from.mark; to.value = from.value
}

inline wipe(it) {
  it.alive = false; it.life = 0; it.mark = 0; it.value = 0
}

/* What a statement's snapshot has of a row: hit, life, seen_mark. */
inline look(k) {
  if
  :: row_owner[k] == me -> hit = draft[k].alive; life = draft[k].life; seen_mark = draft[k].mark
  :: else -> hit = row[k].alive; life = row[k].life; seen_mark = row[k].mark
  fi
}

/* Take a row that no other transaction has; draft is its newest version from then on. */
inline take_row(k) {
  had = (row_owner[k] == me);
  if
  :: had
  :: else -> row_owner[k] = me; copy(draft[k], row[k])
  fi
}

inline leave_row(k) {
  if
  :: had
  :: else -> row_owner[k] = 0; wipe(draft[k])
  fi;
  had = false
}

inline end_transaction(commits) {
  for (i : 0 .. KEYS - 1) {
    if
    :: row_owner[i] == me ->
       if
       :: commits -> copy(row[i], draft[i])
       :: else
       fi;
       wipe(draft[i]); row_owner[i] = 0
    :: else
    fi;
    if
    :: mark_owner[i] == me ->
       if
       :: commits -> mark[i] = mark_draft[i]
       :: else
       fi;
       mark_draft[i] = 0; mark_owner[i] = 0
    :: else
    fi
  }
  i = 0; life = 0; seen_mark = 0; had = false
}
