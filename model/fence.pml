/* The statements of a fenced write, as steps. docs/model.md has the table of which code each step stands for.
 *
 * -DEPOCH    the table's rule is epoch (R2), else strict (R1)
 * -DNO_Rn    takes a part of the rule out; docs/model.md lists them
 */
mtype = { undecided, accepted, stale, spent, missing, appeared, broken, no_token };

#define REFUSED (outcome == stale || outcome == spent)

#ifdef EPOCH
#define RULE(mark, t) (mark <= t)
#else
#define RULE(mark, t) (mark < t)
#endif

/* What the statements compare with. */
#if defined(NO_R1) || (defined(EPOCH) && !defined(NO_R2))
#define PASSES(mark, t) (mark <= t)
#define UPDATE_TEXT "%c| UPDATE … WHERE mark <= %d: "
#define DELETE_TEXT "%c| DELETE … WHERE mark <= %d: "
#else
#define PASSES(mark, t) (mark < t)
#define UPDATE_TEXT "%c| UPDATE … WHERE mark < %d: "
#define DELETE_TEXT "%c| DELETE … WHERE mark < %d: "
#endif

/* R4: the comparison is made again on the newest version. Without it: a SELECT compares, and the UPDATE only writes. */
#ifdef NO_R4
#define STILL_PASSES(mark, t) true
#undef UPDATE_TEXT
#define UPDATE_TEXT "%c| SELECT the mark, to compare it with %d: "
#else
#define STILL_PASSES(mark, t) PASSES(mark, t)
#endif

/* What the properties remember: the highest token that was accepted for a key, in the order of commits. It outlives rows. */
byte last[KEYS];

/* An operation with token t was committed: (R1, R2) its token is above every older one's. */
inline was_accepted(k, t) {
  assert(RULE(last[k], t));
  last[k] = t
}

/* The snapshot of a conditional statement. hit: it found a row that its WHERE lets pass. */
inline find(k, t) {
#if KEYS > 1
  printf("row %d, ", k + 1);
#endif
  look(k);
  if
  :: !hit -> printf("its snapshot has no row\n")
  :: hit && !PASSES(seen_mark, t) -> printf("its snapshot has mark %d\n", seen_mark)
  :: hit && PASSES(seen_mark, t) && OPEN(row_owner[k]) -> printf("its snapshot has mark %d\n", seen_mark)
  :: hit && PASSES(seen_mark, t) && !OPEN(row_owner[k]) ->
     printf("its snapshot has mark %d; waits for %c\n", seen_mark, 64 + row_owner[k])
  fi;
  hit = hit && PASSES(seen_mark, t);
  seen_mark = 0
}

/* Why a mark refuses a token (R3). */
#define WHY(mark, t) ((mark) > (t) -> stale : spent)

/* UPDATE … WHERE key = k AND mark < t. hit: it wrote. v = KEPT: it sets nothing but the mark. */
#define KEPT 255

inline update(k, t, v) {
  atomic {
    printf(UPDATE_TEXT, NAME, t);
    find(k, t)
  }
  if
  :: !hit
  :: else ->
     atomic {
       OPEN(row_owner[k]);
       take_row(k);
       hit = draft[k].alive && draft[k].life == life && STILL_PASSES(draft[k].mark, t);
       if
       :: hit ->
          printf("%c| … writes one row: its mark was %d, is %d\n", NAME, draft[k].mark, t);
          draft[k].mark = t;
          draft[k].value = (v == KEPT -> draft[k].value : v)
       :: else -> printf("%c| … no row: it is gone, or its mark refuses\n", NAME); leave_row(k)
       fi;
       life = 0; had = false
     }
  fi
}

/* The trigger's raise_mark: INSERT … ON CONFLICT DO UPDATE … WHERE accepts(mark, t). hit: raised. */
inline raise_mark(k, t) {
  atomic {
    OPEN(mark_owner[k]);
    if
    :: mark_owner[k] == me -> hit = PASSES(mark_draft[k], t)
    :: else -> hit = PASSES(mark[k], t)
    fi;
    if
    :: hit -> mark_owner[k] = me; mark_draft[k] = t; printf("%c| fencepost.marks: the mark is raised to %d\n", NAME, t)
    :: else -> outcome = WHY(mark[k], t); printf("%c| fencepost.marks: the mark %d refuses %d\n", NAME, mark[k], t)
    fi
  }
}

