/* Unknown is not no (R15): the connection breaks while the backend waits for a row. The gateway ends that backend, makes sure
 * that it is gone, and only then reads the mark; a mark below the token proves that nothing landed. A write happens once, and is
 * not refused if it has landed.
 */
#include "../postgres.pml"
#include "../fence.pml"

bool ended;       /* the gateway ends the backend */
bool gone;        /* the backend is gone */
byte landed;

inline finish(k, t, v) {
  d_step {
    printf("%c| COMMIT\n", NAME);
    was_accepted(k, t);
    end_transaction(true);
    if
    :: t == 2 -> landed++; assert(landed <= 1)
    :: else
    fi;
    outcome = accepted
  }
}

/* Another holder, with an older or a newer token, has the row for a while. */
proctype Other(byte me; byte token) {
  mtype outcome;
  LOCALS;
  update(0, token, token);
  if
  :: hit -> hit = false; finish(0, token, token)
  :: d_step { end_transaction(false) }
  fi
}

/* The backend of the connection that breaks. Its answer is lost. */
proctype Backend(byte me) {
  mtype outcome;
  LOCALS;
  { patch(0, 2, 2) } unless { ended };
  atomic { end_transaction(false); gone = true; printf("%c| the old backend is gone\n", NAME) }
}

proctype Gateway(byte me) {
  mtype outcome;
  LOCALS;
  printf("%c| the connection breaks: no answer\n", NAME);
#if !defined(NO_R15) && !defined(NO_R15_EPOCH)
  ended = true;
  gone;
#endif
  atomic {
    look(0);
    outcome = (!hit -> broken : (seen_mark < 2 -> undecided : broken));
    printf("%c| on a new connection: the mark is %d\n", NAME, seen_mark);
    hit = false; life = 0; seen_mark = 0
  }
  if
  :: outcome == undecided -> printf("%c| writes again\n", NAME); patch(0, 2, 2)
  :: else
  fi;
  atomic {
    /* broken: outcome-unknown, which is true of both. */
    printf("%c| answers: %e\n", NAME, outcome);
    assert(!REFUSED || landed == 0)
  }
}

init {
  atomic {
    row[0].alive = true;
    run Other(4, 3); run Gateway(3); run Other(2, 1); run Backend(1)
  }
}
