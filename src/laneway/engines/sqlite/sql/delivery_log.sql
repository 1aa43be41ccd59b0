-- The delivery log, which is in a file of its own; see delivery_log.py.

-- name: delivery_log_last
SELECT max(number) FROM attempts;

-- name: delivery_log_append
INSERT INTO attempts (number, topic, at_us, data) VALUES (?, ?, ?, ?);

-- name: delivery_log_expire
-- Remove the ?2 oldest entries of those with a number below ?1.
DELETE FROM attempts WHERE number IN (
    SELECT number FROM attempts WHERE number < ?1 ORDER BY number LIMIT ?2
);

-- name: delivery_log_all
SELECT number, topic, at_us, data FROM attempts WHERE number < ?1
 ORDER BY number DESC LIMIT ?2;

-- name: delivery_log_topic
SELECT number, topic, at_us, data FROM attempts WHERE topic = ?1 AND number < ?2
 ORDER BY number DESC LIMIT ?3;
