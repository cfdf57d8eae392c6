-- Revision 6: scores that tokens have given. It only adds, as revision 5 does. A process of an earlier revision that deletes
-- a run leaves its rows here.

CREATE TABLE IF NOT EXISTS given_scores (
    run_id TEXT NOT NULL,
    token TEXT NOT NULL,                 -- its digest
    name TEXT NOT NULL,
    score TEXT NOT NULL,                 -- as JSON
    PRIMARY KEY (run_id, token, name)
);

UPDATE schema_revision SET revision = 6;
