-- The last batch that each spool of a producer has forwarded.

CREATE TABLE forwarded (
    spool TEXT PRIMARY KEY,
    batch TEXT NOT NULL,
    taken BLOB NOT NULL,                 -- its messages that this file has, see forwarding.py
    at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX forwarded_at ON forwarded (at_us);
