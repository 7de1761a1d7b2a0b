/* The order of locks (R20). Each transaction takes the locks that it needs, waits where another one has them, and frees all
 * of them when it ends. What it does under them is in the other scenes: here nobody may wait in a circle.
 */
#include "../postgres.pml"

mtype = { lock, key, scope_a, scope_b, row_a, row_b, mark_a, mark_b, floors };
#define PLACES 9

byte owner[PLACES + 1];   /* by the number of a name above, from 1 */
byte comparing;           /* transactions that have compared a token with the sequence */
byte raising;             /* the one that moves it */

inline take(place) {
  atomic { OPEN(owner[place]); owner[place] = me; printf("%c| has %e\n", NAME, place) }
}

inline leave_or_take(place) {
  atomic {
    if
    :: owner[place] == 0 -> owner[place] = me; printf("%c| has %e\n", NAME, place)
    :: else
    fi
  }
}

inline compare() {
  atomic { raising == 0; comparing++; printf("%c| compares its token with the sequence\n", NAME) }
}

inline raise() {
  atomic { raising == 0 && comparing == 0; raising = me; printf("%c| moves the sequence\n", NAME) }
}

inline end_all() {
  d_step {
    for (i : 1 .. PLACES) {
      if
      :: owner[i] == me -> owner[i] = 0
      :: else
      fi
    }
    i = 0;
    if
    :: compared -> comparing--
    :: else
    fi;
    compared = false;
    if
    :: raising == me -> raising = 0
    :: else
    fi;
    printf("%c| COMMIT\n", NAME)
  }
}

/* A grant, with claims of both rows. */
proctype Grant(byte me) {
  byte i;
  bool compared;
  take(lock); take(row_a); take(mark_a); take(row_b); take(mark_b);
  compare(); compared = true;
  end_all()
}

/* A write of both rows, of two scopes, with an Idempotency-Key. */
proctype Write(byte me) {
  byte i;
  bool compared;
  atomic {
    if
    :: owner[key] == 0 -> owner[key] = me; printf("%c| has %e\n", NAME, key)
    :: else -> printf("%c| is answered: in flight\n", NAME); goto done  /* tried, and not waited for */
    fi
  };
#ifdef NO_R20
  take(row_a); take(scope_a); take(scope_b); take(row_b);
#else
  take(scope_a); take(scope_b); take(row_a); take(row_b);
#endif
  compare(); compared = true;
  end_all();
done:
  skip
}

/* A write of one row, of a scope, without a key. */
proctype One(byte me) {
  byte i;
  bool compared;
  take(scope_a); take(row_a);
  compare(); compared = true;
  end_all()
}

/* An operator raises the generation: locks, the sequence, floors. */
proctype Raise(byte me) {
  byte i;
  bool compared;
  take(lock); raise(); take(floors);
  end_all()
}

/* Pruning: floors, then marks that no other transaction has. */
proctype Prune(byte me) {
  byte i;
  bool compared;
  compare(); compared = true;
  take(floors);
  leave_or_take(mark_a); leave_or_take(mark_b);
  end_all()
}

init {
  atomic {
    run Prune(5); run Raise(4); run Write(3); run One(2); run Grant(1)
  }
}
