-- Policies of exact topics: one row each, so that setting one costs the same at 1 topic and at
-- 1,000,000. `policy` has the policies of patterns only.

-- the own policies of topics, by layer (JSON); equal sets share a row
CREATE TABLE own_set (
    -- never reused: processes cache sets by number
    no     INTEGER PRIMARY KEY AUTOINCREMENT,
    layers TEXT NOT NULL UNIQUE,
    uses   INTEGER NOT NULL              -- the topics that have this set
);

CREATE TABLE own_policy (topic TEXT PRIMARY KEY, own INTEGER NOT NULL) WITHOUT ROWID;

-- A lane has the number of its topic's set (0: none), so that it is read together with the lane.
ALTER TABLE lane ADD COLUMN own INTEGER NOT NULL DEFAULT 0;

-- How many topics have own policies; while it is 0 none are read.
ALTER TABLE shard ADD COLUMN own INTEGER NOT NULL DEFAULT 0;

CREATE TEMP TABLE own_before AS
    SELECT pattern AS topic, json_group_object(layer, json(fields)) AS layers
      FROM (SELECT pattern, layer, fields FROM policy WHERE pattern <> '*'
          AND substr(pattern, -2) <> '.*' ORDER BY pattern, layer)
     GROUP BY pattern;
INSERT INTO own_set (layers, uses) SELECT layers, count(*) FROM own_before GROUP BY layers;
INSERT INTO own_policy (topic, own) SELECT topic, no FROM own_before JOIN own_set USING (layers);
DROP TABLE own_before;
DELETE FROM policy WHERE pattern <> '*' AND substr(pattern, -2) <> '.*';
UPDATE lane SET own = coalesce((SELECT own FROM own_policy
    WHERE topic = coalesce(lane.rule, lane.name)), 0);
UPDATE shard SET own = (SELECT count(*) FROM own_policy), policy_version = policy_version + 1;
