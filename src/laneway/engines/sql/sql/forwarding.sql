-- The last batch of each spool, see forwarding.py.

-- name: forwarded_read
SELECT batch, taken, at_us FROM forwarded WHERE spool = ?;

-- name: forwarded_all
SELECT spool, batch, taken, at_us FROM forwarded ORDER BY spool;

-- name: forwarded_write
INSERT OR REPLACE INTO forwarded (spool, batch, taken, at_us) VALUES (?, ?, ?, ?);

-- name: forwarded_forget
DELETE FROM forwarded WHERE at_us < ?;
