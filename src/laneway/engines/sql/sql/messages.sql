-- Messages: their rows, the order of those that are ready, their keys and ids.

-- name: messages_by_number
SELECT {message} FROM {array ?} j {join} message m ON m.mid = j.value;

-- name: messages_state
UPDATE message SET state = ? WHERE mid IN (SELECT value FROM {array ?} j);

-- name: messages_bury
-- Leased messages become dead letters, see `messages.bury`.
UPDATE message SET lane = 0, state = 3, odd = 1, deliveries = deliveries + 1,
    attempts = attempts + 1 WHERE mid IN (SELECT value FROM {array ?} j);

-- name: messages_with_headers
SELECT {message} FROM {array ?} j {join} message m ON m.mid = j.value
    WHERE m.headers IS NOT NULL;

-- name: message_content
INSERT INTO message (mid, headers, body, lane, state, rank, seq, since, published, serial, odd)
    VALUES (?, nullif(?, 0), ?, 0, 0, 0, 0, 0, 0, 0, 0)
    ON CONFLICT (mid) DO UPDATE SET headers = excluded.headers, body = excluded.body;

-- name: messages_end
DELETE FROM message WHERE mid BETWEEN ? AND ?;

-- name: messages_sticky
UPDATE message SET sticky = 1 WHERE mid IN (SELECT value FROM {array ?} j);

-- name: message_topic
UPDATE message SET topic = ? WHERE mid = ?;

-- name: messages_delete
DELETE FROM message WHERE mid IN (SELECT value FROM {array ?} j);

-- name: message_at
-- A message with a generated id: where its topic can be found.
SELECT m.lane, m.state, m.topic FROM message m WHERE m.mid = ? AND m.id IS NULL;

-- name: ready_insert
INSERT INTO ready (lane, rank, pos, seq, mid) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (lane, rank, pos, seq) DO UPDATE SET mid = excluded.mid;

-- name: ready_insert_new
-- The ready ones among the messages that were just inserted.
INSERT INTO ready (lane, rank, pos, seq, mid)
    SELECT lane, rank, CASE WHEN rank & 1 = 1 THEN since ELSE -seq END, seq, mid
      FROM message WHERE mid BETWEEN ? AND ? AND state = 0;

-- name: parked_insert_new
-- The same of those that are parked behind the heads of their serial keys.
INSERT INTO parked (lane, key, rank, pos, seq, mid)
    SELECT lane, CASE WHEN topic IS NULL THEN key ELSE topic || {char}(31) || key END, rank,
           CASE WHEN rank & 1 = 1 THEN since ELSE -seq END, seq, mid
      FROM message WHERE mid BETWEEN ? AND ? AND state = 2;

-- name: ready_delete
DELETE FROM ready WHERE (lane, rank, pos, seq) IN (SELECT * FROM (VALUES (?, ?, ?, ?)));

-- name: ready_delete_head
-- The messages of a lane from its first place up to one: those that were just delivered.
DELETE FROM ready WHERE lane = ? AND (rank, pos) >= (?, ?) AND (rank, pos, seq) <= (?, ?, ?);

-- name: event_insert
INSERT INTO event (at, kind, mid) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: retention_ends
-- The same of several dead letters (JSON list of numbers) at one time.
INSERT INTO event (at, kind, mid) SELECT ?, ?, value FROM {array ?} j WHERE true
    ON CONFLICT DO NOTHING;

-- name: event_delete
DELETE FROM event WHERE (at, kind, mid) IN (SELECT * FROM (VALUES (?, ?, ?)));

-- name: timer_write
-- A timer that is earlier stays.
INSERT INTO timer (lane, at, turn) VALUES (?, ?, ?)
    ON CONFLICT (lane) DO UPDATE SET at = {least}(timer.at, excluded.at),
        turn = {least}(timer.turn, excluded.turn);

-- name: timer_delete
DELETE FROM timer WHERE lane IN (VALUES (?));

-- name: timers_due
-- The lanes with the earliest timers; ?1 is the first time.
SELECT lane FROM timer WHERE turn BETWEEN ?1 AND ?2 ORDER BY turn, lane LIMIT ?3;

