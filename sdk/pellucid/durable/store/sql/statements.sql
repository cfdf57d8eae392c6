-- Statements of both dialects. `-- name` starts a statement, `:name` is a parameter, `@now` the database's clock.
--
-- A statement about one row does not compare its status: PostgreSQL, which plans while the tables are still small, might
-- look for the status in its index and then for the row. `lease_until IS NOT NULL` is a run that is running, and
-- `settled_at IS NULL` a call that is processing.

-- insert_run
INSERT INTO runs (id, agent, status, request, request_digest, idempotency_key, trace, due_at, created_at, updated_at)
VALUES (:id, :agent, 'due', :request, :digest, :idempotency_key, :trace, CASE WHEN :is_queued = 0 THEN @now END, @now, @now)
ON CONFLICT DO NOTHING
RETURNING *

-- find_submitted
SELECT * FROM runs WHERE id = :id OR idempotency_key = :idempotency_key ORDER BY id = :id DESC

-- find_run: a run is retrying that waits for its next attempt; a claim since then has another fence
SELECT runs.*, retries.attempts, retries.since AS failing_since, retries.failed_at, retries.next_at,
    retries.error_type AS last_error_type, retries.error AS last_error,
    runs.status = 'due' AND retries.next_at IS NOT NULL AND retries.fence = runs.fence AS is_retrying
FROM runs LEFT JOIN retries ON retries.run_id = runs.id WHERE runs.id = :id

-- find_status: with the time since when it can be claimed, which a queued run does not have
SELECT status, due_at, CASE WHEN status = 'due' THEN EXISTS (
    SELECT 1 FROM retries WHERE run_id = runs.id AND fence = runs.fence AND next_at IS NOT NULL) END AS is_retrying
FROM runs WHERE id = :id

-- newest: runs after a place in the order of lists, newest first; each of these statements follows indexes. One of all runs
-- by creation would be written at each change of a status, only for this one
SELECT id, created_at FROM (
    SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'due' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS due
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'running' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS running
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'waiting' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS waiting
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'completed' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS completed
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'failed' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS failed
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'cancelled' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS cancelled
) AS all_runs
ORDER BY created_at DESC, id DESC LIMIT :limit

-- newest_of_status
SELECT id, created_at FROM runs
WHERE status = :status AND (created_at, id) < (:created_at, :id) ORDER BY created_at DESC, id DESC LIMIT :limit

-- newest_of_agent
SELECT id, created_at FROM runs
WHERE agent = :agent AND (created_at, id) < (:created_at, :id) ORDER BY created_at DESC, id DESC LIMIT :limit

-- newest_of_worker: of the runs that are running, which are as many as workers have slots
SELECT id, created_at FROM runs
WHERE status = 'running' AND lease_owner = :worker AND (created_at, id) < (:created_at, :id)
ORDER BY created_at DESC, id DESC LIMIT :limit

-- newest_of_key: one at most
SELECT id, created_at FROM runs WHERE idempotency_key = :key AND (created_at, id) < (:created_at, :id) LIMIT :limit

-- newest_open
SELECT id, created_at FROM (
    SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'due' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS due
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'running' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS running
    UNION ALL SELECT * FROM (
        SELECT id, created_at FROM runs WHERE status = 'waiting' AND (created_at, id) < (:created_at, :id)
        ORDER BY created_at DESC, id DESC LIMIT :limit) AS waiting
) AS open_runs
ORDER BY created_at DESC, id DESC LIMIT :limit

-- advance_claimed: every write of a claim to a run that continues; renews the lease
UPDATE runs
SET last_seq = last_seq + :entries, pending = pending + :calls, lease_until = @now + :lease, updated_at = @now,
    expired_leases = CASE WHEN :is_progress > 0 THEN 0 ELSE expired_leases END
WHERE id = :id AND fence = :fence AND lease_until IS NOT NULL
RETURNING last_seq, lease_until, cancel_reason, pass_no

-- advance
UPDATE runs SET last_seq = last_seq + :entries, updated_at = @now WHERE id = :id RETURNING last_seq

