-- What happened so far, by tier and policy pattern, and the history that is made of it.

ALTER TABLE shard ADD COLUMN tallies BLOB;   -- MessagePack, see tallies.py; NULL: nothing counted

CREATE TABLE history (                       -- a bounded number of rows, which are replaced
    name   TEXT PRIMARY KEY,
    record BLOB NOT NULL                     -- see laneway/history/records.py
) WITHOUT ROWID;
