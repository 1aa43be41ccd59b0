-- What is kept under a message's id: how it ended (slot 0), and what was noted of it meanwhile
-- (slot 1).

CREATE TABLE kept (
    id    TEXT NOT NULL,
    slot  INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body  BLOB NOT NULL,
    PRIMARY KEY (id, slot)
) WITHOUT ROWID;
CREATE INDEX kept_until ON kept (until);

-- Which signals a message has got that waits for some; what they brought is in part.
CREATE TABLE came (mid INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (mid, n)) WITHOUT ROWID;

-- What is to be told when a message ends of which an outcome is kept.
CREATE TABLE follower (no INTEGER
    PRIMARY KEY, id TEXT NOT NULL, topic TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX follower_id ON follower (id);
