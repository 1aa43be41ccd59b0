-- Limits per key: what keys have used, and the messages that are parked by it.

-- name: key_states_read
SELECT k.lane, k.key, k.leased, k.parked, k.tat, coalesce(k.wake, 0), k.first_rank, k.first_pos
  FROM (VALUES (?, ?)) v
  {join} key_state k ON k.lane = v.column1 AND k.key = v.column2;

-- name: key_state_write
INSERT INTO key_state (lane, key, leased, parked, tat, wake, first_rank, first_pos)
    VALUES (?, ?, ?, ?, ?, nullif(?, 0), ?, ?)
    ON CONFLICT (lane, key) DO UPDATE SET leased = excluded.leased, parked = excluded.parked,
        tat = excluded.tat, wake = excluded.wake, first_rank = excluded.first_rank,
        first_pos = excluded.first_pos;

-- name: key_state_delete
DELETE FROM key_state WHERE (lane, key) IN (SELECT * FROM (VALUES (?, ?)));

-- name: key_states_wake
-- The limits of a lane's keys have changed.
UPDATE key_state SET wake = ? WHERE lane = ? AND parked > 0;

-- name: key_states_parked
SELECT key FROM key_state WHERE lane = ? AND parked > 0 LIMIT ?;

-- name: keys_to_wake
SELECT lane, key FROM key_state WHERE wake BETWEEN ? AND ? ORDER BY wake LIMIT ?;

-- name: key_states_recovered
-- Delete keys that only waited until their rate has recovered.
DELETE FROM key_state WHERE (lane, key) IN (
    SELECT lane, key FROM key_state WHERE wake BETWEEN ?1 AND ?2 AND leased = 0 AND parked = 0
         AND tat <= ?3
     ORDER BY wake LIMIT ?4);

-- name: key_parked_insert
INSERT INTO key_parked (lane, key, rank, pos, seq, mid) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (lane, key, rank, pos, seq) DO UPDATE SET mid = excluded.mid;

-- name: key_parked_delete
DELETE FROM key_parked
 WHERE (lane, key, rank, pos, seq) IN (SELECT * FROM (VALUES (?, ?, ?, ?, ?)));

-- name: key_parked_firsts
-- The first message that the limits of each of these keys have parked.
SELECT v.column1, v.column2, (SELECT p.mid FROM key_parked p
        WHERE p.lane = v.column1 AND p.key = v.column2
          AND (p.rank, p.pos) >= (k.first_rank, k.first_pos)
        ORDER BY p.rank, p.pos, p.seq LIMIT 1)
  FROM (VALUES (?, ?)) v
  {join} key_state k ON k.lane = v.column1 AND k.key = v.column2;

-- name: ready_keys
-- The keys of a lane's ready messages, from a place to the end of a rank, behind some of them.
SELECT r.mid, m.key, m.topic, m.serial FROM ready r LEFT JOIN message m ON m.mid = r.mid
 WHERE r.lane = ? AND (r.rank, r.pos) >= (?, ?) AND r.rank <= ?
 ORDER BY r.rank, r.pos, r.seq LIMIT ? OFFSET ?;

-- name: folded_keys
-- The same of the first messages of a topic whose lane is a bucket, with ranks between two. The
-- search begins with the topic, because the bucket may have many others.
SELECT m.mid, m.key, m.topic, m.serial FROM message m
  {join} ready r ON r.lane = m.lane AND r.rank = m.rank
      AND r.pos = CASE WHEN m.rank & 1 = 1 THEN m.since ELSE -m.seq END AND r.seq = m.seq
 WHERE m.topic = ? AND m.state = 0 AND m.rank BETWEEN ? AND ?
 ORDER BY r.rank, r.pos, r.seq LIMIT ? OFFSET ?;

-- name: check_key_states
-- Keys whose state counts other leases or parked messages than there are, and how many there are.
WITH counted AS (
    SELECT lane, key, sum(leased) AS leased, sum(parked) AS parked
      FROM (SELECT lane, slot AS key, 1 AS leased, 0 AS parked FROM lease
             WHERE slot IS NOT NULL AND gone = 0
            UNION ALL SELECT lane, key, 0, 1 FROM key_parked) each
     GROUP BY lane, key
)
SELECT c.lane, c.key, c.leased, c.parked FROM counted c
 WHERE NOT EXISTS (SELECT 1 FROM key_state k WHERE k.lane = c.lane AND k.key = c.key
                      AND k.leased = c.leased AND k.parked = c.parked)
UNION ALL SELECT k.lane, k.key, 0, 0 FROM key_state k
 WHERE k.leased + k.parked > 0
   AND NOT EXISTS (SELECT 1 FROM counted c WHERE c.lane = k.lane AND c.key = k.key)
 LIMIT ?;
