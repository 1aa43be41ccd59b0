-- The last batch of each spool, see forwarding.py.

-- name: forwarded_read
SELECT batch, taken, at_us FROM forwarded WHERE spool = ?;

-- name: forwarded_all
SELECT spool, batch, taken, at_us FROM forwarded ORDER BY spool;

-- name: forwarded_write
INSERT INTO forwarded (spool, batch, taken, at_us) VALUES (?, ?, ?, ?)
    ON CONFLICT (spool) DO UPDATE SET batch = excluded.batch, taken = excluded.taken,
        at_us = excluded.at_us;

-- name: forwarded_forget
DELETE FROM forwarded WHERE at_us < ?;
