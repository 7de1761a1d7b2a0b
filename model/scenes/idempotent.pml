/* Idempotency-Key (R16): the same request twice, while the lock changes hands. It is done at most once, and is not refused
 * if it was done.
 */
#include "../postgres.pml"
#include "../fence.pml"

byte key_owner;   /* the key's advisory lock */
bool recorded;    /* the record of the answer, as committed */
byte landed;

inline commit_request() {
  d_step {
    printf("%c| COMMIT, with the record\n", NAME);
    assert(!recorded);   /* the record's primary key */
    was_accepted(0, 2);
    end_transaction(true);
    landed++;
    assert(landed <= 1);
#ifndef NO_R16_RECORD
    recorded = true;
#endif
    key_owner = 0;
    outcome = accepted
  }
}

inline roll_back() {
  d_step { end_transaction(false); key_owner = 0 }
}

inline look_up(found) {
  atomic {
    found = recorded;
    if
    :: found -> printf("%c| looks the key up: answered before\n", NAME)
    :: else -> printf("%c| looks the key up: no record\n", NAME)
    fi
  }
}

proctype Request(byte me) {
  bool found;
  mtype outcome;
  LOCALS;
  look_up(found);
  if
  :: found -> outcome = accepted
  :: else ->
     atomic {
       if
       :: key_owner == 0 -> key_owner = me; printf("%c| has the key's lock\n", NAME)
       :: else -> outcome = broken; printf("%c| is answered: in flight\n", NAME)
       fi
     };
     if
     :: outcome == broken
     :: else ->
#ifndef NO_R16
        look_up(found);
#endif
        if
        :: found -> roll_back(); outcome = accepted
        :: else ->
           outcome = undecided;
           do
           :: outcome == undecided ->
              update(0, 2, 16 * me);
              if
              :: hit -> hit = false; break
              :: else -> ask(0, 2)
              fi
           :: else -> break
           od;
           if
           :: outcome == undecided -> commit_request()
           :: outcome == undecided -> roll_back(); outcome = broken; printf("%c| the connection breaks: rolled back\n", NAME)
           :: else -> roll_back()
           fi
        fi
     fi
  fi;
#ifdef NO_R16_RECORD
  if
  :: outcome == accepted -> recorded = true; printf("%c| records it, in a transaction of its own\n", NAME)
  :: else
  fi;
#endif
  atomic {
    printf("%c| is answered: %e\n", NAME, outcome);
    assert(!REFUSED || landed == 0);
    assert(outcome != accepted || landed == 1)
  }
}

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* The next holder. */
proctype Newer(byte me) {
  mtype outcome;
  LOCALS;
  patch(0, 3, 1)
}

init {
  atomic {
    row[0].alive = true;
#ifdef THREE
    run Request(4);
#endif
    run Newer(3); run Request(2); run Request(1)
  }
}
