-- Messages: their rows, the order of those that are ready, their keys and ids.

-- name: message_read
SELECT {message} FROM message m WHERE m.mid = ?;

-- name: messages_by_number
SELECT {message} FROM json_each(?) j CROSS JOIN message m ON m.mid = j.value;

-- name: message_insert_plain
-- Most messages: no key, id, ttl or delay. Costs half as much as naming every column.
INSERT INTO message (mid, lane, state, rank, seq, since, published, serial, odd, headers, body)
    VALUES (?1, ?2, 0, ?3, ?1, ?4, ?4, 0, 0, nullif(?5, ''), ?6);

-- name: message_move
UPDATE message SET lane = ?, state = ?, rank = ?, seq = ?, since = ?, expires = ?, serial = ?,
    odd = 1, attempts = ?, deliveries = ?,
       suspect = ?, joined = ?, parts = ?
 WHERE mid = ?;

-- name: message_content
UPDATE message SET headers = ?, body = ? WHERE mid = ?;

-- name: messages_end
DELETE FROM message WHERE mid BETWEEN ? AND ?;

-- name: message_sticky
UPDATE message SET sticky = 1 WHERE mid = ?;

-- name: message_topic
UPDATE message SET topic = ? WHERE mid = ?;

-- name: message_delete
DELETE FROM message WHERE mid = ?;

-- name: message_at
-- A message with a generated id: where its topic can be found.
SELECT m.lane, m.state, m.topic FROM message m WHERE m.mid = ? AND m.id IS NULL;

-- name: ready_insert
INSERT INTO ready (lane, rank, pos, seq, mid) VALUES (?, ?, ?, ?, ?);

-- name: ready_delete
DELETE FROM ready WHERE lane = ? AND rank = ? AND pos = ? AND seq = ?;

-- name: ready_delete_head
-- The messages of a lane up to one: those that were just delivered.
DELETE FROM ready WHERE lane = ? AND (rank, pos, seq) <= (?, ?, ?);

-- name: event_insert
INSERT OR IGNORE INTO event (at, kind, a, b) VALUES (?, ?, ?, nullif(?, 0));

-- name: event_delete
DELETE FROM event WHERE at = ? AND kind = ? AND a = ?;

-- name: events_due
SELECT at, kind, a, b FROM event WHERE at <= ? ORDER BY at, kind, a LIMIT ?;

-- name: serial_key_read
SELECT head, held FROM serial_key WHERE lane = ? AND key = ?;

-- name: serial_key_write
INSERT INTO serial_key (lane, key, head, held) VALUES (?, ?, ?, ?)
    ON CONFLICT (lane, key) DO UPDATE SET head = excluded.head, held = excluded.held;

-- name: serial_key_delete
DELETE FROM serial_key WHERE lane = ? AND key = ?;

-- name: parked_insert
INSERT INTO parked (lane, key, rank, pos, seq, mid) VALUES (?, ?, ?, ?, ?, ?);

-- name: parked_delete
DELETE FROM parked WHERE lane = ? AND key = ? AND rank = ? AND pos = ? AND seq = ?;

-- name: parked_first
SELECT mid FROM parked WHERE lane = ? AND key = ? ORDER BY rank, pos, seq LIMIT 1;

-- name: merge_key_read
SELECT mid FROM merge_key WHERE lane = ? AND mkey = ?;

-- name: merge_key_write
INSERT INTO merge_key (lane, mkey, mid) VALUES (?, ?, ?) ON CONFLICT (lane, mkey)
    DO UPDATE SET mid = excluded.mid;

-- name: merge_key_delete
DELETE FROM merge_key WHERE lane = ? AND mkey = ? AND mid = ?;

-- name: edge_read
SELECT until FROM edge WHERE topic = ? AND mkey = ?;

-- name: edge_write
INSERT INTO edge (topic, mkey, until) VALUES (?, ?, ?) ON CONFLICT (topic, mkey)
    DO UPDATE SET until = excluded.until;

-- name: edges_forget
DELETE FROM edge WHERE (topic, mkey) IN (SELECT topic, mkey FROM edge WHERE until <= ? LIMIT ?);

-- name: parts_read
SELECT n, body FROM part WHERE mid = ? ORDER BY n;

-- name: parts_size
SELECT coalesce(sum(length(body)), 0) FROM part WHERE mid = ?;

-- name: part_insert
INSERT INTO part (mid, n, body) VALUES (?, ?, ?);

-- name: parts_delete
DELETE FROM part WHERE mid = ?;

-- name: ident_read
SELECT mid, until FROM ident WHERE id = ? AND topic = ?;

-- name: ident_write
INSERT INTO ident (id, topic, mid, alias, until) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (id, topic)
        DO UPDATE SET mid = excluded.mid, alias = excluded.alias, until = excluded.until;

