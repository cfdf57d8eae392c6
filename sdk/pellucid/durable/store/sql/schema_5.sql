-- Revision 5: retries of passes, versions of code, workers, and indexes of lists. It only adds, so that processes of
-- version 4 go on with the same store: `schema_version` stays at 4. No table of theirs gets a column, because PostgreSQL
-- refuses the statements then that they have prepared.

-- A row is a run whose passes fail, in a row, without a step in between. It stays when the run goes on, as its last error.
CREATE TABLE IF NOT EXISTS retries (
    run_id TEXT PRIMARY KEY,
    attempts INTEGER NOT NULL,           -- passes that failed in a row without a new step
    since DOUBLE PRECISION NOT NULL,     -- when the first of them failed
    failed_at DOUBLE PRECISION NOT NULL, -- when the latest failed
    next_at DOUBLE PRECISION,            -- when the run is due again; NULL if it is not retried
    seq BIGINT NOT NULL,                 -- of the run, when the latest failed
    fence BIGINT NOT NULL,               -- claim of the latest
    error_type TEXT NOT NULL,
    error TEXT NOT NULL                  -- redacted
);

-- A row is a run that only workers of one version of its agent may continue.
CREATE TABLE IF NOT EXISTS run_versions (
    run_id TEXT PRIMARY KEY,
    version TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS workers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    version TEXT,                        -- of its agents, if it names one
    agents TEXT NOT NULL,                -- names, as JSON
    started_at DOUBLE PRECISION NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL,
    slots INTEGER NOT NULL,              -- runs at the same time
    drain_requested_at DOUBLE PRECISION  -- when an operator asked it to claim nothing more and to end
);

CREATE INDEX IF NOT EXISTS workers_by_name ON workers (name);
CREATE INDEX IF NOT EXISTS runs_suspected ON runs (due_at) WHERE expired_leases > 0 AND lease_owner IS NOT NULL;
CREATE INDEX IF NOT EXISTS runs_by_agent ON runs (agent, created_at, id);

CREATE TABLE IF NOT EXISTS schema_revision (revision INTEGER NOT NULL);
DELETE FROM schema_revision;
INSERT INTO schema_revision (revision) VALUES (5);
