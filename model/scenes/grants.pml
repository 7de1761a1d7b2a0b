/* Grants alone (R9): holders acquire, mint, release or stop; connections break; the clock moves both ways; the server crashes
 * and comes back with what was flushed.
 *
 * A crash happens while no transaction is under way: one that is would be rolled back, which `BREAKS` does one at a time.
 * nextval is flushed by the COMMIT of a transaction that also writes rows.
 */
#ifndef HOLDERS
#define HOLDERS 2
#endif
#ifndef TRIES
#define TRIES 2
#endif
#define BREAKS
#include "../postgres.pml"
#include "../leases.pml"

proctype Holder(byte me) {
  byte token, before, n;
  bool granted;
  do
  :: n < TRIES ->
     n++;
     !LIVE(lock_lease);
     acquire(token);
     if
     :: granted ->
        if
        :: mint(token)
        :: skip
        fi;
        if
        :: release()
        :: skip  /* it pauses, or is gone */
        fi
     :: else
     fi;
     granted = false; token = 0
  :: else -> break
  od;
  n = 0
}

#if HOLDERS > 2
#define NO_TRANSACTION (lock_owner + lease_owner[1] + lease_owner[2] + lease_owner[3] + drawing[1] + drawing[2] + drawing[3] == 0)
#else
#define NO_TRANSACTION (lock_owner + lease_owner[1] + lease_owner[2] + drawing[1] + drawing[2] == 0)
#endif

proctype Server() {
end:
  do
  :: atomic {
       NO_TRANSACTION && sequence != flushed;
       sequence = flushed;
       printf("-| PostgreSQL crashes: the sequence is back at %d\n", sequence)
     }
  od
}

init {
  atomic {
    run Server();
#if HOLDERS > 2
    run Clock(3); run Holder(3);
#endif
    run Clock(2); run Clock(1);
    run Holder(2); run Holder(1)
  }
}
