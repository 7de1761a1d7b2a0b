-- Who may do what. A table's rows are read and written through functions only; there are three kinds of them:
--   the gateway's   SECURITY DEFINER, for no one but the roles that `fencepost migrate --gateway-role` grants them to
--   the triggers'   called by the functions of protected tables, which run in the owner's name, or the writer's own
--   everybody's     they run in the writer's own name, or look themselves at who calls
-- PostgreSQL gives each new function to PUBLIC: what is not for everybody is taken away here. A function that is named in neither
-- list is everybody's by that default. `fencepost doctor` (ops/doctor_tables.py) looks at the lists.
-- A function is named without its arguments where there is only one of the name.

GRANT USAGE ON SCHEMA fencepost TO PUBLIC;

REVOKE EXECUTE ON FUNCTION
  -- marks.sql
  fencepost.mark_without_row, fencepost.mark_record, fencepost.floor_of,
  -- break_glass.sql
  fencepost.may_break_glass,
  -- judging.sql
  fencepost.raise_mark, fencepost.judge_insert, fencepost.judge_delete, fencepost.meet_mark,
  -- bounds.sql
  fencepost.issue_beyond, fencepost.meet_ceiling,
  -- scopes.sql
  fencepost.enter, fencepost.judge_scope, fencepost.enter_each,
  -- leases.sql
  fencepost.within_ttl, fencepost.sweep, fencepost.forget,
  -- waiters.sql
  fencepost.first_waiter, fencepost.wake, fencepost.leave, fencepost.beat, fencepost.retire,
  -- withdrawn.sql
  fencepost.secret_lock, fencepost.is_withdrawn, fencepost.withdraw,
  -- acquire.sql
  fencepost.acquire, fencepost.acquire_each, fencepost.extend, fencepost.release, fencepost.release_each, fencepost.begin_now,
  fencepost.attempts_of, fencepost.is_taken, fencepost.taken_by, fencepost.put_aside,
  -- next_rows.sql
  fencepost.watch, fencepost.unwatch, fencepost.note_question,
  -- lock_states.sql
  fencepost.lease, fencepost.lost, fencepost.issued_to, fencepost.lock_states, fencepost.lock_counts,
  -- generations.sql
  fencepost.current_timeline, fencepost.location, fencepost.origin, fencepost.raise_generation,
  fencepost.moment_due, fencepost.leave_moment,
  -- sources.sql
  fencepost.source_register, fencepost.source_state, fencepost.source_reaches, fencepost.source_begins, fencepost.source_draw,
  fencepost.source_quarantine, fencepost.source_verified, fencepost.source_raise, fencepost.source_beyond,
  fencepost.raise_sources_of_ours,
  -- source_leases.sql
  fencepost.source_repeated, fencepost.source_grant, fencepost.source_claiming, fencepost.source_claimed,
  fencepost.source_lease, fencepost.source_hold, fencepost.source_renewed, fencepost.source_minted, fencepost.source_end,
  fencepost.source_count_anew, fencepost.source_over, fencepost.source_issued_to, fencepost.source_lost,
  fencepost.source_lock_states, fencepost.source_forget,
  -- idempotency.sql
  fencepost.idem_begin, fencepost.idem_record, fencepost.prune_idempotency, fencepost.idem_begin_each,
  fencepost.idem_record_each,
  -- queues.sql
  fencepost.queue_register, fencepost.queue_check, fencepost.queue_quarantine, fencepost.queue_forget, fencepost.queue_note_progress, fencepost.queue_note_pause, fencepost.queue_known,
  fencepost.queue_stop, fencepost.queue_clear, fencepost.queue_stopped_by, fencepost.queue_results, fencepost.queue_record,
  fencepost.queue_committed, fencepost.queue_is_committed, fencepost.queue_forgettable, fencepost.queue_looked,
  fencepost.queue_applied_to, fencepost.queue_forgotten_to, fencepost.queue_no_copy_waits, fencepost.queue_claim, fencepost.queue_close,
  fencepost.queue_letters_of,
  -- queued.sql
  fencepost.queue_append, fencepost.queue_state, fencepost.queue_decided, fencepost.queue_own, fencepost.queue_take, fencepost.queue_at,
  fencepost.queue_done, fencepost.queue_leave, fencepost.queue_bury, fencepost.queue_buried, fencepost.queue_exhume,
  fencepost.queue_dead_count, fencepost.queue_join, fencepost.queue_oldest,
  -- api_keys.sql
  fencepost.api_keys_of, fencepost.api_keys_used, fencepost.announce_keys,
  -- refusals.sql
  fencepost.add_refusals,
  -- pruning.sql
  fencepost.prune, fencepost.prune_horizon, fencepost.prune_marks, fencepost.sizes,
  -- event_triggers.sql
  fencepost.on_dropped,
  -- as_gateway.sql
  fencepost.require_gateway, fencepost.may_write, fencepost.require_writer FROM PUBLIC;

