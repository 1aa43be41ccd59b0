-- Statements in the text of PostgreSQL alone; the others are in `engines/sql/sql`.

-- name: shard_changed
SELECT s.now, EXISTS (SELECT 1 FROM inbox WHERE mid > s.seq)
  FROM shard s WHERE s.one = 1 ORDER BY s.epoch DESC LIMIT 1;

-- name: inbox_put
-- As the shared statement. All messages in the inbox have numbers above those that the shard has
-- assigned, and so have their fences. ?8 = 1: a worker of this process waits for messages. Else the
-- message is leased to one of another process that waits in the pool ?9, by a notification with the
-- numbers and ?10; a process whose lock is free was killed. ?9 = '': it is leased to nobody. A
-- notification that finds the server's queue full would undo the put, so none is sent above a half.
WITH state AS MATERIALIZED (
    SELECT greatest(s.seq, i.last, ?1) + 1 AS mid, i.first, l.ready, w.channel,
           CASE WHEN (?8 = 1 OR w.channel IS NOT NULL) AND i.count < 16 AND i.first IS NULL
                 AND NOT (coalesce(l.ready, 0) > 0 OR l.more IS NOT NULL)
                THEN greatest(s.fence, coalesce(i.fence, 0), ?1) + 1 END AS fence
      FROM (SELECT * FROM shard WHERE one = 1 ORDER BY epoch DESC LIMIT 1) s
      CROSS JOIN LATERAL (SELECT count(*), coalesce(max(mid), 0) AS last, max(fence) AS fence,
            min(mid) FILTER (WHERE inbox.fence IS NULL) AS first FROM inbox WHERE mid > s.seq) i
      LEFT JOIN LATERAL (SELECT n.ready, n.more FROM lane n WHERE n.name = ?3
        ORDER BY n.lane DESC, n.epoch DESC LIMIT 1) l ON true
      LEFT JOIN LATERAL (SELECT channel FROM sleeper
         WHERE ?9 <> '' AND pool = ?9 AND kind = 'l' AND beat > now() - interval '10 s'
           AND (SELECT pg_notification_queue_usage()) < 0.5
           AND NOT pg_try_advisory_xact_lock_shared({listening},
               ('x' || right(channel, 8))::bit(32)::int4)
         ORDER BY random() LIMIT 1) w ON true
     WHERE s.policy_version = ?7
       AND (s.own = 0 OR NOT EXISTS (SELECT 1 FROM own_policy WHERE topic = ?3))
       AND (SELECT version FROM layout) = {layout}
), put AS (
    INSERT INTO inbox (mid, published, topic, rank, headers, body, fence)
    SELECT mid, ?2, ?3, ?4, nullif(?5, ''), ?6, fence FROM state
)
SELECT mid, coalesce(first, CASE WHEN fence IS NULL THEN mid END), ready,
       CASE WHEN channel IS NULL OR fence IS NULL
              OR pg_notify(channel, 'l' || mid || ' ' || fence || ' ' || ?10::text) IS NOT NULL
            THEN fence END
  FROM state;

-- name: inbox_read
SELECT mid, published, topic, rank, headers, body, fence FROM inbox
 WHERE mid > (SELECT seq FROM shard WHERE one = 1 ORDER BY epoch DESC LIMIT 1) ORDER BY mid;

-- name: inbox_lanes
-- As the shared statement.
SELECT {lane} FROM (SELECT DISTINCT topic FROM inbox
     WHERE mid > (SELECT seq FROM shard WHERE one = 1 ORDER BY epoch DESC LIMIT 1)) i
 CROSS JOIN LATERAL (SELECT * FROM lane n WHERE n.name = i.topic
    ORDER BY n.lane DESC, n.epoch DESC LIMIT 1) l;

-- name: inbox_clear
DELETE FROM inbox
 WHERE mid > (SELECT seq FROM shard WHERE one = 1 ORDER BY epoch DESC LIMIT 1);

-- name: inbox_has_any
SELECT 1 FROM inbox
 WHERE mid > (SELECT seq FROM shard WHERE one = 1 ORDER BY epoch DESC LIMIT 1) LIMIT 1;

-- name: tier_queues
WITH RECURSIVE each AS (
    (SELECT tier_queue, pool, tier, vt, carry, mean, delivered, first_vt, first_lane,
            first_group_vt, first_gate_vt
       FROM tier_queue
      ORDER BY tier_queue, epoch DESC LIMIT 1)
    UNION ALL SELECT next.* FROM each CROSS JOIN LATERAL
        (SELECT q.tier_queue, q.pool, q.tier, q.vt, q.carry, q.mean, q.delivered, q.first_vt,
               q.first_lane, q.first_group_vt, q.first_gate_vt
           FROM tier_queue q
          WHERE q.tier_queue > each.tier_queue
          ORDER BY q.tier_queue, q.epoch DESC LIMIT 1) next
) SELECT * FROM each;

