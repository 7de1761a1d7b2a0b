/* The built-in source: one lock, the leases of its holders, the sequence. acquire.sql is what it stands for.
 *
 * The database's clock is a bit per lease: whether it is past the lease's end. The process Clock sets it at any moment,
 * and, as clocks step back, clears it again. A holder has at most one lease that is not over, under its own number.
 */
typedef Lease {
  bool granted;
  bool ended;     /* ended_at: released, or superseded by a newer grant */
  bool late;      /* the clock is past expires_at */
  byte first      /* lease_id: the first token drawn for it */
}

Lease lease[HOLDERS + 1];
byte lease_owner[HOLDERS + 1];
byte lock_lease;     /* fencepost.locks: the newest lease of the lock; 0: none */
byte lock_owner;
byte sequence;       /* nextval is never undone, whatever becomes of the transaction */
byte drawing[HOLDERS + 1];  /* the token that a grant under way has drawn: prune_horizon waits for it */
byte flushed;        /* what of the sequence survives a crash of the server */
byte highest;        /* for the properties: the highest token that was handed out */

#define LIVE(h) (lease[h].granted && !lease[h].ended && !lease[h].late)

#define DRAWN(h, t) (drawing[h] == 0 || drawing[h] > t)
#if HOLDERS > 2
#define ONE_HOLDER (LIVE(1) + LIVE(2) + LIVE(3) <= 1)
#define NO_GRANT_UP_TO(t) (DRAWN(1, t) && DRAWN(2, t) && DRAWN(3, t))
#else
#define ONE_HOLDER (LIVE(1) + LIVE(2) <= 1)
#define NO_GRANT_UP_TO(t) (DRAWN(1, t) && DRAWN(2, t))
#endif

/* A transaction that drew a token was committed. What it wrote (leases, draws) is flushed with it, and so is the sequence. */
inline handed_out(t) {
  assert(t > highest);
  highest = t;
#ifndef NO_R9_DRAWS
  flushed = sequence
#endif
}

inline draw(t) {
  atomic { sequence = sequence + 1; t = sequence; drawing[me] = t; printf("%c| nextval gives token %d\n", NAME, t) }
}

/* A grant: lock the lock's row, lock the lease's row, compare the clock in a later statement, draw, COMMIT. granted: it has it. */
inline acquire(t) {
#ifdef NO_R9
  draw(t);
#endif
  atomic {
    lock_owner == 0;
    lock_owner = me;
    before = lock_lease;
    printf("%c| acquire: locks the lock's row\n", NAME)
  }
  if
  :: before && !lease[before].ended -> atomic { lease_owner[before] == 0; lease_owner[before] = me }
  :: else
  fi;
  atomic {
    granted = !LIVE(before);
    if
    :: granted
    :: else -> printf("%c| acquire: %c has the lock\n", NAME, 64 + before)
    fi
  }
  if
  :: granted ->
#ifndef NO_R9
     draw(t);
#endif
     if
     :: d_step {
          printf("%c| COMMIT: has the lock, and token %d\n", NAME, t);
          handed_out(t);
          lock_lease = me;
#ifndef NO_R9_ENDED
          lease[before].ended = true;
#endif
          lease[me].granted = true; lease[me].ended = false; lease[me].late = false; lease[me].first = t;
          assert(ONE_HOLDER)
        }
#ifdef BREAKS
     :: granted = false; printf("%c| the connection breaks: rolled back\n", NAME)
#endif
     fi
  :: else
  fi;
  d_step {
    drawing[me] = 0; lock_owner = 0;
    if
    :: lease_owner[before] == me -> lease_owner[before] = 0
    :: else
    fi;
    before = 0
  }
}

/* A mint: lock the lease's row, compare the clock in the next statement, draw, COMMIT. granted: it has another token. */
inline mint(t) {
  atomic { lease_owner[me] == 0; lease_owner[me] = me }
  granted = LIVE(me);
  if
  :: granted ->
     draw(t);
     d_step { printf("%c| COMMIT: has minted token %d\n", NAME, t); handed_out(t); drawing[me] = 0 }
  :: else -> printf("%c| mints nothing: its lease is over\n", NAME)
  fi;
  lease_owner[me] = 0
}

inline release() {
  atomic { lease_owner[me] == 0; lease[me].ended = true; printf("%c| releases the lock\n", NAME) }
}

proctype Clock(byte h) {
end:
  do
  :: atomic {
       lease[h].granted && !lease[h].ended;
       lease[h].late = !lease[h].late;
       if
       :: lease[h].late -> printf("-| time passes: the lease of %c is over\n", 64 + h)
       :: else -> printf("-| the clock steps back: the lease of %c is not over\n", 64 + h)
       fi;
       assert(ONE_HOLDER)
     }
  od
}
