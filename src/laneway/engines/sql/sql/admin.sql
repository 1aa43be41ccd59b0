-- Administration: reads, and the checks of the doctor.

-- name: lanes_all
SELECT {lane} FROM lane l ORDER BY l.lane LIMIT ?;

-- name: lane_name_next
SELECT name FROM lane WHERE name > ? ORDER BY name LIMIT 1;

-- name: folded_topic_next
SELECT topic FROM message WHERE topic > ? ORDER BY topic LIMIT 1;

-- name: dead_topic_next
SELECT topic FROM dead WHERE topic > ? ORDER BY topic LIMIT 1;

-- name: lane_fronts
-- Of each lane: its first rank, the position of the first message in it, and its last rank.
SELECT l.value, (SELECT rank FROM ready WHERE lane = l.value ORDER BY rank LIMIT 1),
       (SELECT pos FROM ready WHERE lane = l.value ORDER BY rank, pos LIMIT 1),
       (SELECT rank FROM ready WHERE lane = l.value ORDER BY rank DESC LIMIT 1)
  FROM {array ?} l;

-- name: dead_counts
SELECT t.value, coalesce(c.letters, 0) FROM {array ?} t
  LEFT JOIN dead_count c ON c.topic = t.value;

-- name: dead_list
SELECT no, mid, topic, died, until, reason, error FROM dead WHERE no > ? ORDER BY no LIMIT ?;

-- name: dead_list_of
SELECT no, mid, topic, died, until, reason, error FROM dead WHERE topic = ? AND no > ? ORDER BY no
    LIMIT ?;

-- name: ready_oldest
-- The since of a rank's oldest message: the order is by since,
SELECT pos FROM ready WHERE lane = ? AND rank = ? ORDER BY pos, seq LIMIT 1;

-- name: ready_oldest_at_front
-- but not for messages at the front.
SELECT min(m.since) FROM ready r {join} message m ON m.mid = r.mid WHERE r.lane = ?
    AND r.rank = ?;

-- name: ready_list
SELECT {message} FROM ready r {join} message m ON m.mid = r.mid WHERE r.lane = ?
    ORDER BY r.rank, r.pos, r.seq LIMIT ?;

-- name: ready_before
-- How many messages of the lane are before one.
SELECT count(*) FROM (SELECT 1 FROM ready WHERE lane = ? AND (rank, pos, seq) < (?, ?, ?) LIMIT ?)
    first;

-- name: aside_list
SELECT {message} FROM message m WHERE m.lane = ?1 AND m.state = ?2 AND m.state IN (1, 2)
    ORDER BY m.since, m.seq LIMIT ?3;

-- name: aside_delayed
-- When a lane's delayed messages are due, the highest priority first; the index alone is read.
SELECT since FROM message WHERE lane = ? AND state = 1 AND state IN (1, 2)
 ORDER BY rank, since LIMIT ?;

-- name: folded_delayed
SELECT since FROM message WHERE topic = ? AND state = 1 LIMIT ?;

-- name: aside_any
SELECT {message} FROM message m WHERE m.lane = ?1 AND m.state = ?2 AND m.state IN (1, 2) LIMIT ?3;

-- name: folded_list
-- The waiting messages of a topic in a bucket: the ready ones in their order, then the parked, then
-- the delayed.
SELECT {message} FROM message m WHERE m.topic = ? AND m.state < 3 AND {waits}
 ORDER BY CASE m.state WHEN 0 THEN 0 WHEN 2 THEN 1 ELSE 2 END, CASE m.state WHEN 0 THEN m.rank END,
          CASE WHEN m.state = 0 AND m.rank & 1 = 0 THEN -m.seq ELSE m.since END, m.seq LIMIT ?;

-- name: folded_list_of
-- Those of one state.
SELECT {message} FROM message m WHERE m.topic = ? AND m.state = ? AND {waits}
 ORDER BY CASE m.state WHEN 0 THEN m.rank END,
          CASE WHEN m.state = 0 AND m.rank & 1 = 0 THEN -m.seq ELSE m.since END, m.seq LIMIT ?;

-- name: folded_any
-- Waiting messages of a topic in a bucket, to be removed: in the order of an index.
SELECT {message} FROM message m WHERE m.topic = ? AND m.state < 3 AND {waits}
 ORDER BY m.rank >> 1 DESC, m.since, m.seq LIMIT ?;