-- name: ident_delete
DELETE FROM ident WHERE id = ? AND topic = ?;

-- name: idents_joined
SELECT id, topic FROM ident WHERE mid = ? AND alias = 1;

-- name: idents_rejoin
UPDATE ident SET mid = ? WHERE mid = ? AND alias = 1;

-- name: idents_forget
DELETE FROM ident WHERE (id, topic) IN (SELECT id, topic FROM ident WHERE until <= ? LIMIT ?);

-- name: note_read
SELECT unhandled, tries, history FROM note WHERE mid = ?;

-- name: note_write
INSERT INTO note (mid, unhandled, tries, history) VALUES (?, ?, ?, ?)
    ON CONFLICT (mid) DO UPDATE SET unhandled = excluded.unhandled, tries = excluded.tries,
        history = excluded.history;

-- name: note_reset
-- After a redrive: no worker was without a handler yet.
UPDATE note SET unhandled = NULL, tries = 0 WHERE mid = ?;

-- name: note_delete
DELETE FROM note WHERE mid = ?;

-- name: dead_insert
INSERT INTO dead (mid, topic, died, until, reason, error) VALUES (?, ?, ?, ?, ?, ?);

-- name: dead_read
SELECT no, mid, topic, died, until, reason, error FROM dead WHERE mid = ?;

-- name: dead_delete
DELETE FROM dead WHERE mid = ?;

-- name: ready_victim
-- The oldest ready message of a rank whose serial key is not held. The order is by since,
SELECT m.mid, m.since, r.seq FROM ready r CROSS JOIN message m ON m.mid = r.mid
 WHERE r.lane = ? AND r.rank = ?
   AND NOT EXISTS (SELECT 1 FROM serial_key k WHERE m.serial AND k.lane = r.lane
       AND k.key = CASE WHEN m.topic IS NULL THEN m.key ELSE m.topic || char(31) || m.key END
                   AND k.head = r.mid AND k.held)
 ORDER BY r.pos, r.seq LIMIT 1;

-- name: ready_victim_at_front
-- but not for messages at the front.
SELECT m.mid, m.since, r.seq FROM ready r CROSS JOIN message m ON m.mid = r.mid
 WHERE r.lane = ? AND r.rank = ?
   AND NOT EXISTS (SELECT 1 FROM serial_key k WHERE m.serial AND k.lane = r.lane
       AND k.key = CASE WHEN m.topic IS NULL THEN m.key ELSE m.topic || char(31) || m.key END
                   AND k.head = r.mid AND k.held)
 ORDER BY m.since, r.seq LIMIT 1;

-- name: aside_victim
SELECT m.mid, m.since, m.seq FROM message m
 WHERE m.lane = ?1 AND m.state = ?2 AND m.state IN (1, 2) AND m.rank = ?3
   AND NOT EXISTS (SELECT 1 FROM serial_key k WHERE m.serial AND k.lane = m.lane
       AND k.key = CASE WHEN m.topic IS NULL THEN m.key ELSE m.topic || char(31) || m.key END
                   AND k.head = m.mid AND k.held)
 ORDER BY m.since, m.seq LIMIT 1;

-- name: ready_next_rank
SELECT rank FROM ready WHERE lane = ? AND rank > ? ORDER BY rank LIMIT 1;

-- name: ready_prior_rank
SELECT rank FROM ready WHERE lane = ? AND rank < ? ORDER BY rank DESC LIMIT 1;

-- name: aside_next_rank
SELECT rank FROM message WHERE lane = ?1 AND state = ?2 AND state IN (1, 2) AND rank > ?3
    ORDER BY rank LIMIT 1;

-- name: aside_prior_rank
SELECT rank FROM message WHERE lane = ?1 AND state = ?2 AND state IN (1, 2) AND rank < ?3
    ORDER BY rank DESC LIMIT 1;

-- name: topic_waiting
-- How many messages of a topic in a bucket wait, and their size.
SELECT count(*),
       coalesce(sum(length(m.body) + CASE WHEN m.parts THEN (SELECT sum(length(p.body)) FROM part p
           WHERE p.mid = m.mid) ELSE 0 END), 0)
  FROM message m
 WHERE m.topic = ? AND m.state < 3 AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.mid = m.mid
     AND NOT l.gone);

-- name: topic_victim
SELECT m.mid, -(m.rank >> 1), m.since, m.seq FROM message m
 WHERE m.topic = ? AND m.state < 3 AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.mid = m.mid)
   AND NOT EXISTS (SELECT 1 FROM serial_key k WHERE m.serial AND k.lane = m.lane
       AND k.key = CASE WHEN m.topic IS NULL THEN m.key ELSE m.topic || char(31) || m.key END
                   AND k.head = m.mid AND k.held)
 ORDER BY -(m.rank >> 1), m.since, m.seq LIMIT 1;