-- name: lane_last
-- Each transaction has numbers of its own, so that a number is never used twice.
SELECT nextval('lane_block') * 1000000;

-- name: lanes_by_name
SELECT {lane} FROM {array ?} j CROSS JOIN LATERAL (SELECT * FROM lane n WHERE n.name = j.value
    ORDER BY n.lane DESC, n.epoch DESC LIMIT 1) l;

-- name: lanes_by_number
SELECT {lane} FROM {array ?} j CROSS JOIN LATERAL (SELECT * FROM lane n WHERE n.lane = j.value
    ORDER BY n.epoch DESC LIMIT 1) l;

-- name: lane_by_name
SELECT {lane} FROM lane l WHERE l.name = ? ORDER BY l.lane DESC, l.epoch DESC LIMIT 1;

-- name: heads
-- The first message of each of these lanes, behind so many others.
SELECT {head} FROM unnest(?1::int8[], ?2::int8[], ?3::int8[]) AS v (lane, first_rank, first_pos)
  JOIN message m ON m.mid = (SELECT r.mid FROM ready r
      WHERE r.lane = v.lane AND (r.rank, r.pos) >= (v.first_rank, v.first_pos)
      ORDER BY r.rank, r.pos, r.seq LIMIT 1 OFFSET ?4);

-- name: ranked_heads
-- The first messages of lanes, `take` of each, from its first places on.
SELECT {head} FROM (
    SELECT r.mid, v.take,
           row_number() OVER (PARTITION BY r.lane ORDER BY r.rank, r.pos, r.seq) AS number
      FROM unnest(?1::int8[], ?2::int8[], ?3::int8[], ?4::int8[], ?5::int8[])
          AS v (lane, rank, pos, last, take)
     CROSS JOIN LATERAL (SELECT * FROM ready n WHERE n.lane = v.lane
         AND (n.rank, n.pos) >= (v.rank, v.pos) AND n.rank <= v.last
         ORDER BY n.rank, n.pos, n.seq LIMIT v.take) r) f
  JOIN message m ON m.mid = f.mid WHERE f.number <= f.take ORDER BY m.lane, f.number;

-- name: messages_due
-- The first delayed messages of these lanes, ?3 of each, from the times of their timers on.
SELECT t.lane, m.mid FROM {array ?1} j JOIN timer t ON t.lane = j.value CROSS JOIN LATERAL (
    SELECT d.mid FROM message d WHERE d.lane = t.lane AND d.state = 1
       AND d.since BETWEEN t.at AND ?2 ORDER BY d.since, d.mid LIMIT ?3) m;

-- name: groups_read
SELECT {group} FROM {array ?} j CROSS JOIN LATERAL (SELECT * FROM group_queue n
    WHERE n.number = j.value ORDER BY n.epoch DESC LIMIT 1) g;

-- name: group_find
SELECT {group} FROM group_queue g WHERE g.name = ? AND g.tier_queue = ?
    ORDER BY g.number DESC, g.epoch DESC LIMIT 1;

-- name: gates_read
SELECT {gate} FROM {array ?} j CROSS JOIN LATERAL (SELECT * FROM gate n WHERE n.name = j.value
    ORDER BY n.epoch DESC LIMIT 1) gate;

-- name: gates
-- As the shared statement.
WITH RECURSIVE each AS (
    (SELECT * FROM gate ORDER BY name, epoch DESC LIMIT 1)
    UNION ALL SELECT next.* FROM each CROSS JOIN LATERAL
        (SELECT * FROM gate n WHERE n.name > each.name ORDER BY n.name, n.epoch DESC LIMIT 1) next
) SELECT {gate} FROM each gate WHERE name < {char}(28) OR name >= {char}(29);

-- name: lanes_at_gate
-- As the shared statement.
SELECT lane, turn FROM lane WHERE gate = ?1 AND tier_queue = ?2 AND place = 3
    AND (turn, lane) > (?3, ?4) AND turn >= coalesce((SELECT first_turn FROM gate_entry e
        WHERE e.gate = ?1 AND e.tier_queue = ?2 ORDER BY epoch DESC LIMIT 1), 0)
  ORDER BY turn, lane LIMIT ?5;

