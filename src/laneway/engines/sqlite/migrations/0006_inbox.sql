-- Messages that were published one at a time and are not in their lanes yet. Each is one row on one
-- page, where a message in its lane changes four pages. See inbox.py.

CREATE TABLE inbox (
    mid       INTEGER PRIMARY KEY,       -- as in `message`
    published INTEGER NOT NULL,
    topic     TEXT NOT NULL,
    rank      INTEGER NOT NULL,          -- as in `message`
    headers   TEXT,
    body      BLOB NOT NULL
);
