-- Statements in the text of PostgreSQL alone; the others are in `engines/sql/sql`.

-- name: lane_rates_big
SELECT tier_queue, place, seen, lately, before FROM lane WHERE big IS NOT NULL
 ORDER BY big DESC LIMIT ?;

-- name: group_heads
-- The first runnable lanes of these groups, as JSON; only the index is read.
SELECT j.value, (SELECT coalesce(json_agg(first.lane), '[]')::text FROM (SELECT lane FROM lane
    WHERE tier_queue = -j.value AND place = 1 ORDER BY vt, lane LIMIT ?2) first)
  FROM {array ?1} j;

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
SELECT facts, started_us, beat_us, dead_us FROM workers
 WHERE id > ?1 AND until_us > ?2 AND (?3::text IS NULL OR jsonb_exists(pools::jsonb, ?3))
 ORDER BY id LIMIT ?4;

-- name: turn_read
-- The turn, and the server's time in microseconds.
SELECT last_value, (extract(epoch FROM clock_timestamp()) * 1000000)::int8 FROM turn;

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
