-- The programs that serve this namespace, and who leads what.

CREATE TABLE workers (                   -- one row each; every heartbeat replaces it
    id         TEXT PRIMARY KEY,
    pools      TEXT NOT NULL,            -- the names of the pools that it serves (JSON)
    started_us INTEGER NOT NULL,
    beat_us    INTEGER NOT NULL,         -- its last heartbeat
    dead_us    INTEGER NOT NULL,         -- when it counts as dead without another one
    until_us   INTEGER NOT NULL,         -- when its row may be deleted
    facts      TEXT NOT NULL             -- JSON, see engines/base/coordination.py
) WITHOUT ROWID;
CREATE INDEX workers_until ON workers (until_us);

CREATE TABLE elections (
    name     TEXT PRIMARY KEY,
    term     INTEGER NOT NULL,           -- a fencing token: it only grows
    holder   TEXT,
    until_us INTEGER NOT NULL,
    state    TEXT NOT NULL,
    asked_us INTEGER,                    -- when the holder was asked to step down
    note     TEXT
) WITHOUT ROWID;
