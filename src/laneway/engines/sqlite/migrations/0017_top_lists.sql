-- Top lists of topics by what arrived and failed lately, and by dead letters.

CREATE TABLE recent (                    -- a bounded number of rows, see shared/recent.py
    kind  INTEGER NOT NULL,
    topic TEXT NOT NULL,
    score REAL NOT NULL,
    PRIMARY KEY (kind, topic)
) WITHOUT ROWID;
CREATE INDEX recent_score ON recent (kind, score);

CREATE TABLE dead_count (                -- the dead letters of each topic that has any
    topic   TEXT PRIMARY KEY,
    letters INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX dead_count_letters ON dead_count (letters);
INSERT INTO dead_count SELECT topic, count(*) FROM dead GROUP BY topic;