-- Granted, and not left to the default, which an owner of the schema may have changed: all of it runs in the writer's own name.
GRANT EXECUTE ON FUNCTION
  -- protected.sql
  fencepost.suppressed, fencepost.too_large, fencepost.digits, fencepost.outdated, fencepost.no_truncate,
  -- next_rows.sql
  fencepost.work_there,
  -- names.sql
  fencepost.enc, fencepost.key_of, fencepost.is_builtin, fencepost.canon(date), fencepost.canon(timestamp),
  fencepost.canon(timestamptz), fencepost.canon(numeric), fencepost.canon(bytea),
  -- direct_sql.sql
  fencepost.token_from_setting, fencepost.malformed, fencepost.note_explicit, fencepost.take_explicit,
  -- break_glass.sql
  fencepost.break_glass, fencepost.record_break_glass, fencepost.mark_behind_glass,
  -- reset.sql
  fencepost.held_mark, fencepost.held_floor, fencepost.highest_below, fencepost.reset_mark, fencepost.is_reset,
  -- force_release.sql
  fencepost.force_release,
  -- judging.sql
  fencepost.accepts, fencepost.is_own_write, fencepost.verdict, fencepost.enforce,
  fencepost.judge_update,
  -- bounds.sql
  fencepost.beyond, fencepost.require_reach, fencepost.require_reach_of_row, fencepost.issued(), fencepost.oldest(),
  fencepost.require_issued(text, bigint), fencepost.issued(text), fencepost.oldest(text),
  fencepost.require_issued(text, bigint, text),
  -- sources.sql
  fencepost.source_bounds,
  -- queues.sql
  fencepost.queue_fault,
  -- partitions.sql
  fencepost.follow_partitions, fencepost.any_filled, fencepost.act_as_owner, fencepost.detach_rows, fencepost.attach_rows,
  fencepost.as_row_of, fencepost.partitions_known, fencepost.leave_marks, fencepost.altered_marks, fencepost.altered,
  fencepost.partitions_unknown, fencepost.partitions_of, fencepost.work_trigger,
  fencepost.tells_of_work,
  -- event_triggers.sql
  fencepost.require_no_default, fencepost.other_defaults,
  -- as_gateway.sql
  fencepost.gateway_mark_without_row, fencepost.gateway_mark_record, fencepost.gateway_floor_of,
  fencepost.gateway_raise_mark, fencepost.gateway_meet_ceiling, fencepost.gateway_enter,
  fencepost.gateway_enter_each, fencepost.gateway_is_taken, fencepost.gateway_idem_begin, fencepost.gateway_idem_begin_each,
  fencepost.gateway_idem_record, fencepost.gateway_idem_record_each,
  -- versions.sql
  fencepost.compatible_from TO PUBLIC;

-- How a table is protected is no secret: requests of the gateway's callers look at it as their roles.
GRANT SELECT (relation, name, rule, source, scope, max_token, max_jump) ON fencepost.protected TO PUBLIC;

-- Triggers compare tokens with it in the writer's own name. Reading is not drawing: nextval needs USAGE.
GRANT SELECT ON SEQUENCE fencepost.tokens TO PUBLIC;

-- What sources there are, and how far they got, is no secret: each sequence may be read as well (source_register).
GRANT SELECT ON fencepost.sources TO PUBLIC;