-- name: gate_entry_read
-- As the shared statement.
SELECT l.turn, l.lane, l.vt, e.owner, e.vt, e.head, e.open, e.first_turn FROM (SELECT 1) one
    LEFT JOIN LATERAL (SELECT * FROM gate_entry n WHERE n.gate = ?1 AND n.tier_queue = ?4
        ORDER BY n.epoch DESC LIMIT 1) e ON e.head <> 0
    LEFT JOIN LATERAL (SELECT turn, lane, vt FROM lane WHERE gate = ?1 AND tier_queue = ?2
        AND place = 3 AND turn >= least(?3, e.first_turn) ORDER BY turn, lane LIMIT 1) l ON true;

-- name: gate_entries_of
SELECT j.value, entry.tier_queue FROM {array ?1} j CROSS JOIN LATERAL (WITH RECURSIVE each AS (
    (SELECT tier_queue, head FROM gate_entry WHERE gate = j.value
      ORDER BY tier_queue, epoch DESC LIMIT 1)
    UNION ALL SELECT next.* FROM each CROSS JOIN LATERAL
        (SELECT n.tier_queue, n.head FROM gate_entry n
          WHERE n.gate = j.value AND n.tier_queue > each.tier_queue
          ORDER BY n.tier_queue, n.epoch DESC LIMIT 1) next
) SELECT tier_queue FROM each WHERE head <> 0) entry;

-- name: gate_entries_open_set
UPDATE gate_entry SET open = ?1, epoch = (SELECT last_value FROM turn) / 16
 WHERE open <> ?1 AND head <> 0 AND ctid = ANY(ARRAY(SELECT entry.at FROM {array ?2} j
  CROSS JOIN LATERAL (WITH RECURSIVE each AS (
    (SELECT tier_queue, ctid AS at FROM gate_entry WHERE gate = j.value
      ORDER BY tier_queue, epoch DESC LIMIT 1)
    UNION ALL SELECT next.* FROM each CROSS JOIN LATERAL
        (SELECT n.tier_queue, n.ctid FROM gate_entry n
          WHERE n.gate = j.value AND n.tier_queue > each.tier_queue
          ORDER BY n.tier_queue, n.epoch DESC LIMIT 1) next
 ) SELECT at FROM each) entry)) RETURNING tier_queue, owner, vt;

-- name: key_states_recovered
-- As the shared statement; the rows become free.
UPDATE key_state SET leased = -1, parked = 0, tat = 0, wake = NULL
 WHERE ctid IN (SELECT ctid FROM key_state
     WHERE wake BETWEEN ?1 AND ?2 AND leased = 0 AND parked = 0 AND tat <= ?3
     ORDER BY wake LIMIT ?4);

-- name: recent_read
SELECT r.topic, r.score FROM {array ?2} j CROSS JOIN LATERAL (SELECT * FROM recent n
    WHERE n.kind = ?1 AND n.topic = j.value ORDER BY n.epoch DESC LIMIT 1) r;

-- name: lane_rates_big
SELECT tier_queue, place, seen, lately, before FROM lane WHERE big IS NOT NULL
 ORDER BY big DESC LIMIT ?;

-- name: own_read_many
SELECT p.topic, p.own FROM {array ?} j CROSS JOIN LATERAL (SELECT * FROM own_policy n
    WHERE n.topic = j.value ORDER BY n.epoch DESC LIMIT 1) p;

-- name: kept_read
SELECT k.id, k.topic, k.slot, k.until, k.body FROM (VALUES (?, ?)) v
 CROSS JOIN (VALUES (0), (1)) s (slot)
 CROSS JOIN LATERAL (SELECT * FROM kept n WHERE n.id = v.column1 AND n.slot = s.slot
    AND n.topic = v.column2 ORDER BY n.epoch DESC LIMIT 1) k;

-- name: group_heads
-- The first runnable lanes of these groups behind the virtual time of the first one, as JSON; only
-- the index is read.
SELECT g.number, (SELECT json_build_array(min(vt), coalesce(json_agg(lane), '[]'))::text
    FROM (SELECT lane, vt FROM lane WHERE tier_queue = -g.number AND place = 1 AND vt >= g.first_vt
        ORDER BY vt, lane LIMIT ?3) first)
  FROM unnest(?1::int8[], ?2::int8[]) AS g (number, first_vt);