/* The floor, read after the mark was raised, in a statement of its own. */
inline read_floor(t) {
  atomic {
    hit = PASSES(floor, t);
    if
    :: hit
    :: else -> outcome = WHY(floor, t); printf("%c| the floor, %d, refuses %d\n", NAME, floor, t)
    fi
  }
}

/* INSERT: waits for the key's entry, makes the row, and then its AFTER trigger judges. outcome: undecided (go on), stale, spent, appeared. */
inline insert(k, t, v) {
#ifdef NO_R6
  /* INSERT … WHERE NOT EXISTS (a mark that refuses): read by the statement's snapshot, from before the wait. */
  atomic {
    hit = PASSES(mark[k], t);
    printf("%c| INSERT … WHERE NOT EXISTS (a mark >= %d): its snapshot has mark %d\n", NAME, t, mark[k])
  }
#else
  hit = true;
#endif
  if
  :: !hit -> outcome = WHY(mark[k], t)
  :: else ->
     atomic {
       OPEN(row_owner[k]);
       take_row(k);
       if
       :: draft[k].alive -> printf("%c| INSERT: there is a row\n", NAME); outcome = appeared; leave_row(k)
       :: else ->
          draft[k].alive = true; draft[k].life = draft[k].life + 1; draft[k].mark = t; draft[k].value = v;
          printf("%c| INSERT: the key is its own, the row has mark %d\n", NAME, t);
          outcome = undecided; had = false
       fi
     }
#ifndef NO_R6
     if
     :: outcome == undecided ->
        raise_mark(k, t);
        if
        :: hit -> read_floor(t)
        :: else
        fi
     :: else
     fi
#endif
  fi
}

/* DELETE … WHERE key = k AND mark < t; the AFTER trigger leaves the token as the key's mark. hit: it deleted. */
inline remove(k, t) {
  atomic {
    printf(DELETE_TEXT, NAME, t);
    find(k, t)
  }
  if
  :: !hit
  :: else ->
     atomic {
       OPEN(row_owner[k]);
       take_row(k);
       hit = draft[k].alive && draft[k].life == life && STILL_PASSES(draft[k].mark, t);
       if
       :: hit ->
          printf("%c| … deletes one row\n", NAME);
          draft[k].alive = false; draft[k].mark = 0; draft[k].value = 0
       :: else -> printf("%c| … no row: it is gone, or its mark refuses\n", NAME); leave_row(k)
       fi;
       life = 0; had = false
     }
#ifndef NO_R6_MARK
     if
     :: hit ->
        atomic {
          OPEN(mark_owner[k]);
          mark_owner[k] = me;
          mark_draft[k] = (mark[k] > t -> mark[k] : t);
          printf("%c| its token %d stays as the mark of the key\n", NAME, t)
        }
     :: else
     fi
#endif
  fi
}

/* R5: the next statement asks why no row was reached. outcome: undecided (it would pass now: again), stale, spent, missing. */
inline ask(k, t) {
  atomic {
    look(k);
    if
    :: hit ->
       outcome = (PASSES(seen_mark, t) -> undecided : WHY(seen_mark, t))
    :: else ->
       seen_mark = (mark[k] > floor -> mark[k] : floor);
       outcome = (PASSES(seen_mark, t) -> missing : WHY(seen_mark, t))
    fi;
    if
    :: outcome == undecided -> printf("%c| asks why: the row is there, its mark is %d: again\n", NAME, seen_mark)
    :: else -> printf("%c| asks why: %e\n", NAME, outcome)
    fi;
    hit = false; life = 0; seen_mark = 0
  }
}

/* A claim of a key without a row: raise its mark, read the floor, and look for a row in a later statement. */
inline claim_absent(k, t) {
  raise_mark(k, t);
  if
  :: hit ->
     read_floor(t);
     if
     :: hit ->
        atomic {
          look(k);
#ifdef NO_R7_LOOK
          hit = false;
#endif
          outcome = (hit -> appeared : accepted);
          hit = false; life = 0; seen_mark = 0
        }
     :: else
     fi
  :: else
  fi
}

/* R5's loop of a PATCH, each statement a transaction of its own. `finish(k, t, v)`, which each scene defines, commits. */
inline patch(k, t, v) {
  outcome = undecided;
  do
  :: outcome == undecided ->
     update(k, t, v);
     if
     :: hit -> hit = false; finish(k, t, v)
#if defined(NO_R5)
     :: else -> outcome = missing
#elif defined(NO_R5_STALE)
     :: else -> outcome = stale
#else
     :: else -> ask(k, t)
#endif
     fi
  :: else -> break
  od
}
