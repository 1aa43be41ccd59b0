-- Limits per key inside a topic.

CREATE TABLE key_state (                 -- what a key has used, see shared/key_limits.py
    lane   INTEGER NOT NULL,
    key    TEXT NOT NULL,
    leased INTEGER NOT NULL,
    parked INTEGER NOT NULL,             -- messages that its limits have parked
    tat    INTEGER NOT NULL,
    wake   INTEGER,
    PRIMARY KEY (lane, key)
) WITHOUT ROWID;
CREATE INDEX key_timer ON key_state (wake) WHERE wake IS NOT NULL;

CREATE TABLE key_parked (                -- the messages that the limits of their keys have parked
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, key, rank, pos, seq)
) WITHOUT ROWID;

ALTER TABLE lease ADD COLUMN slot TEXT;  -- the key that it holds a slot of
