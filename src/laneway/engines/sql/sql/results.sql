-- Outcomes, progress, signals and followers.

-- name: kept_write
INSERT INTO kept (id, topic, slot, until, generated, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id, topic, slot)
        DO UPDATE SET until = excluded.until, generated = excluded.generated, body = excluded.body;

-- name: kept_read
SELECT k.id, k.topic, k.slot, k.until, k.body FROM (VALUES (?, ?)) v
  {join} kept k ON k.id = v.column1 AND k.topic = v.column2;

-- name: kept_topics
-- The topics of outcomes that are found by their generated ids alone.
SELECT k.id, k.topic FROM {array ?} j
  {join} kept k ON k.id = j.value AND k.slot = 0 AND k.generated = 1;

-- name: kept_delete
DELETE FROM kept WHERE id = ? AND topic = ?;

-- name: kept_forget
DELETE FROM kept WHERE (id, topic, slot) IN (SELECT id, topic, slot FROM kept
    WHERE until BETWEEN ? AND ? LIMIT ?);

-- name: came_read
SELECT c.mid, c.n FROM (VALUES (?, ?)) v {join} came c ON c.mid = v.column1 AND c.n = v.column2;

-- name: came_insert
INSERT INTO came (mid, n) VALUES (?, ?) ON CONFLICT (mid, n) DO NOTHING;

-- name: came_delete
DELETE FROM came WHERE mid = ?;

-- name: follower_write
INSERT INTO follower (id, topic, body) VALUES (?, ?, ?);

-- name: followers_any
SELECT 1 FROM follower LIMIT 1;

-- name: followers_of
SELECT body FROM follower WHERE id = ? AND topic = ? ORDER BY no;

-- name: followers_delete
DELETE FROM follower WHERE id = ? AND topic = ?;
