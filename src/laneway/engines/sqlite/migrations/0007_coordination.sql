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

CREATE TABLE elections (                 -- one row each; it stays when nobody holds the term
    name   TEXT PRIMARY KEY,
    record TEXT NOT NULL                 -- JSON, see cluster/term_store.py
) WITHOUT ROWID;