-- name: timers_due_lately
-- Those with the latest ones.
SELECT lane FROM timer WHERE turn BETWEEN ?1 AND ?2 ORDER BY turn DESC, lane DESC LIMIT ?3;

-- name: messages_due
-- The first delayed messages of these lanes, ?3 of each.
SELECT m.lane, m.mid FROM {array ?1} j {join} message m ON m.mid IN (
    SELECT d.mid FROM message d WHERE d.lane = j.value AND d.state = 1 AND d.since <= ?2
     ORDER BY d.since, d.mid LIMIT ?3);

-- name: timers_move
-- To the first delayed message of each of these lanes; to the end of time, if one has none against
-- its count. A lane whose first one is due now (?2) goes behind those that have waited longer.
UPDATE timer SET (at, turn) = (SELECT f.at, {greatest}(f.at, ?2) FROM (SELECT coalesce((
    SELECT d.since FROM message d WHERE d.lane = timer.lane
       AND d.state = 1 AND d.since >= timer.at ORDER BY d.since LIMIT 1), 4611686018427387904)
    AS at) f)
 WHERE lane IN (SELECT value FROM {array ?1} j);

-- name: events_due
SELECT at, kind, mid FROM event WHERE at BETWEEN ? AND ? ORDER BY at, kind, mid LIMIT ?;

-- name: lease_end_insert
INSERT INTO lease_end (at, first, last) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: lease_end_delete
DELETE FROM lease_end WHERE (at, first) IN (SELECT * FROM (VALUES (?, ?)));

-- name: lease_ends_due
SELECT at, first, last FROM lease_end WHERE at BETWEEN ? AND ? ORDER BY at, first LIMIT ?;

-- name: lease_ends_forget
-- Of the next ends, those of leases that are all settled.
DELETE FROM lease_end WHERE (at, first) IN (
    SELECT e.at, e.first FROM (
        SELECT at, first, last FROM lease_end WHERE at > ? ORDER BY at, first LIMIT ?
    ) e WHERE NOT EXISTS (SELECT 1 FROM lease l WHERE l.fence BETWEEN e.first AND e.last));

-- name: serial_keys_read
SELECT k.lane, k.key, k.head, k.held, k.first_rank, k.first_pos FROM (VALUES (?, ?)) v
  {join} serial_key k ON k.lane = v.column1 AND k.key = v.column2;

-- name: serial_key_write
INSERT INTO serial_key (lane, key, head, held, first_rank, first_pos) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (lane, key) DO UPDATE SET head = excluded.head, held = excluded.held,
        first_rank = excluded.first_rank, first_pos = excluded.first_pos;

-- name: serial_key_hold
-- The heads of these keys are leased. The first places do not change.
INSERT INTO serial_key (lane, key, head, held, first_rank, first_pos)
    VALUES (?, ?, ?, 1, -9007199254740992, 0)
    ON CONFLICT (lane, key) DO UPDATE SET head = excluded.head, held = 1;

-- name: serial_key_delete
DELETE FROM serial_key WHERE (lane, key) IN (SELECT * FROM (VALUES (?, ?)));

-- name: parked_insert
INSERT INTO parked (lane, key, rank, pos, seq, mid) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (lane, key, rank, pos, seq) DO UPDATE SET mid = excluded.mid;

-- name: parked_delete
DELETE FROM parked WHERE (lane, key, rank, pos, seq) IN (SELECT * FROM (VALUES (?, ?, ?, ?, ?)));

-- name: parked_firsts
-- The first parked message of each of these serial keys.
SELECT v.column1, v.column2, (SELECT p.mid FROM parked p
        WHERE p.lane = v.column1 AND p.key = v.column2
          AND (p.rank, p.pos) >= (k.first_rank, k.first_pos)
        ORDER BY p.rank, p.pos, p.seq LIMIT 1)
  FROM (VALUES (?, ?)) v
  {join} serial_key k ON k.lane = v.column1 AND k.key = v.column2;

-- name: merge_keys_read
SELECT k.lane, k.mkey, k.mid FROM (VALUES (?, ?)) v
  {join} merge_key k ON k.lane = v.column1 AND k.mkey = v.column2;

