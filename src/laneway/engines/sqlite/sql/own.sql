-- Statements in the text of SQLite alone; the others are in `engines/sql/sql`.

-- name: lane_rates_big
-- The lanes with the largest backlogs. Rows are limited before the join: the planner would sort.
SELECT l.tier_queue, l.place, l.seen, l.lately, l.before
  FROM (SELECT lane AS number FROM lane INDEXED BY lane_big WHERE big IS NOT NULL
         ORDER BY big DESC LIMIT ?) first
 CROSS JOIN lane l ON l.lane = first.number;

-- name: lanes_runnable
-- As the shared statement. SQLite searches an index by two columns together, but not if the second
-- one is the table's key: it would read all lanes with the same virtual time for each page.
SELECT lane, vt FROM lane WHERE tier_queue = ?1 AND place = 1 AND vt = ?2 AND lane > ?3
UNION ALL SELECT lane, vt FROM lane WHERE tier_queue = ?1 AND place = 1 AND vt > ?2
    ORDER BY vt, lane LIMIT ?4;

-- name: lanes_runnable_read
-- As the shared statement, see `lanes_runnable`.
SELECT {lane} FROM lane l WHERE l.tier_queue = ?1 AND l.place = 1 AND l.vt = ?2 AND l.lane > ?3
UNION ALL SELECT {lane} FROM lane l WHERE l.tier_queue = ?1 AND l.place = 1 AND l.vt > ?2
    ORDER BY vt, lane LIMIT ?4;

-- name: lanes_at_gate
-- As the shared statement, see `lanes_runnable`.
SELECT lane, turn FROM lane
 WHERE gate = ?1 AND tier_queue = ?2 AND place = 3 AND turn = ?3 AND lane > ?4
UNION ALL SELECT lane, turn FROM lane
 WHERE gate = ?1 AND tier_queue = ?2 AND place = 3 AND turn > ?3
    ORDER BY turn, lane LIMIT ?5;

-- name: groups_runnable
-- As the shared statement, see `lanes_runnable`.
SELECT number, vt FROM group_queue
 WHERE tier_queue = ?1 AND runnable > 0 AND vt = ?2 AND number > ?3
UNION ALL SELECT number, vt FROM group_queue WHERE tier_queue = ?1 AND runnable > 0 AND vt > ?2
    ORDER BY vt, number LIMIT ?4;

-- name: group_gates_open
-- As the shared statement, see `lanes_runnable`.
SELECT g.number, g.vt, e.vt, e.head, e.gate
  FROM group_queue g CROSS JOIN gate_entry e ON e.owner = -g.number AND e.open = 1
 WHERE g.tier_queue = ?1 AND g.open = 1 AND g.vt = ?2 AND g.number > ?3
UNION ALL SELECT g.number, g.vt, e.vt, e.head, e.gate
  FROM group_queue g CROSS JOIN gate_entry e ON e.owner = -g.number AND e.open = 1
 WHERE g.tier_queue = ?1 AND g.open = 1 AND g.vt > ?2
    ORDER BY 2, 1, 3, 4 LIMIT ?4;

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
