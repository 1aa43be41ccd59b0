-- What is stored under a message's id: its outcome (slot 0) and its last progress report (slot 1).

CREATE TABLE kept (
    id    TEXT NOT NULL,
    slot  INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body  BLOB NOT NULL,
    PRIMARY KEY (id, slot)
) WITHOUT ROWID;
CREATE INDEX kept_until ON kept (until);

-- The signals that a blocked message has received; their bodies are in `part`.
CREATE TABLE came (mid INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (mid, n)) WITHOUT ROWID;

-- The followers that a message's end notice carries.
CREATE TABLE follower (no INTEGER
    PRIMARY KEY, id TEXT NOT NULL, topic TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX follower_id ON follower (id);