-- name: merge_key_write
INSERT INTO merge_key (lane, mkey, mid) VALUES (?, ?, ?) ON CONFLICT (lane, mkey)
    DO UPDATE SET mid = excluded.mid;

-- name: merge_key_delete
DELETE FROM merge_key WHERE (lane, mkey) IN (SELECT * FROM (VALUES (?, ?)));

-- name: edges_read
SELECT e.topic, e.mkey, e.until FROM (VALUES (?, ?)) v
  {join} edge e ON e.topic = v.column1 AND e.mkey = v.column2;

-- name: edge_write
INSERT INTO edge (topic, mkey, until) VALUES (?, ?, ?) ON CONFLICT (topic, mkey)
    DO UPDATE SET until = excluded.until;

-- name: edges_forget
DELETE FROM edge WHERE (topic, mkey) IN (SELECT topic, mkey FROM edge
    WHERE until BETWEEN ? AND ? LIMIT ?);

-- name: parts_read
SELECT n, body FROM part WHERE mid = ? ORDER BY n;

-- name: parts_of
SELECT p.mid, p.body FROM {array ?} j {join} part p ON p.mid = j.value ORDER BY p.mid, p.n;

-- name: part_insert
INSERT INTO part (mid, n, body) VALUES (?, ?, ?) ON CONFLICT (mid, n) DO NOTHING;

-- name: parts_delete
DELETE FROM part WHERE mid IN (SELECT value FROM {array ?} j);

-- name: ident_read
SELECT mid, until FROM ident WHERE id = ? AND topic = ?;

-- name: idents_read
SELECT i.id, i.topic, i.mid, i.alias, i.until FROM (VALUES (?, ?)) v
  {join} ident i ON i.id = v.column1 AND i.topic = v.column2;

-- name: ident_write
INSERT INTO ident (id, topic, mid, alias, until)
    VALUES (?, ?, nullif(?, 0), ?, nullif(?, 0))
    ON CONFLICT (id, topic)
        DO UPDATE SET mid = excluded.mid, alias = excluded.alias, until = excluded.until;

-- name: ident_delete
DELETE FROM ident WHERE (id, topic) IN (SELECT * FROM (VALUES (?, ?)));

-- name: idents_joined
SELECT id, topic FROM ident WHERE mid = ? AND alias = 1;

-- name: idents_joined_to
SELECT i.mid, i.id, i.topic
FROM {array ?} j {join} ident i ON i.mid = j.value AND i.alias = 1;

-- name: idents_forget
DELETE FROM ident WHERE (id, topic) IN (SELECT id, topic FROM ident
    WHERE until BETWEEN ? AND ? LIMIT ?);

-- name: note_read
SELECT unhandled, tries, history FROM note WHERE mid = ?;

-- name: notes_read
SELECT n.mid, n.unhandled, n.tries, n.history FROM (VALUES (?)) v
  {join} note n ON n.mid = v.column1;

-- name: note_write
INSERT INTO note (mid, unhandled, tries, history) VALUES (?, nullif(?, 0), ?, ?)
    ON CONFLICT (mid) DO UPDATE SET unhandled = excluded.unhandled, tries = excluded.tries,
        history = excluded.history;

-- name: note_reset
-- After a redrive: no worker was without a handler yet.
UPDATE note SET unhandled = NULL, tries = 0 WHERE mid = ?;

-- name: note_delete
DELETE FROM note WHERE mid IN (VALUES (?));

-- name: dead_read
SELECT no, mid, topic, died, until, reason, error FROM dead WHERE mid = ?;

-- name: dead_letters_read
SELECT d.mid, d.topic, d.died, d.until, d.reason, d.error FROM (VALUES (?)) v
  {join} dead d ON d.mid = v.column1;

-- name: dead_delete
DELETE FROM dead WHERE mid IN (VALUES (?));

