-- Export to another store.

-- name: exported_read
SELECT value FROM setting WHERE name >= 'moving:' AND name < 'moving;' ORDER BY name LIMIT ?;

-- name: exported_write
INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name)
    DO UPDATE SET value = excluded.value;

-- name: exported_delete
DELETE FROM setting WHERE name = ?;

-- name: messages_to_export
SELECT {message} FROM message m
 WHERE m.state < 3 AND {waits}
     ORDER BY m.mid LIMIT ?;

-- name: idents_finished
SELECT topic, id, until FROM ident WHERE mid IS NULL AND (topic, id) > (?, ?) ORDER BY topic, id
    LIMIT ?;

-- name: ident_know
INSERT INTO ident (id, topic, mid, alias, until) VALUES (?, ?, NULL, 0, ?) ON CONFLICT DO NOTHING;

-- name: dead_set
UPDATE dead SET died = ?, until = ? WHERE mid = ?;
