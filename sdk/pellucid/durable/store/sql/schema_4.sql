-- Version 4: budgets. A row is an account of one period. What is reserved or has expired is not in it, but is the sum
-- of its reservations: those whose time is over count as spent until they are settled.

CREATE TABLE budgets (
    name TEXT NOT NULL,
    period TEXT NOT NULL,                  -- such as 2026-11-27; empty for a budget without periods
    cost DOUBLE PRECISION NOT NULL DEFAULT 0,
    tokens DOUBLE PRECISION NOT NULL DEFAULT 0,
    model_calls DOUBLE PRECISION NOT NULL DEFAULT 0,
    updated_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (name, period)
);

CREATE TABLE budget_reservations (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    period TEXT NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    model_calls DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL
);

CREATE INDEX budget_reservations_by_budget ON budget_reservations (name, period);

UPDATE schema_version SET version = 4;