-- name: own_set_with_code_tier
-- A set that names a tier, and how many topics share it.
SELECT no, uses FROM own_set WHERE (layers::jsonb #>> '{code,tier}') = ? AND uses > 0 LIMIT 1;

-- name: own_set_with_operator_tier
SELECT no, uses FROM own_set WHERE (layers::jsonb #>> '{operator,tier}') = ? AND uses > 0 LIMIT 1;

-- name: message_move
-- The columns that change while a message is stored.
UPDATE message SET lane = v.column2, state = v.column3, rank = v.column4, seq = v.column5,
       since = v.column6, expires = nullif(v.column7, 0), serial = v.column8,
       attempts = v.column9, deliveries = v.column10, suspect = v.column11, joined = v.column12,
       parts = v.column13, odd = 1
  FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) v WHERE message.mid = v.column1;

-- name: message_content
-- Of messages that are stored.
UPDATE message SET headers = v.column2, body = v.column3
  FROM (VALUES (?, ?, ?)) v WHERE message.mid = v.column1;

-- name: dead_insert
INSERT INTO dead (mid, topic, died, until, reason, error)
    VALUES (?, ?, ?, ?, ?, nullif(?, 0)) ON CONFLICT (mid) DO UPDATE SET no = excluded.no,
        topic = excluded.topic, died = excluded.died, until = excluded.until,
        reason = excluded.reason, error = excluded.error;

-- name: workers_list
-- ?3: a pool, or NULL: all
WITH RECURSIVE each AS (
    (SELECT * FROM workers WHERE id > ?1 ORDER BY id, epoch DESC LIMIT 1)
    UNION ALL SELECT next.* FROM each CROSS JOIN LATERAL
        (SELECT * FROM workers w WHERE w.id > each.id ORDER BY w.id, w.epoch DESC LIMIT 1) next
) SELECT facts, started_us, beat_us, dead_us FROM each
 WHERE until_us > ?2 AND (?3::text IS NULL OR jsonb_exists(pools::jsonb, ?3)) LIMIT ?4;

-- name: turn_read
-- The turn, the server's time in microseconds, the layout, and since when the disk is full.
SELECT last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::int8, version, full_us
  FROM turn, layout;

-- name: reserve_read
-- When the disk was full, and the sizes of the reserve and of the messages.
SELECT full_us, pg_relation_size('reserve'), pg_table_size('message') FROM layout;

-- name: reserve_empty
TRUNCATE reserve;

-- name: reserve_fill
INSERT INTO reserve SELECT '' FROM generate_series(1, ?);

-- name: full_set
UPDATE layout SET full_us = ?;

-- name: full_noted
-- Unless the reserve is used already.
UPDATE layout SET full_us = ? WHERE pg_relation_size('reserve') > 0;

-- name: turn_next
SELECT nextval('turn');

-- name: delivery_log_last
SELECT max(number) FROM delivery_log;

-- name: delivery_log_append
INSERT INTO delivery_log (number, topic, at_us, data) VALUES (?, ?, ?, ?);

-- name: delivery_log_expire
-- Remove the ?2 oldest entries of those with a number below ?1; returns their sizes.
DELETE FROM delivery_log WHERE number IN (
    SELECT number FROM delivery_log WHERE number < ?1 ORDER BY number LIMIT ?2)
RETURNING length(data);

-- name: delivery_log_all
SELECT number, topic, at_us, data FROM delivery_log WHERE number < ?1
 ORDER BY number DESC LIMIT ?2;

-- name: delivery_log_topic
SELECT number, topic, at_us, data FROM delivery_log WHERE topic = ?1 AND number < ?2
 ORDER BY number DESC LIMIT ?3;

-- name: schema_bytes
-- All tables of the schema with their indexes.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_class c
 JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema() AND c.relkind = 'r';

-- name: check_settings
-- The checks of the doctor read whole tables.
SELECT set_config(name, value, true) FROM (VALUES ('enable_seqscan', 'on'),
    ('enable_hashjoin', 'on'), ('enable_mergejoin', 'on'), ('statement_timeout', '0'),
    ('idle_in_transaction_session_timeout', '60000')) each (name, value);

-- name: schema_find
SELECT 1 FROM pg_namespace WHERE nspname = ?;

-- name: server_version
SELECT current_setting('server_version');

-- name: idents_joined_to
-- LATERAL, and OFFSET, which keeps it: else the ids of all joined messages may be read.
SELECT i.mid, i.id, i.topic FROM {array ?} j
  CROSS JOIN LATERAL (SELECT n.mid, n.id, n.topic FROM ident n
                       WHERE n.mid = j.value AND n.alias = 1 OFFSET 0) i;
