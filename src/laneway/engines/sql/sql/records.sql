-- Settings that are replaced as they were read, those of records begin with "record:" and the kind.

-- name: record_insert
INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING;

-- name: record_replace
UPDATE setting SET value = ? WHERE name = ? AND value = ?;

-- name: record_remove
DELETE FROM setting WHERE name = ? AND value = ?;

-- name: records_read
SELECT s.value FROM {array ?} j LEFT JOIN setting s ON s.name = j.value ORDER BY j.key;

-- name: records_list
SELECT name, value FROM setting WHERE name > ? AND name < ? ORDER BY name LIMIT ?;
