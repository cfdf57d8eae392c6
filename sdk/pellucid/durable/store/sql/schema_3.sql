-- Version 3: conversations. Only runs that were submitted with one are in them. The table of runs is as it was, because
-- workers of version 2 may be using it.

CREATE TABLE conversations (
    id TEXT PRIMARY KEY,
    last_turn BIGINT NOT NULL,
    ended_to BIGINT NOT NULL DEFAULT 0,  -- runs up to this turn have ended; perhaps later ones, too
    updated_at DOUBLE PRECISION NOT NULL -- when a run was submitted, or the next one started
);

CREATE TABLE turns (
    run_id TEXT PRIMARY KEY,
    conversation TEXT NOT NULL,
    turn BIGINT NOT NULL,                -- order of the runs, with gaps
    UNIQUE (conversation, turn)
);

CREATE INDEX conversations_by_update ON conversations (updated_at);

UPDATE schema_version SET version = 3;
