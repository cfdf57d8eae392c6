-- Statements of PostgreSQL, under READ COMMITTED. The lock of a run's row is the lock of everything that belongs to it,
-- and is taken first: a transaction that waited for it sees what the one before it wrote.

-- now: of the statement, which an index can be searched for
extract(epoch FROM statement_timestamp())::double precision

-- is_mine: condition of claims by workers of a version
NOT EXISTS (SELECT 1 FROM run_versions WHERE run_versions.run_id = runs.id
    AND run_versions.version <> CAST(:versions AS json) ->> runs.agent)

-- claim: due, oldest first; otherwise an expired lease, in the order of an index: that of a sort would read all entries
-- of runs that were running once, until a vacuum
UPDATE runs
SET status = 'running', fence = fence + 1,
    expired_leases = CASE WHEN lease_owner IS NULL THEN 0 ELSE expired_leases + 1 END,
    lease_owner = :worker, lease_until = @now + :lease, updated_at = @now,
    due_at = CASE WHEN status = 'due' THEN due_at ELSE lease_until END
WHERE id = COALESCE(
    (SELECT id FROM runs WHERE status = 'due' AND due_at <= @now
     AND agent IN (SELECT json_array_elements_text(CAST(:agents AS json)))
     AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0)
     ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED),
    (SELECT id FROM runs WHERE status = 'running' AND lease_until <= @now
     AND agent IN (SELECT json_array_elements_text(CAST(:agents AS json)))
     AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0)
     ORDER BY created_at, id LIMIT 1 FOR UPDATE SKIP LOCKED))
RETURNING *, (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- has_work
SELECT 1 AS has_work WHERE EXISTS (
    SELECT 1 FROM runs WHERE status = 'due' AND due_at <= @now
    AND agent IN (SELECT json_array_elements_text(CAST(:agents AS json)))
    AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0))
OR EXISTS (
    SELECT 1 FROM runs WHERE status = 'running' AND lease_until <= @now
    AND agent IN (SELECT json_array_elements_text(CAST(:agents AS json)))
    AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0))

-- find_suspect: the run that has waited for longest to be claimed alone
SELECT id, agent FROM runs
WHERE expired_leases > 0 AND lease_owner IS NOT NULL AND status IN ('due', 'running')
    AND COALESCE(lease_until, due_at) <= @now - :older_than
    AND agent IN (SELECT json_array_elements_text(CAST(:agents AS json)))
ORDER BY due_at LIMIT 1

-- list_overviews: without their results, but for errors; a limit makes the planner look each run up
SELECT runs.id, agent, status, pass_no, pending, lease_owner, lease_until, due_at, expired_leases,
    idempotency_key, cancel_reason, request, created_at, updated_at,
    CASE WHEN status = 'failed' THEN result END AS failure, retries.attempts, retries.failed_at, retries.next_at,
    retries.error_type AS last_error_type, retries.error AS last_error,
    status = 'due' AND retries.next_at IS NOT NULL AND retries.fence = runs.fence AS is_retrying
FROM json_array_elements_text(CAST(:ids AS json)) AS wanted (id)
    CROSS JOIN LATERAL (SELECT * FROM runs WHERE runs.id = wanted.id LIMIT 1) AS runs
    LEFT JOIN LATERAL (SELECT * FROM retries WHERE retries.run_id = runs.id LIMIT 1) AS retries ON TRUE
ORDER BY created_at DESC, runs.id DESC

-- settle: one statement, with its events, as each is a round trip. The row of the run is locked first; a call that another transaction settled
-- meanwhile is no longer processing when it is looked at again
WITH locked AS (
    SELECT runs.id FROM runs JOIN calls ON calls.run_id = runs.id WHERE calls.id = :id
        AND calls.run_id = COALESCE(CAST(:run_id AS text), calls.run_id)
    FOR UPDATE OF runs
), settled AS (
    UPDATE calls SET status = :status, payload = :payload, digest = :digest, settled_at = @now,
        settlement_trace = :trace
    FROM locked
    WHERE calls.id = :id AND calls.run_id = locked.id AND calls.settled_at IS NULL
        AND CASE WHEN CAST(:is_overdue AS integer) = 0 THEN calls.deadline IS NULL OR calls.deadline > @now
            ELSE calls.deadline <= @now END
    RETURNING calls.*
), counted AS (
    UPDATE runs
    SET pending = runs.pending - 1, last_seq = runs.last_seq + :entries, updated_at = @now,
        due_at = CASE WHEN runs.status = 'waiting' AND runs.pending = 1 THEN @now ELSE runs.due_at END,
        status = CASE WHEN runs.status = 'waiting' AND runs.pending = 1 THEN 'due' ELSE runs.status END
    FROM settled
    WHERE runs.id = settled.run_id
    RETURNING settled.*, runs.pending AS run_pending, runs.status AS run_status, runs.agent AS run_agent,
        runs.fence AS run_fence, runs.last_seq AS run_last_seq
), written AS (
    INSERT INTO events (run_id, seq, value, created_at)
    SELECT counted.run_id, counted.run_last_seq - :entries + given.number, CAST(given.value AS text), @now
    FROM counted CROSS JOIN json_array_elements(CAST(:events AS json)) WITH ORDINALITY AS given (value, number)
)
SELECT * FROM counted

-- overdue: of runs whose calls no other transaction is settling; locking them in any order cannot deadlock, as nothing waits
SELECT calls.id, calls.kind FROM calls JOIN runs ON runs.id = calls.run_id
WHERE calls.status = 'processing' AND calls.deadline <= @now
ORDER BY calls.deadline LIMIT :limit
FOR UPDATE OF runs SKIP LOCKED

-- recover
UPDATE runs SET status = 'due', due_at = lease_until, lease_until = NULL, updated_at = @now
WHERE id IN (
    SELECT id FROM runs WHERE status = 'running' AND lease_until <= @now
    ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id, agent, fence

-- claim_callback: due for longest
UPDATE callbacks SET attempts = attempts + 1, fence = fence + 1, lease_until = @now + :lease
WHERE run_id = (
    SELECT run_id FROM callbacks WHERE next_at <= @now AND (lease_until IS NULL OR lease_until <= @now)
    ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING *, @now - due_since AS age

-- tune_schema: free space in pages lets a lease be renewed without touching the indexes
ALTER TABLE runs SET (fillfactor = 70)
