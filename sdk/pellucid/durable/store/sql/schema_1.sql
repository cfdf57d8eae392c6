-- Schema of a store, version 1, in both dialects; later versions add to it.
-- Times are seconds since the epoch by the database's clock. JSON is text: the database never looks into it.
-- There are no foreign keys: each insert follows an update of the run's row in the same transaction.

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('due', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    pass_no INTEGER NOT NULL DEFAULT 1,                      -- passes that ended, and one
    pending INTEGER NOT NULL DEFAULT 0 CHECK (pending >= 0), -- calls that are processing
    fence BIGINT NOT NULL DEFAULT 0,                         -- number of claims; what an older claim writes is refused
    last_seq BIGINT NOT NULL DEFAULT 0,                      -- of journal, calls and events together
    checkpoint_seq BIGINT NOT NULL DEFAULT 0,                -- last journal entry that the checkpoint contains
    lease_owner TEXT,                                        -- kept when a lease has expired, until the next claim
    lease_until DOUBLE PRECISION,                            -- while it is running
    due_at DOUBLE PRECISION,                                 -- from when it can be claimed, or could, while it is running
    expired_leases INTEGER NOT NULL DEFAULT 0,               -- in a row, without a journal entry, call or event since
    idempotency_key TEXT,
    request TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    checkpoint TEXT,
    result TEXT,
    cancel_reason TEXT,
    trace TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE calls (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    pass_no INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('external', 'approval')),
    tool TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('processing', 'completed', 'failed', 'expired', 'cancelled')),
    request TEXT NOT NULL,
    payload TEXT,
    digest TEXT,
    deadline DOUBLE PRECISION,
    heartbeat_at DOUBLE PRECISION,
    progress TEXT,
    created_at DOUBLE PRECISION NOT NULL,
    dispatched_at DOUBLE PRECISION,
    settled_at DOUBLE PRECISION,
    trace TEXT,            -- of the dispatch
    settlement_trace TEXT
);

CREATE TABLE journal (
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    fence BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run_id, seq),
    UNIQUE (run_id, key)
);

CREATE TABLE events (
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    value TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- Each change of a status is an entry in each index of it, so there are few. Leases have none: each journal entry renews
-- one, and the runs that are running are found by their status.
CREATE INDEX runs_due ON runs (due_at) WHERE status = 'due';
CREATE INDEX runs_by_status ON runs (status, created_at, id);
CREATE UNIQUE INDEX runs_by_idempotency_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX calls_of_run ON calls (run_id, seq);
CREATE INDEX calls_processing ON calls (deadline) WHERE status = 'processing';
CREATE INDEX calls_undispatched ON calls (created_at) WHERE status = 'processing' AND dispatched_at IS NULL;

CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version (version) VALUES (1);