-- claim_run: one run of an agent, if it is due or its lease has expired. A suspect is one whose claim would be the second
-- in a row after an expired lease
UPDATE runs
SET status = 'running', fence = fence + 1,
    expired_leases = CASE WHEN lease_owner IS NULL THEN 0 ELSE expired_leases + 1 END,
    lease_owner = :worker, lease_until = @now + :lease, due_at = COALESCE(lease_until, due_at), updated_at = @now
WHERE id = :id AND agent = :agent AND COALESCE(lease_until, due_at) <= @now
    AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0)
RETURNING *, (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- insert_journal
INSERT INTO journal (run_id, seq, key, value, fence, created_at) VALUES (:run_id, :seq, :key, :value, :fence, @now)
ON CONFLICT (run_id, key) DO NOTHING
RETURNING seq

-- find_entry
SELECT * FROM journal WHERE run_id = :run_id AND key = :key

-- list_journal
SELECT * FROM journal WHERE run_id = :run_id AND seq > :after ORDER BY seq

-- list_steps: what has started and ended, without content
SELECT run_id, seq, key, CASE WHEN substr(key, 1, 7) = 'result:' THEN 'null' ELSE value END AS value, fence, created_at
FROM journal
WHERE run_id = :run_id AND seq > :after AND substr(key, 1, 7) <> 'answer:' ORDER BY seq

-- list_steps_and_answers: the same with answers, also without content
SELECT run_id, seq, key, fence, created_at,
    CASE WHEN substr(key, 1, 7) IN ('answer:', 'result:') THEN 'null' ELSE value END AS value
FROM journal WHERE run_id = :run_id AND seq > :after ORDER BY seq

-- list_entries: sizes of all, and what has started
SELECT seq, fence, key, length(value) AS size, created_at, CASE WHEN substr(key, 1, 8) = 'started:' THEN value END AS started
FROM journal WHERE run_id = :run_id ORDER BY seq

-- insert_event
INSERT INTO events (run_id, seq, value, created_at) VALUES (:run_id, :seq, :value, @now)

-- list_events
SELECT * FROM events WHERE run_id = :run_id AND seq > :after ORDER BY seq LIMIT :limit

-- has_events
SELECT 1 AS has_events FROM events WHERE run_id = :run_id AND seq > :after LIMIT 1

-- end_pass
UPDATE runs
SET status = CASE WHEN cancel_reason IS NOT NULL THEN 'cancelled' WHEN pending + :calls > 0 THEN 'waiting' ELSE 'due' END,
    due_at = CASE WHEN cancel_reason IS NULL AND pending + :calls = 0 THEN @now END,
    pending = CASE WHEN cancel_reason IS NULL THEN pending + :calls ELSE 0 END,
    pass_no = pass_no + 1, lease_owner = NULL, lease_until = NULL, updated_at = @now,
    last_seq = last_seq + CASE WHEN cancel_reason IS NULL THEN :entries ELSE :cancellation_entries END,
    checkpoint = COALESCE(CAST(:checkpoint AS TEXT), checkpoint),
    checkpoint_seq = CASE WHEN CAST(:checkpoint AS TEXT) IS NULL THEN checkpoint_seq ELSE last_seq + :entries END
WHERE id = :id AND fence = :fence AND lease_until IS NOT NULL
RETURNING last_seq, status, agent, EXISTS (SELECT 1 FROM callbacks WHERE run_id = :id) AS has_callback,
    (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- finish
UPDATE runs
SET status = :status, result = :result, pending = 0, lease_owner = NULL, lease_until = NULL, due_at = NULL,
    updated_at = @now, last_seq = last_seq + :entries
WHERE id = :id AND fence = :fence AND lease_until IS NOT NULL
RETURNING last_seq, status, agent, EXISTS (SELECT 1 FROM callbacks WHERE run_id = :id) AS has_callback,
    (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- release
UPDATE runs
SET status = 'due', due_at = @now + :delay, lease_owner = NULL, lease_until = NULL, updated_at = @now
WHERE id = :id AND fence = :fence AND lease_until IS NOT NULL
RETURNING last_seq, status, agent

-- retry_later: a run that was cancelled meanwhile is due at once, for the worker that ends it
UPDATE runs
SET status = 'due', due_at = @now + CASE WHEN cancel_reason IS NULL THEN CAST(:delay AS DOUBLE PRECISION) ELSE 0 END,
    lease_owner = NULL, lease_until = NULL, updated_at = @now, last_seq = last_seq + :entries
WHERE id = :id AND fence = :fence AND lease_until IS NOT NULL
RETURNING last_seq, agent, due_at, cancel_reason

-- note_failure: of the claim that has just given the run back, or ended it
INSERT INTO retries (run_id, attempts, since, failed_at, next_at, seq, fence, error_type, error)
SELECT id, :attempts, @now, @now, due_at, last_seq, fence, :error_type, :error FROM runs WHERE id = :run_id
ON CONFLICT (run_id) DO UPDATE
SET attempts = excluded.attempts, failed_at = excluded.failed_at, next_at = excluded.next_at, seq = excluded.seq,
    since = CASE WHEN excluded.attempts > 1 THEN retries.since ELSE excluded.since END,
    fence = excluded.fence, error_type = excluded.error_type, error = excluded.error

-- find_failures
SELECT attempts, seq, error_type, @now - since AS elapsed FROM retries WHERE run_id = :run_id

-- list_outcomes: of the steps after a failure
SELECT key FROM journal WHERE run_id = :run_id AND seq > :after AND substr(key, 1, 7) IN ('answer:', 'result:')

-- retry_run: as after a pass, but that it is another claim for those who announce runs
UPDATE runs
SET status = 'due', due_at = @now, result = NULL, cancel_reason = NULL, pending = 0, expired_leases = 0,
    lease_owner = NULL, lease_until = NULL, fence = fence + 1, updated_at = @now, last_seq = last_seq + 1 + :entries
WHERE id = :id AND fence = :fence AND status IN ('failed', 'cancelled', 'due')
RETURNING *

-- forget_attempts: the last error stays
UPDATE retries SET attempts = 0, next_at = NULL WHERE run_id = :run_id

-- delete_retries
DELETE FROM retries WHERE run_id = :run_id

-- unpin_lost: of a run that no worker holds any more
DELETE FROM run_versions WHERE run_id = :run_id AND EXISTS (
    SELECT 1 FROM runs WHERE id = run_versions.run_id AND status = 'running' AND lease_until <= @now)
RETURNING run_id

-- pin_run: at its first claim by a worker of a version
INSERT INTO run_versions (run_id, version) VALUES (:run_id, :version) ON CONFLICT (run_id) DO NOTHING

-- count_pinned
SELECT agent, version, count(*) AS number FROM runs JOIN run_versions ON run_versions.run_id = runs.id
WHERE status IN ('due', 'running', 'waiting') GROUP BY agent, version ORDER BY agent, version

-- delete_version
DELETE FROM run_versions WHERE run_id = :run_id

-- cancel_run: at once, unless a worker holds a lease of it; the worker whose lease has expired stays in the row
UPDATE runs
SET cancel_reason = COALESCE(cancel_reason, :reason), updated_at = @now,
    status = CASE WHEN status = 'running' AND lease_until > @now THEN status ELSE 'cancelled' END,
    pending = CASE WHEN status = 'running' AND lease_until > @now THEN pending ELSE 0 END,
    lease_until = CASE WHEN status = 'running' AND lease_until > @now THEN lease_until END,
    last_seq = CASE WHEN status = 'running' AND lease_until > @now THEN last_seq ELSE last_seq + :entries END,
    due_at = NULL
WHERE id = :id AND status NOT IN ('completed', 'failed', 'cancelled')
RETURNING *, EXISTS (SELECT 1 FROM callbacks WHERE run_id = :id) AS has_callback,
    (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- cancel_calls
UPDATE calls SET status = 'cancelled', settled_at = @now WHERE run_id = :run_id AND settled_at IS NULL RETURNING *

-- insert_call
INSERT INTO calls (id, run_id, seq, pass_no, kind, tool, tool_call_id, status, request, deadline, created_at, trace)
VALUES (:id, :run_id, :seq, :pass_no, :kind, :tool, :tool_call_id, 'processing', :request,
    @now + CAST(:timeout AS DOUBLE PRECISION), @now, :trace)
ON CONFLICT (id) DO NOTHING
RETURNING *

-- find_call
SELECT * FROM calls WHERE id = :id

-- list_calls
SELECT * FROM calls WHERE run_id = :run_id ORDER BY seq

-- mark_dispatched
UPDATE calls SET dispatched_at = @now WHERE id = :id AND dispatched_at IS NULL RETURNING id

-- undispatched
SELECT * FROM calls
WHERE status = 'processing' AND dispatched_at IS NULL AND created_at <= @now - :older_than AND kind = 'external'
ORDER BY created_at LIMIT :limit

-- find_pending
SELECT pending FROM runs WHERE id = :id

-- heartbeat
UPDATE calls
SET heartbeat_at = @now, progress = COALESCE(CAST(:progress AS TEXT), progress),
    deadline = CASE WHEN deadline < @now + CAST(:extend AS DOUBLE PRECISION)
        THEN @now + CAST(:extend AS DOUBLE PRECISION) ELSE deadline END
WHERE id = :id AND settled_at IS NULL
RETURNING *

-- count_runs
SELECT status, status = 'due' AND due_at IS NULL AS is_queued, count(*) AS number FROM runs GROUP BY 1, 2

-- count_open_runs
SELECT status, status = 'due' AND due_at IS NULL AS is_queued, count(*) AS number FROM runs
WHERE status IN ('due', 'running', 'waiting') GROUP BY 1, 2

-- count_due: a run that was given back may be due only in a while
SELECT agent, count(*) AS number, @now - min(due_at) AS age FROM runs
WHERE status = 'due' AND due_at <= @now GROUP BY agent ORDER BY agent

-- count_retrying: the runs that are due come first, as they are few
SELECT agent, count(*) AS number, @now - min(since) AS age FROM runs CROSS JOIN retries
WHERE runs.status = 'due' AND runs.id = retries.run_id AND retries.fence = runs.fence AND retries.next_at IS NOT NULL
GROUP BY agent ORDER BY agent

-- count_pending
SELECT tool, kind, count(*) AS number, @now - min(created_at) AS age,
    max((@now - created_at) / NULLIF(deadline - created_at, 0)) AS deadline_used
FROM calls
WHERE status = 'processing' GROUP BY tool, kind ORDER BY tool, kind

-- delete_ended: runs of one final status that have not changed for a while, by the index on status and creation; not those
-- of conversations, which go together
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs WHERE status = :status AND created_at <= @now - :older_than AND updated_at <= @now - :older_than
        AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.run_id = runs.id)
    ORDER BY created_at LIMIT :limit)
RETURNING id

-- delete_calls
DELETE FROM calls WHERE run_id = :run_id

-- delete_journal
DELETE FROM journal WHERE run_id = :run_id

-- delete_events
DELETE FROM events WHERE run_id = :run_id

-- delete_callback
DELETE FROM callbacks WHERE run_id = :run_id

-- delete_scores
DELETE FROM given_scores WHERE run_id = :run_id

-- give_score: of a run that is there, once
INSERT INTO given_scores (run_id, token, name, score)
SELECT id, CAST(:token AS TEXT), CAST(:name AS TEXT), CAST(:score AS TEXT) FROM runs WHERE id = :run_id
ON CONFLICT (run_id, token, name) DO NOTHING
RETURNING score

-- find_given_score
SELECT score FROM given_scores WHERE run_id = :run_id AND token = :token AND name = :name

-- insert_callback
INSERT INTO callbacks (run_id, url) VALUES (:run_id, :url)

-- make_callback_due: the run waits or has ended
UPDATE callbacks
SET version = version + 1, attempts = 0, due_since = @now, next_at = @now, dead_at = NULL, last_error = NULL
WHERE run_id = :run_id

-- callback_delivered: a newer version stays due
UPDATE callbacks
SET delivered_version = :version, last_error = NULL, dead_at = NULL,
    next_at = CASE WHEN version = :version THEN NULL ELSE next_at END,
    lease_until = CASE WHEN fence = :fence THEN NULL ELSE lease_until END
WHERE run_id = :run_id AND delivered_version <= :version
RETURNING *

-- callback_failed: a newer version is due already
UPDATE callbacks
SET lease_until = NULL, last_error = :error,
    next_at = CASE WHEN version = :version THEN @now + CAST(:delay AS DOUBLE PRECISION) ELSE next_at END,
    dead_at = CASE WHEN version = :version AND CAST(:delay AS DOUBLE PRECISION) IS NULL THEN @now END
WHERE run_id = :run_id AND fence = :fence AND next_at IS NOT NULL
RETURNING *

-- retry_callback
UPDATE callbacks SET attempts = 0, due_since = @now, next_at = @now, dead_at = NULL
WHERE run_id = :run_id AND delivered_version < version
RETURNING *

-- find_callback
SELECT * FROM callbacks WHERE run_id = :run_id

-- list_dead_callbacks
SELECT * FROM callbacks WHERE dead_at IS NOT NULL ORDER BY dead_at, run_id LIMIT :limit

-- has_due_callback
SELECT 1 AS has_due FROM callbacks WHERE next_at <= @now AND (lease_until IS NULL OR lease_until <= @now) LIMIT 1

-- callback_age
SELECT @now - min(due_since) AS age FROM callbacks WHERE next_at IS NOT NULL

-- next_turn: locks the conversation, so that runs are submitted to it one after the other
INSERT INTO conversations (id, last_turn, updated_at) VALUES (:conversation, 1, @now)
ON CONFLICT (id) DO UPDATE SET last_turn = conversations.last_turn + 1, updated_at = @now
RETURNING last_turn

-- insert_turn
INSERT INTO turns (run_id, conversation, turn) VALUES (:run_id, :conversation, :turn)

-- find_open: of the runs of a conversation that have not ended, the first one; the others are queued. Here and below, the
-- status is a subquery, so that PostgreSQL starts from the turns, whatever it knows of the tables
SELECT run_id AS id FROM turns
WHERE conversation = :conversation AND turn > (SELECT ended_to FROM conversations WHERE id = :conversation)
    AND (SELECT status FROM runs WHERE id = turns.run_id) IN ('due', 'running', 'waiting')
ORDER BY turn LIMIT 1

-- lock_conversation: the run of a turn has ended, as have all before it
UPDATE conversations SET ended_to = :turn, updated_at = @now WHERE id = :conversation

-- find_turn
SELECT conversation, turn FROM turns WHERE run_id = :run_id

-- reopen_conversation: a run is to continue that had ended
UPDATE conversations SET ended_to = CASE WHEN ended_to < :turn THEN ended_to ELSE :turn - 1 END, updated_at = @now
WHERE id = :conversation

-- start_next: the first run of a conversation that has not ended, if it is queued. If it has been cancelled in between,
-- the next sweep starts the one after it
UPDATE runs SET due_at = @now, updated_at = @now
WHERE id = (
    SELECT run_id FROM turns
    WHERE conversation = :conversation AND turn > :turn
        AND (SELECT status FROM runs WHERE id = turns.run_id) IN ('due', 'running', 'waiting')
    ORDER BY turn LIMIT 1)
AND status = 'due' AND due_at IS NULL
RETURNING id, agent, fence

-- list_stalled: the first queued run of each conversation, unless a run before it has not ended
SELECT queued.conversation, queued.turn
FROM (
    SELECT turns.conversation, min(turns.turn) AS turn FROM runs JOIN turns ON turns.run_id = runs.id
    WHERE runs.status = 'due' AND runs.due_at IS NULL GROUP BY turns.conversation) AS queued
WHERE NOT EXISTS (
    SELECT 1 FROM turns
    WHERE conversation = queued.conversation AND turn < queued.turn
        AND turn > (SELECT ended_to FROM conversations WHERE id = queued.conversation)
        AND (SELECT status FROM runs WHERE id = turns.run_id) IN ('due', 'running', 'waiting'))
ORDER BY queued.conversation LIMIT :limit

-- find_version
SELECT version FROM run_versions WHERE run_id = :run_id

-- find_turn
SELECT conversation, turn FROM turns WHERE run_id = :run_id

-- count_before: the runs of a conversation that have to end before one of it can start
SELECT count(*) AS number FROM turns
WHERE conversation = :conversation AND turn < :turn
    AND turn > (SELECT ended_to FROM conversations WHERE id = :conversation)
    AND (SELECT status FROM runs WHERE id = turns.run_id) IN ('due', 'running', 'waiting')

-- list_turns: the latest runs of a conversation before one, latest first
SELECT runs.*, turns.turn, retries.attempts, retries.since AS failing_since, retries.failed_at, retries.next_at,
    retries.error_type AS last_error_type, retries.error AS last_error,
    runs.status = 'due' AND retries.next_at IS NOT NULL AND retries.fence = runs.fence AS is_retrying
FROM turns JOIN runs ON runs.id = turns.run_id LEFT JOIN retries ON retries.run_id = runs.id
WHERE turns.conversation = :conversation AND turns.turn < :before
ORDER BY turns.turn DESC LIMIT :limit

-- delete_idle_conversations: whose runs have all ended a while ago. PostgreSQL looks at the row again if a run was
-- submitted meanwhile, which has changed its last turn
DELETE FROM conversations
WHERE (id, last_turn) IN (
    SELECT idle.id, idle.last_turn FROM conversations AS idle
    WHERE idle.updated_at <= @now - :older_than AND NOT EXISTS (
        SELECT 1 FROM turns JOIN runs ON runs.id = turns.run_id
        WHERE turns.conversation = idle.id
            AND (runs.status IN ('due', 'running', 'waiting') OR runs.updated_at > @now - :older_than))
    ORDER BY idle.updated_at LIMIT :limit)
RETURNING id

-- delete_runs_of_conversation
DELETE FROM runs WHERE id IN (SELECT run_id FROM turns WHERE conversation = :conversation)
RETURNING id, status

-- delete_turns
DELETE FROM turns WHERE conversation = :conversation

-- read_clock
SELECT @now AS now

-- lock_budget: the account of a period, made with its first reservation; its row is the lock of its reservations
INSERT INTO budgets (name, period, updated_at) VALUES (:name, :period, @now)
ON CONFLICT (name, period) DO UPDATE SET updated_at = @now
RETURNING *

-- find_budget
SELECT * FROM budgets WHERE name = :name AND period = :period

-- list_budgets
SELECT * FROM budgets ORDER BY name, period DESC

-- sum_all_reservations
SELECT name, period, CASE WHEN expires_at > @now THEN 0 ELSE 1 END AS is_expired,
    SUM(cost) AS cost, SUM(tokens) AS tokens, SUM(model_calls) AS model_calls
FROM budget_reservations
GROUP BY name, period, CASE WHEN expires_at > @now THEN 0 ELSE 1 END

-- sum_reservations: by whether their time is over
SELECT CASE WHEN expires_at > @now THEN 0 ELSE 1 END AS is_expired,
    SUM(cost) AS cost, SUM(tokens) AS tokens, SUM(model_calls) AS model_calls
FROM budget_reservations WHERE name = :name AND period = :period
GROUP BY CASE WHEN expires_at > @now THEN 0 ELSE 1 END

-- insert_reservation
INSERT INTO budget_reservations (id, name, period, cost, tokens, model_calls, expires_at)
VALUES (:id, :name, :period, :cost, :tokens, :model_calls, @now + :lasts)

-- find_reservation
SELECT * FROM budget_reservations WHERE id = :id

-- delete_reservation
DELETE FROM budget_reservations WHERE id = :id RETURNING id

-- spend
UPDATE budgets SET cost = cost + :cost, tokens = tokens + :tokens, model_calls = model_calls + :model_calls
WHERE name = :name AND period = :period
RETURNING *

-- delete_old_budgets: of periods that are over
DELETE FROM budgets
WHERE updated_at <= @now - :older_than AND period NOT IN ('', :hour, :day, :month)

-- delete_old_reservations: whose account is deleted
DELETE FROM budget_reservations
WHERE expires_at <= @now - :older_than
    AND NOT EXISTS (SELECT 1 FROM budgets WHERE budgets.name = budget_reservations.name
        AND budgets.period = budget_reservations.period)

-- write_worker
INSERT INTO workers (id, name, version, agents, started_at, seen_at, slots)
VALUES (:id, :name, CAST(:version AS TEXT), :agents, @now, @now, :slots)
ON CONFLICT (id) DO UPDATE SET seen_at = @now
RETURNING drain_requested_at

-- find_worker
SELECT drain_requested_at FROM workers WHERE id = :id

-- delete_worker
DELETE FROM workers WHERE id = :id

-- delete_lost_workers
DELETE FROM workers WHERE seen_at <= @now - :older_than

-- list_workers
SELECT * FROM workers ORDER BY name, started_at, id

-- request_drain
UPDATE workers SET drain_requested_at = COALESCE(drain_requested_at, @now) WHERE name = :name RETURNING id

-- list_workers_with_age
SELECT *, @now - seen_at AS age FROM workers ORDER BY name, started_at, id

-- due_groups: due runs by agent, and by the version that they need
SELECT agent, (SELECT version FROM run_versions WHERE run_id = runs.id) AS version, count(*) AS number,
    @now - min(due_at) AS age
FROM runs WHERE status = 'due' AND due_at <= @now GROUP BY 1, 2 ORDER BY 1, 2

-- lost_runs
SELECT id, agent, (SELECT version FROM run_versions WHERE run_id = runs.id) AS version, lease_owner AS worker,
    @now - lease_until AS age
FROM runs
WHERE status = 'running' AND lease_until <= @now - :older_than ORDER BY lease_until LIMIT :limit

-- quarantined_runs
SELECT id, agent, lease_owner AS worker, expired_leases AS attempts, @now - updated_at AS age FROM runs
WHERE status IN ('due', 'running') AND expired_leases >= :leases ORDER BY created_at, id LIMIT :limit

-- failing_runs: that are due again, and have failed for long
SELECT runs.id, agent, attempts, @now - since AS age, error AS detail FROM runs CROSS JOIN retries
WHERE runs.status = 'due' AND runs.id = retries.run_id AND retries.fence = runs.fence AND retries.next_at IS NOT NULL
    AND since <= @now - :older_than
ORDER BY since LIMIT :limit

-- unsent_calls
SELECT id, run_id, tool, @now - created_at AS age FROM calls
WHERE status = 'processing' AND dispatched_at IS NULL AND kind = 'external' AND created_at <= @now - :older_than
ORDER BY created_at LIMIT :limit

-- overdue_calls
SELECT id, run_id, tool, @now - deadline AS age FROM calls
WHERE status = 'processing' AND deadline <= @now - :older_than ORDER BY deadline LIMIT :limit

-- old_approvals: which are never marked as dispatched
SELECT id, run_id, tool, @now - created_at AS age FROM calls
WHERE status = 'processing' AND dispatched_at IS NULL AND kind = 'approval' AND created_at <= @now - :older_than
ORDER BY created_at LIMIT :limit

-- waiting_calls: the oldest first; as it is for people, it sorts what waits, which no index has in this order
SELECT * FROM calls
WHERE status = 'processing' AND tool = COALESCE(CAST(:tool AS TEXT), tool) AND kind = COALESCE(CAST(:kind AS TEXT), kind)
ORDER BY created_at, id LIMIT :limit

-- run_ids: those that begin so, of ids that Pellucid has made; the id itself first
SELECT id FROM runs
WHERE id = :start OR length(id) = 32 AND substr(id, 1, length(CAST(:start AS TEXT))) = CAST(:start AS TEXT)
ORDER BY length(id), id LIMIT :limit

-- call_ids
SELECT id FROM calls
WHERE substr(id, 1, length(CAST(:start AS TEXT))) = CAST(:start AS TEXT)
ORDER BY id LIMIT :limit

-- find_revision
SELECT revision FROM schema_revision

-- count_ended: what `delete_ended` deletes
SELECT count(*) AS number FROM runs
WHERE status = :status AND created_at <= @now - :older_than AND updated_at <= @now - :older_than
    AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.run_id = runs.id)

-- count_idle: runs of the conversations that `delete_idle_conversations` deletes
SELECT count(*) AS number FROM turns JOIN conversations AS idle ON idle.id = turns.conversation
WHERE idle.updated_at <= @now - :older_than AND NOT EXISTS (
    SELECT 1 FROM turns AS other JOIN runs ON runs.id = other.run_id
    WHERE other.conversation = idle.id
        AND (runs.status IN ('due', 'running', 'waiting') OR runs.updated_at > @now - :older_than))