-- name: victims
-- The first messages of a lane that may be dropped, of its lowest priority below a rank, with the
-- least rank of that priority; none may be NULL. `ready` has them in the order of their since,
-- except those at the front. ?5 is the first place in the rank ?4, as far as it is known; the last
-- column is the first place that was found.
WITH last AS (SELECT (max(x.rank) >> 1) * 2 AS front FROM (
    SELECT max(r.rank) AS rank FROM ready r WHERE r.lane = ?1 AND r.rank < ?2
    UNION ALL SELECT max(m.rank) FROM message m
     WHERE m.lane = ?1 AND m.state = 1 AND m.state IN (1, 2) AND m.rank < ?2
    UNION ALL SELECT max(m.rank) FROM message m
     WHERE m.lane = ?1 AND m.state = 2 AND m.state IN (1, 2) AND m.rank < ?2) x),
first AS (SELECT l.front, (SELECT r.pos FROM ready r WHERE r.lane = ?1 AND r.rank = l.front + 1
       AND r.pos >= CASE WHEN l.front + 1 = ?4 THEN ?5 ELSE -4611686018427387904 END
     ORDER BY r.pos LIMIT 1) AS pos FROM last l)
SELECT v.mid, f.front, v.since, v.seq, v.size, f.pos FROM first f LEFT JOIN (
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size
          FROM ready r {join} message m ON m.mid = r.mid
         WHERE r.lane = ?1 AND r.rank = (SELECT front + 1 FROM last)
           AND r.pos >= (SELECT pos FROM first) AND {unheld}
         ORDER BY r.pos, r.seq LIMIT ?3) v0
    UNION ALL
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size
          FROM ready r {join} message m ON m.mid = r.mid
         WHERE r.lane = ?1 AND r.rank = (SELECT front FROM last) AND {unheld}
         ORDER BY m.since, r.seq LIMIT ?3) v1
    UNION ALL
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size FROM message m
         WHERE m.lane = ?1 AND m.state = 1 AND m.state IN (1, 2)
           AND m.rank = (SELECT front FROM last) AND {unheld}
         ORDER BY m.since, m.seq LIMIT ?3) v2
    UNION ALL
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size FROM message m
         WHERE m.lane = ?1 AND m.state = 1 AND m.state IN (1, 2)
           AND m.rank = (SELECT front + 1 FROM last) AND {unheld}
         ORDER BY m.since, m.seq LIMIT ?3) v3
    UNION ALL
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size FROM message m
         WHERE m.lane = ?1 AND m.state = 2 AND m.state IN (1, 2)
           AND m.rank = (SELECT front FROM last) AND {unheld}
         ORDER BY m.since, m.seq LIMIT ?3) v4
    UNION ALL
    SELECT * FROM (SELECT m.mid, m.since, m.seq, length(m.body) AS size FROM message m
         WHERE m.lane = ?1 AND m.state = 2 AND m.state IN (1, 2)
           AND m.rank = (SELECT front + 1 FROM last) AND {unheld}
         ORDER BY m.since, m.seq LIMIT ?3) v5) v ON v.mid > 0
 ORDER BY v.since, v.seq LIMIT ?3;

-- name: victims_in_bucket
-- The same of a topic in a bucket, of several priorities.
SELECT m.mid, (m.rank >> 1) * 2, m.since, m.seq, length(m.body), NULL FROM message m
 WHERE m.topic = ? AND m.state < 3 AND m.rank < ? AND {unheld}
   AND {waits}
 ORDER BY m.rank >> 1 DESC, m.since, m.seq LIMIT ?;

-- name: ready_next_rank
SELECT rank FROM ready WHERE lane = ? AND rank > ? ORDER BY rank LIMIT 1;

-- name: aside_next_rank
SELECT rank FROM message WHERE lane = ?1 AND state = ?2 AND state IN (1, 2) AND rank > ?3
    ORDER BY rank LIMIT 1;

-- name: topic_waiting
-- How many messages of a topic wait in a bucket, and their size.
SELECT count(*),
       coalesce(sum(length(m.body) + CASE WHEN m.parts > 0 THEN (SELECT sum(length(p.body))
           FROM part p WHERE p.mid = m.mid) ELSE 0 END), 0)
  FROM message m
 WHERE m.lane = ? AND m.topic = ? AND m.state < 3 AND {waits};

-- name: lanes_with_ranks
-- Those of these lanes that have a ready message whose rank is between two.
SELECT j.value FROM {array ?} j
 WHERE EXISTS (SELECT 1 FROM ready r WHERE r.lane = j.value AND r.rank BETWEEN ? AND ?);
