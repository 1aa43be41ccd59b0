-- Statements in the text of SQLite alone; the others are in `engines/sql/sql`.

-- name: lane_rates_big
-- The lanes with the largest backlogs. Rows are limited before the join: the planner would sort.
SELECT l.tier_queue, l.place, l.seen, l.lately, l.before
  FROM (SELECT lane AS number FROM lane INDEXED BY lane_big WHERE big IS NOT NULL
         ORDER BY big DESC LIMIT ?) first
 CROSS JOIN lane l ON l.lane = first.number;

-- name: group_heads
-- The first runnable lanes of these groups behind the virtual time of the first one, as JSON; only
-- the index is read.
SELECT j.value, (SELECT json_array(min(vt), json_group_array(lane)) FROM (SELECT lane, vt FROM lane
    WHERE tier_queue = -j.value AND place = 1 ORDER BY vt, lane LIMIT ?3)) FROM json_each(?1) j;

-- name: own_set_with_code_tier
-- A set that names a tier, and how many topics share it.
SELECT no, uses FROM own_set WHERE json_extract(layers, '$.code.tier') = ? AND uses > 0 LIMIT 1;

-- name: own_set_with_operator_tier
SELECT no, uses FROM own_set WHERE json_extract(layers, '$.operator.tier') = ? AND uses > 0 LIMIT 1;

-- name: message_move
-- The columns that change while a message is stored. It exists; the last two columns are only named
-- because they must not be NULL.
INSERT INTO message (mid, lane, state, rank, seq, since, expires, serial, attempts, deliveries,
        suspect, joined, parts, odd, published, body)
    VALUES (?, ?, ?, ?, ?, ?, nullif(?, 0), ?, ?, ?, ?, ?, ?, 1, 0, x'')
    ON CONFLICT (mid) DO UPDATE SET lane = excluded.lane, state = excluded.state,
        rank = excluded.rank, seq = excluded.seq, since = excluded.since,
        expires = excluded.expires, serial = excluded.serial, odd = 1,
        attempts = excluded.attempts, deliveries = excluded.deliveries,
        suspect = excluded.suspect, joined = excluded.joined, parts = excluded.parts;

-- name: dead_insert
INSERT OR REPLACE INTO dead (mid, topic, died, until, reason, error)
    VALUES (?, ?, ?, ?, ?, nullif(?, 0));

-- name: workers_list
-- ?3: a pool, or NULL: all
SELECT facts, started_us, beat_us, dead_us FROM workers
 WHERE id > ?1 AND until_us > ?2
   AND (?3 IS NULL OR EXISTS (SELECT 1 FROM json_each(workers.pools) p WHERE p.value = ?3))
 ORDER BY id LIMIT ?4;
