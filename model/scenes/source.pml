/* The numbers of a lock service (R12). It may come back from an older copy: then it counts from there again, and knows of no
 * holder. A gateway notices that by the numbers which are recorded, and an operator raises the generation. A stranger makes a
 * number up. Who is refused learns who came after (R18).
 *
 * A token is generation * GENERATION + the service's number.
 */
#ifndef TRIES
#define TRIES 2
#endif
#define GENERATION 16
#define MADE_UP (GENERATION - 1)
#include "../postgres.pml"
#include "../fence.pml"

/* The service. */
byte number;        /* the last one that it has handed out */
byte holder;
byte copies;        /* from how many copies it has come back */

/* What is recorded of it. */
byte generation;
byte issued;        /* the highest token */
bool quarantined;

byte recorded;      /* the last token that was handed out */

/* What the properties remember. */
byte vouched;       /* `copies` when the generation was raised: what the operator has looked at */

inline finish(k, t, v) {
  d_step { printf("%c| COMMIT\n", NAME); was_accepted(k, t); end_transaction(true); outcome = accepted }
}

/* The bounds stand in the triggers, and in the statements' own functions: one step with the UPDATE. */
inline write_once(t, v) {
  atomic {
    row_owner[0] == 0;
    outcome = undecided;
    if
#ifndef NO_R12
    :: t > issued -> outcome = broken; printf("%c| token %d was never issued\n", NAME, t)
#endif
    :: t < GENERATION * generation -> outcome = stale; printf("%c| token %d is void\n", NAME, t)
    :: else ->
       look(0);
       if
       :: PASSES(seen_mark, t) -> take_row(0); draft[0].mark = t; draft[0].value = v; had = false
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

inline read_state() {
  atomic {
    known = generation; before = issued;
    printf("%c| reads what is known: generation %d, tokens up to %d are issued\n", NAME, known, before)
  }
}

/* source_grant: judge the number, and record the grant. token: 0 if it comes to nothing. */
inline record() {
  atomic {
    token = GENERATION * known + n;
    if
    :: quarantined || known != generation -> token = 0; printf("%c| its grant is void\n", NAME)
#ifndef NO_R12_BACKWARDS
    :: !quarantined && known == generation && token <= before ->
       token = 0; quarantined = true; printf("%c| the number %d has been there before: quarantine\n", NAME, n)
#endif
#if !defined(NO_R12_LATER) && !defined(NO_R12_BACKWARDS)
    :: !quarantined && known == generation && token > before && recorded >= token ->
       printf("%c| its grant is void: token %d is recorded already\n", NAME, recorded);
       token = 0
#endif
    :: else ->
       issued = (token > issued -> token : issued);
       printf("%c| its grant is recorded: token %d\n", NAME, token);
       assert(token > recorded);
       assert(asked >= vouched);
       recorded = token
    fi
  }
}

proctype Holder(byte me) {
  byte tries, known, before, n, asked, token, sent, named;
  mtype outcome;
  LOCALS;
  do
  :: tries < TRIES ->
     tries++;
#ifndef NO_R12_BEFORE
     read_state();
#endif
     atomic {
       holder == 0;
       number++; n = number; holder = me; asked = copies;
       printf("%c| the service grants the lock, its number is %d\n", NAME, n)
     };
#ifdef NO_R12_BEFORE
     read_state();
#endif
     record();
     if
     :: token != 0 ->
        sent = token;
#ifdef NO_R11
        if
        :: skip
        :: atomic { sent = recorded; printf("%c| sends two headers, of which %d is read\n", NAME, sent) }
        fi;
#endif
#ifdef NO_R18
        atomic { named = row[0].mark; printf("%c| asks whose the mark is: %d\n", NAME, named) };
#endif
        write_once(sent, 16 * me + tries);
        /* A refusal is true: another token was handed out since, or the generation raised. */
        assert(outcome == accepted || token < recorded || token < GENERATION * generation);
        if
        :: outcome == stale && token >= GENERATION * generation ->
#ifndef NO_R18
           atomic { named = row[0].mark; printf("%c| asks whose the mark is: %d\n", NAME, named) };
#endif
           /* R18: it names one who came after. */
           assert(named > token || token < GENERATION * generation)
        :: else
        fi;
        sent = 0; named = 0
     :: else
     fi;
     atomic {
       if
       :: holder == me -> holder = 0; printf("%c| releases\n", NAME)
       :: else
       fi
     };
     token = 0; n = 0; known = 0; before = 0; asked = 0
  :: break
  od;
  tries = 0
}

proctype Service() {
end:
  do
  :: atomic { holder != 0; printf("-| the lease of %c is over\n", 64 + holder); holder = 0 }
  :: atomic {
       copies == 0 && number > 0;
       copies++; number = 0; holder = 0;
       printf("-| the service comes back from an older copy: its next number is 1\n")
     }
  od
}

proctype Operator() {
end:
  atomic {
    quarantined && row_owner[0] == 0;
    generation = 1; issued = GENERATION; quarantined = false; vouched = copies;
    printf("-| an operator raises the generation: older tokens are void\n")
  }
}

proctype Stranger(byte me) {
  mtype outcome;
  LOCALS;
  write_once(MADE_UP, 16 * me)
}

init {
  atomic {
    row[0].alive = true;
    run Service(); run Operator(); run Stranger(3);
    run Holder(2); run Holder(1)
  }
}
