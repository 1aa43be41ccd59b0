-- Elections: one record each, changed by compare and swap.

-- name: election_read
SELECT record FROM elections WHERE name = ?;

-- name: election_insert
INSERT INTO elections (name, record) VALUES (?, ?) ON CONFLICT (name) DO NOTHING;

-- name: election_replace
UPDATE elections SET record = ? WHERE name = ? AND record = ?;

-- name: elections_list
SELECT name FROM elections WHERE name > ? ORDER BY name LIMIT ?;