-- name: folded_counts
-- By state, and whether they are leased: then they have no row in `ready`. Leases have no index by
-- message.
SELECT m.state,
       m.state = 0 AND NOT EXISTS (SELECT 1 FROM ready r
                                    WHERE r.lane = m.lane AND r.rank = m.rank AND r.seq = m.seq
                                      AND r.pos = CASE WHEN m.rank & 1 = 1 THEN m.since
                                          ELSE -m.seq END),
       count(*),
       sum(length(m.body) + CASE WHEN m.parts > 0 THEN (SELECT sum(length(p.body)) FROM part p
           WHERE p.mid = m.mid) ELSE 0 END), min(m.since)
  FROM message m WHERE m.topic = ? AND m.state < 3 GROUP BY 1, 2;

-- name: leased_in_lane
SELECT l.fence, l.mid, l.lane, l.deadline, l.granted, l.charge, l.started, l.gate, l.empty, l.gone,
       l.slot
  FROM lease l WHERE l.lane = ?;

-- name: leases_of_lanes
-- The leases of some lanes between two fences.
SELECT l.fence, l.mid, l.lane, l.deadline, l.granted, l.charge, l.started, l.gate, l.empty, l.gone,
       l.slot
  FROM lease l WHERE l.lane IN (SELECT value FROM {array ?1} j) AND l.fence > ?2 AND l.fence <= ?3
   AND l.gone = 0 ORDER BY l.fence LIMIT ?4;

-- name: leased_places
SELECT m.rank, min(m.seq) FROM lease l JOIN message m ON m.mid = l.mid WHERE l.lane = ?
    AND l.gone = 0 AND l.empty IS NULL GROUP BY m.rank;

-- name: plain_first
-- The lowest sequence number of messages that are not odd: their order is that of their numbers.
SELECT m.seq FROM ready r {join} message m ON m.mid = r.mid WHERE r.lane = ? AND r.rank = ?
    AND m.odd = 0 ORDER BY r.pos, r.seq LIMIT 1;

-- name: parked_first
-- The same of parked messages.
SELECT seq FROM message WHERE lane = ? AND state = 2 AND state IN (1, 2) AND rank = ? AND odd = 0
 ORDER BY since, seq LIMIT 1;

-- name: odd_next_rank
SELECT rank FROM message WHERE lane = ? AND rank > ? AND odd = 1 ORDER BY rank LIMIT 1;

-- name: odd_first
SELECT seq FROM message WHERE lane = ? AND rank = ? AND odd = 1 ORDER BY seq LIMIT 1;

-- name: odd_first_unseen
SELECT seq FROM message m WHERE m.lane = ?1 AND m.rank = ?2 AND m.odd = 1 AND m.deliveries = 0
   AND {waits} ORDER BY m.seq LIMIT 1;

-- name: ident_anywhere
SELECT mid FROM ident WHERE id = ? LIMIT 1;

-- name: ident_states
-- Of these ids: those that are known in the topic.
SELECT i.id, i.mid, i.until, m.state, {waits} FROM {array ?2} j
 {join} ident i ON i.id = j.value AND i.topic = ?1
  LEFT JOIN message m ON m.mid = i.mid;

-- name: generated_states
-- Of these messages: those without an id of their own, and where their topics can be found.
SELECT m.mid, m.state, m.lane, coalesce(m.topic, d.topic), {waits} FROM {array ?} j
 {join} message m ON m.mid = j.value AND m.id IS NULL
  LEFT JOIN dead d ON d.mid = m.mid AND m.state = 3;

-- name: idents_delete_topic
DELETE FROM ident WHERE (id, topic) IN (
    SELECT id, topic FROM ident WHERE topic = ? AND mid IS NULL LIMIT ?);

-- name: lease_gone
UPDATE lease SET gone = 1 WHERE fence = ?;

-- name: edges_delete_topic
DELETE FROM edge WHERE (topic, mkey) IN (SELECT topic, mkey FROM edge WHERE topic = ? LIMIT ?);

-- name: messages_all
SELECT {message} FROM message m ORDER BY m.seq;

-- name: leases_all
SELECT fence, mid, lane, deadline, granted, charge, started, gate, empty, gone, slot, holder
  FROM lease;

-- name: tier_queue_runnable
SELECT {least}(?2, (SELECT count(*) FROM (
        SELECT 1 FROM lane WHERE tier_queue = ?1 AND place = 1 LIMIT ?2) counted)
    + coalesce((SELECT sum(runnable) FROM (SELECT runnable FROM group_queue
        WHERE tier_queue = ?1 AND runnable > 0 LIMIT ?2) counted), 0));

