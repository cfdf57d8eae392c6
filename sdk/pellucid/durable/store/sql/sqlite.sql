-- Statements of SQLite. `BEGIN IMMEDIATE` makes one transaction write at a time, so no row needs a lock.

-- now
(julianday('now') - 2440587.5) * 86400.0

-- is_mine: condition of claims by workers of a version
NOT EXISTS (SELECT 1 FROM run_versions WHERE run_versions.run_id = runs.id
    AND run_versions.version <> (SELECT value FROM json_each(:versions) WHERE json_each.key = runs.agent))

-- claim: due, oldest first; otherwise an expired lease
UPDATE runs
SET status = 'running', fence = fence + 1,
    expired_leases = CASE WHEN lease_owner IS NULL THEN 0 ELSE expired_leases + 1 END,
    lease_owner = :worker, lease_until = @now + :lease, updated_at = @now,
    due_at = CASE WHEN status = 'due' THEN due_at ELSE lease_until END
WHERE id = COALESCE(
    (SELECT id FROM runs WHERE status = 'due' AND due_at <= @now AND agent IN (SELECT value FROM json_each(:agents))
     AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0)
     ORDER BY due_at LIMIT 1),
    (SELECT id FROM runs WHERE status = 'running' AND lease_until <= @now
     AND agent IN (SELECT value FROM json_each(:agents))
     AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0)
     ORDER BY created_at, id LIMIT 1))
RETURNING *, (SELECT conversation FROM turns WHERE run_id = runs.id) AS conversation,
    (SELECT turn FROM turns WHERE run_id = runs.id) AS turn

-- has_work
SELECT 1 AS has_work WHERE EXISTS (
    SELECT 1 FROM runs WHERE status = 'due' AND due_at <= @now AND agent IN (SELECT value FROM json_each(:agents))
    AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0))
OR EXISTS (
    SELECT 1 FROM runs WHERE status = 'running' AND lease_until <= @now
    AND agent IN (SELECT value FROM json_each(:agents))
    AND (:with_suspects > 0 OR lease_owner IS NULL OR expired_leases = 0))

-- find_suspect: the run that has waited for longest to be claimed alone
SELECT id, agent FROM runs
WHERE expired_leases > 0 AND lease_owner IS NOT NULL AND status IN ('due', 'running')
    AND COALESCE(lease_until, due_at) <= @now - :older_than
    AND agent IN (SELECT value FROM json_each(:agents))
ORDER BY due_at LIMIT 1

-- list_overviews: without their results, but for errors
SELECT runs.id, agent, status, pass_no, pending, lease_owner, lease_until, due_at, expired_leases,
    idempotency_key, cancel_reason, request, created_at, updated_at,
    CASE WHEN status = 'failed' THEN result END AS failure, retries.attempts, retries.failed_at, retries.next_at,
    retries.error_type AS last_error_type, retries.error AS last_error,
    status = 'due' AND retries.next_at IS NOT NULL AND retries.fence = runs.fence AS is_retrying
FROM runs LEFT JOIN retries ON retries.run_id = runs.id
WHERE runs.id IN (SELECT value FROM json_each(:ids))
ORDER BY created_at DESC, runs.id DESC

-- settle
UPDATE calls SET status = :status, payload = :payload, digest = :digest, settled_at = @now, settlement_trace = :trace
WHERE id = :id AND run_id = COALESCE(:run_id, run_id) AND settled_at IS NULL
    AND CASE WHEN :is_overdue = 0 THEN deadline IS NULL OR deadline > @now ELSE deadline <= @now END
RETURNING *

-- count_down: after a call was settled
UPDATE runs
SET pending = pending - 1, last_seq = last_seq + :entries, updated_at = @now,
    due_at = CASE WHEN status = 'waiting' AND pending = 1 THEN @now ELSE due_at END,
    status = CASE WHEN status = 'waiting' AND pending = 1 THEN 'due' ELSE status END
WHERE id = :id
RETURNING pending AS run_pending, status AS run_status, agent AS run_agent, fence AS run_fence,
    last_seq AS run_last_seq

-- overdue
SELECT id, kind FROM calls WHERE status = 'processing' AND deadline <= @now ORDER BY deadline LIMIT :limit

-- recover
UPDATE runs SET status = 'due', due_at = lease_until, lease_until = NULL, updated_at = @now
WHERE id IN (SELECT id FROM runs WHERE status = 'running' AND lease_until <= @now ORDER BY lease_until LIMIT :limit)
RETURNING id, agent, fence

-- claim_callback: due for longest
UPDATE callbacks SET attempts = attempts + 1, fence = fence + 1, lease_until = @now + :lease
WHERE run_id = (
    SELECT run_id FROM callbacks WHERE next_at <= @now AND (lease_until IS NULL OR lease_until <= @now)
    ORDER BY next_at LIMIT 1)
RETURNING *, @now - due_since AS age
