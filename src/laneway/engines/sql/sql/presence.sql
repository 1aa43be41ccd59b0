-- The workers of the namespace. These transactions change nothing that the queue reads.

-- name: worker_beat
INSERT INTO workers (id, pools, started_us, beat_us, dead_us, until_us, facts)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET pools = excluded.pools, beat_us = excluded.beat_us,
        dead_us = excluded.dead_us, until_us = excluded.until_us, facts = excluded.facts;

-- name: workers_forget
DELETE FROM workers WHERE until_us BETWEEN ? AND ?;

-- name: worker_leave
DELETE FROM workers WHERE id = ?;

-- name: shard_now
SELECT now FROM shard WHERE one = 1;