-- name: lane_rates_small
-- Others. Fewer than a page of lanes are large, so this looks at less than two pages.
SELECT tier_queue, place, seen, lately, before FROM lane WHERE big IS NULL LIMIT ?;

-- name: lanes_before
-- How many lanes of the tier are served before one. In two parts: the index is not searched by the
-- row value (vt, lane), and all lanes with the same virtual time would be read.
SELECT {least}(?4, (SELECT count(*) FROM (
            SELECT 1 FROM lane WHERE tier_queue = ?1 AND place = 1 AND vt < ?2 LIMIT ?4) counted)
             + (SELECT count(*) FROM (
                SELECT 1 FROM lane WHERE tier_queue = ?1 AND place = 1 AND vt = ?2 AND lane < ?3
                 LIMIT ?4) counted));

-- name: check_ready_orphans
SELECT r.lane, r.rank, r.pos, r.seq FROM ready r LEFT JOIN message m ON m.mid = r.mid
    WHERE m.mid IS NULL LIMIT ?;

-- name: check_lane_counts
-- Lanes whose counts differ from their rows.
SELECT lane, found_ready, found_delayed, found_parked, found_leased
  FROM (SELECT l.lane, l.ready, l.delayed, l.parked, l.leased,
               (SELECT count(*) FROM ready r WHERE r.lane = l.lane) AS found_ready,
               (SELECT count(*) FROM message m WHERE m.lane = l.lane AND m.state = 1
                   AND m.state IN (1, 2)) AS found_delayed,
               (SELECT count(*) FROM message m WHERE m.lane = l.lane AND m.state = 2
                   AND m.state IN (1, 2)) AS found_parked,
               coalesce(h.held, 0) AS found_leased
          FROM lane l LEFT JOIN (SELECT lane, count(*) AS held FROM lease WHERE gone = 0
              GROUP BY lane) h ON h.lane = l.lane) counted
 WHERE ready <> found_ready OR delayed <> found_delayed OR parked <> found_parked
     OR leased <> found_leased LIMIT ?;

-- name: check_lost_messages
-- Messages that do not wait anywhere, and are neither leased nor dead.
SELECT m.mid FROM message m
 WHERE (m.state = 0 AND NOT EXISTS (SELECT 1 FROM ready r
                                     WHERE r.lane = m.lane AND r.rank = m.rank AND r.seq = m.seq
                                       AND r.pos = CASE WHEN m.rank & 1 = 1 THEN m.since
                                           ELSE -m.seq END)
                    AND m.mid NOT IN (SELECT l.mid FROM lease l))
    OR (m.state = 1 AND NOT EXISTS (SELECT 1 FROM timer t WHERE t.lane = m.lane
        AND t.at <= m.since
        AND (t.turn <= m.since OR t.turn <= (SELECT now FROM shard))))
    OR (m.state = 2 AND m.serial = 0 AND NOT EXISTS (
        SELECT 1 FROM key_parked p
         WHERE p.lane = m.lane AND p.rank = m.rank AND p.seq = m.seq
           AND p.key = CASE WHEN m.topic IS NULL THEN m.key
               ELSE m.topic || {char}(31) || m.key END
           AND p.pos = CASE WHEN m.rank & 1 = 1 THEN m.since ELSE -m.seq END))
    OR (m.state = 2 AND m.serial > 0 AND NOT EXISTS (
        SELECT 1 FROM parked p {join} serial_key k ON k.lane = p.lane AND k.key = p.key
         WHERE p.lane = m.lane AND p.rank = m.rank AND p.seq = m.seq AND k.head <> 0
           AND p.key = CASE WHEN m.topic IS NULL THEN m.key
               ELSE m.topic || {char}(31) || m.key END
           AND p.pos = CASE WHEN m.rank & 1 = 1 THEN m.since ELSE -m.seq END))
    OR (m.state = 3 AND NOT EXISTS (SELECT 1 FROM dead d WHERE d.mid = m.mid))
    OR (m.state < 3 AND NOT EXISTS (SELECT 1 FROM lane n WHERE n.lane = m.lane))
 LIMIT ?;

-- name: check_leases
-- Leases that do not end.
SELECT l.fence FROM lease l
 WHERE NOT EXISTS (SELECT 1 FROM lease_end e WHERE l.fence BETWEEN e.first AND e.last) LIMIT ?;

