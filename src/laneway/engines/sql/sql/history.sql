-- Tallies and the records of the history.

-- name: lane_tallies
-- What waits, for a file that was made before messages were counted.
SELECT coalesce(rule, name), tier_queue, ready + delayed + parked FROM lane
 WHERE ready + delayed + parked > 0;

-- name: lane_big_nth
-- The size class of the lane that has ?1 lanes before it in the order of backlogs.
SELECT big FROM lane WHERE big IS NOT NULL ORDER BY big DESC LIMIT 1 OFFSET ?1;

-- name: history_read
SELECT record FROM history WHERE name = ?;

-- name: history_write
INSERT INTO history (name, record) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET record = excluded.record;
