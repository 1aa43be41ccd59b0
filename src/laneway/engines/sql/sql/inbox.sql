-- The inbox: messages that were published one at a time and are not in their lanes yet.

-- name: inbox_put
-- Nothing is inserted if the policies are not those with which the message needs no decision.
-- ?8: a worker waits for messages. The message is leased to it, unless another one waits, or the
-- inbox has so many that somebody should empty it.
INSERT INTO inbox (mid, published, topic, rank, headers, body, fence)
SELECT {greatest}(s.seq, coalesce((SELECT max(mid) FROM inbox), 0), ?1) + 1,
       ?2, ?3, ?4, nullif(?5, ''), ?6,
       CASE WHEN ?8 = 1 AND (SELECT count(*) FROM inbox) < 16
             AND NOT EXISTS (SELECT 1 FROM inbox WHERE fence IS NULL)
             AND NOT EXISTS (SELECT 1 FROM lane
                              WHERE name = ?3 AND (ready > 0 OR more IS NOT NULL))
            THEN {greatest}(s.fence, coalesce((SELECT max(fence) FROM inbox), 0), ?1) + 1 END
  FROM shard s
 WHERE s.policy_version = ?7
   AND (s.own = 0 OR NOT EXISTS (SELECT 1 FROM own_policy WHERE topic = ?3))
RETURNING mid,
          coalesce((SELECT mid FROM inbox WHERE fence IS NULL ORDER BY mid LIMIT 1),
                   CASE WHEN fence IS NULL THEN mid END),
          (SELECT ready FROM lane WHERE name = ?3), fence;

-- name: inbox_read
SELECT mid, published, topic, rank, headers, body, fence FROM inbox ORDER BY mid;

-- name: inbox_lanes
-- The lanes to which its messages go.
SELECT {lane} FROM (SELECT DISTINCT topic FROM inbox) i {join} lane l ON l.name = i.topic;

-- name: inbox_clear
DELETE FROM inbox;

-- name: inbox_has_any
SELECT 1 FROM inbox LIMIT 1;

-- name: shard_changed
SELECT now, EXISTS (SELECT 1 FROM inbox) FROM shard;

-- name: nonce_read
SELECT nonce FROM shard WHERE one = 1;
