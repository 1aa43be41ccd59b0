-- The last batch of each spool, see forwarding.py.

-- name: forwarded_read
SELECT batch, taken FROM forwarded WHERE spool = ?;

-- name: forwarded_write
INSERT OR REPLACE INTO forwarded (spool, batch, taken, at_us) VALUES (?, ?, ?, ?);

-- name: forwarded_forget
DELETE FROM forwarded WHERE at_us < ?;
