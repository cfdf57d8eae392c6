-- Version 2: callbacks. A row is a run whose states are sent to a URL; only runs that were submitted with one have it.

CREATE TABLE callbacks (
    run_id TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,           -- times the run has waited or ended: states to deliver
    delivered_version INTEGER NOT NULL DEFAULT 0, -- the latest that the receiver has accepted
    attempts INTEGER NOT NULL DEFAULT 0,          -- of this version
    fence BIGINT NOT NULL DEFAULT 0,              -- number of attempts of all versions
    due_since DOUBLE PRECISION,                   -- when the version came, or was tried anew
    next_at DOUBLE PRECISION,                     -- time of the next attempt, while there is something to deliver
    lease_until DOUBLE PRECISION,                 -- while an attempt is being made
    dead_at DOUBLE PRECISION,                     -- when the attempts were given up
    last_error TEXT
);

CREATE INDEX callbacks_due ON callbacks (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX callbacks_dead ON callbacks (dead_at, run_id) WHERE dead_at IS NOT NULL;

UPDATE schema_version SET version = 2;
