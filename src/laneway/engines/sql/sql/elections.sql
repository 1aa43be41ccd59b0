-- Elections: one record each, changed by compare and swap.

-- name: election_read
SELECT record FROM elections WHERE name = ?;

-- name: election_insert
INSERT INTO elections (name, record) SELECT ?1, ?2
 WHERE NOT EXISTS (SELECT 1 FROM elections WHERE name = ?1);

-- name: election_replace
UPDATE elections SET record = ? WHERE name = ? AND record = ?;

-- name: elections_list
SELECT name FROM elections WHERE name > ? ORDER BY name LIMIT ?;
