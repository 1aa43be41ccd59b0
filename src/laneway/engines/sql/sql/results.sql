-- Outcomes, progress, signals and followers.

-- name: kept_write
INSERT INTO kept (id, slot, until, body) VALUES (?, ?, ?, ?)
    ON CONFLICT (id, slot) DO UPDATE SET until = excluded.until, body = excluded.body;

-- name: kept_read
SELECT j.key, k.slot, k.body FROM {array ?} j {join} kept k ON k.id = j.value
    WHERE k.until > ?;

-- name: kept_delete
DELETE FROM kept WHERE id = ?;

-- name: kept_forget
DELETE FROM kept WHERE (id, slot) IN (SELECT id, slot FROM kept
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
SELECT topic, body FROM follower WHERE id = ? ORDER BY no;

-- name: followers_delete
DELETE FROM follower WHERE id = ?;