-- name: check_unhandled
SELECT count(*) FROM note n JOIN message m ON m.mid = n.mid WHERE n.unhandled IS NOT NULL
    AND m.state <> 3;

-- name: check_totals
SELECT (SELECT coalesce(sum(ready + delayed + parked), 0)
    FROM lane), (SELECT coalesce(sum(bytes), 0) FROM lane),
       (SELECT count(*) FROM lease WHERE gone = 0), (SELECT count(*) FROM dead), (SELECT count(*)
           FROM lane);

-- name: check_first_places
-- Lanes that have a ready message before their first place.
SELECT l.lane FROM lane l WHERE EXISTS (SELECT 1 FROM ready r
    WHERE r.lane = l.lane AND (r.rank, r.pos) < (l.first_rank, l.first_pos)) LIMIT ?;

-- name: check_first_times
-- How many rows are before the first of their order.
SELECT (SELECT count(*) FROM lane l JOIN tier_queue q ON q.tier_queue = l.tier_queue
         WHERE l.place = 1 AND (l.vt, l.lane) < (q.first_vt, q.first_lane))
     + (SELECT count(*) FROM lane l JOIN group_queue g ON g.number = -l.tier_queue
         WHERE l.place = 1 AND l.vt < g.first_vt)
     + (SELECT count(*) FROM group_queue g JOIN tier_queue q ON q.tier_queue = g.tier_queue
         WHERE g.runnable > 0 AND g.vt < q.first_group_vt)
     + (SELECT count(*) FROM gate_entry e JOIN tier_queue q ON q.tier_queue = e.owner
         WHERE e.open = 1 AND e.vt < q.first_gate_vt)
     + (SELECT count(*) FROM lane l JOIN gate_entry e ON e.gate = l.gate AND e.head <> 0
           AND e.tier_queue = l.tier_queue
         WHERE l.place = 3 AND l.turn < e.first_turn)
     + (SELECT count(*) FROM sweep w JOIN shard s ON w.number < s.first_sweep)
     + (SELECT count(*) FROM event e JOIN shard s ON e.at < s.first_event)
     + (SELECT count(*) FROM lease_end e JOIN shard s ON e.at < s.first_end)
     + (SELECT count(*) FROM timer t JOIN shard s ON t.turn < s.first_timer)
     + (SELECT count(*) FROM lane l JOIN shard s ON l.place = 2 AND l.wake < s.first_asleep)
     + (SELECT count(*) FROM lane l JOIN shard s ON l.place = 0 AND l.wake < s.first_idle)
     + (SELECT count(*) FROM key_state k JOIN shard s ON k.wake < s.first_wake)
     + (SELECT count(*) FROM gate g JOIN shard s ON g.wake < s.first_wake)
     + (SELECT count(*) FROM ident i JOIN shard s ON i.until < s.first_wake)
     + (SELECT count(*) FROM edge e JOIN shard s ON e.until < s.first_wake)
     + (SELECT count(*) FROM kept k JOIN shard s ON k.until < s.first_wake)
     + (SELECT count(*) FROM parked p JOIN serial_key k ON k.lane = p.lane AND k.key = p.key
           AND (p.rank, p.pos) < (k.first_rank, k.first_pos))
     + (SELECT count(*) FROM key_parked p JOIN key_state k ON k.lane = p.lane AND k.key = p.key
           AND (p.rank, p.pos) < (k.first_rank, k.first_pos));

-- name: serial_keys_begin
-- Read the parked messages of all keys from the first possible place.
UPDATE serial_key SET first_rank = ?;

-- name: gate_entries_begin
-- Read the lanes at all gates from the first possible turn.
UPDATE gate_entry SET first_turn = 0;

-- name: key_states_begin
UPDATE key_state SET first_rank = ?;

-- name: groups_all
SELECT number FROM group_queue;

-- name: check_group_counts
-- Groups whose counts are not those of their lanes, and what they should be.
SELECT number, counted, can_run FROM (
    SELECT g.number, g.lanes, g.runnable, coalesce(c.counted, 0) AS counted,
        coalesce(c.can_run, 0) AS can_run
      FROM group_queue g LEFT JOIN (
        SELECT -tier_queue AS number, count(*) AS counted,
            count(*) FILTER (WHERE place = 1) AS can_run
          FROM lane WHERE tier_queue < 0 GROUP BY tier_queue
      ) c ON c.number = g.number) found
 WHERE (lanes, runnable) <> (counted, can_run) LIMIT ?;
