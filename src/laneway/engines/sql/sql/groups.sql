-- Groups of topics, see schema.sql.

-- name: group_any
SELECT EXISTS (SELECT 1 FROM group_queue);

-- name: group_last
SELECT max(number) FROM group_queue;

-- name: groups_read
SELECT {group} FROM {array ?} j {join} group_queue g ON g.number = j.value;

-- name: group_find
SELECT {group} FROM group_queue g WHERE g.name = ? AND g.tier_queue = ?;

-- name: groups_of_name
SELECT {group} FROM group_queue g WHERE g.name = ?;

-- name: group_write
INSERT INTO group_queue (number, tier_queue, name, vt, inner_vt, lanes, runnable, weight, limited,
    first_vt) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (number) DO UPDATE SET vt = excluded.vt, inner_vt = excluded.inner_vt,
        lanes = excluded.lanes, runnable = excluded.runnable, weight = excluded.weight,
        limited = excluded.limited, first_vt = excluded.first_vt;

-- name: group_delete
DELETE FROM group_queue WHERE number = ?;

-- name: groups_runnable
-- The groups of a tier queue in the order in which they are served.
SELECT number, vt FROM group_queue WHERE tier_queue = ? AND runnable > 0 AND (vt, number) > (?, ?)
    ORDER BY vt, number LIMIT ?;

-- name: groups_at_gate
-- The groups of a tier queue with lanes that wait at a gate, by their turns there.
SELECT group_no, turn, inner_turn, waiting FROM group_turn WHERE gate = ? AND tier_queue = ?
    AND waiting > 0
    AND (turn, group_no) > (?, ?) ORDER BY turn, group_no LIMIT ?;

-- name: group_at_gate
SELECT turn, group_no FROM group_turn WHERE gate = ? AND tier_queue = ? AND waiting > 0
    ORDER BY turn, group_no LIMIT 1;

-- name: group_gates_open
-- The open gates where groups of a tier queue are first: by group, and by their first lanes there.
SELECT g.number, g.vt, e.vt, e.head, e.gate
    FROM group_queue g {join} gate_entry e ON e.owner = -g.number AND e.open = 1
    WHERE g.tier_queue = ? AND g.open = 1 AND (g.vt, g.number) > (?, ?)
    ORDER BY g.vt, g.number, e.vt, e.head LIMIT ?;

-- name: groups_reopen
-- Whether these groups have open gates, where that has changed.
UPDATE group_queue SET open = 1 - open WHERE number IN (SELECT value FROM {array ?} j)
    AND open <> CASE WHEN EXISTS (SELECT 1 FROM gate_entry e
        WHERE e.owner = -number AND e.open = 1) THEN 1 ELSE 0 END;

-- name: group_turn_read
SELECT turn, inner_turn, waiting FROM group_turn WHERE group_no = ? AND gate = ?;

-- name: group_turn_write
INSERT INTO group_turn (group_no, gate, tier_queue, turn, inner_turn, waiting)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (group_no, gate) DO UPDATE SET turn = excluded.turn,
        inner_turn = excluded.inner_turn, waiting = excluded.waiting;

-- name: group_turn_delete
DELETE FROM group_turn WHERE group_no = ? AND gate = ?;

-- name: group_turns_delete
DELETE FROM group_turn WHERE group_no = ?;

-- name: groups_before
-- How many groups of a tier queue are served before an entry.
SELECT count(*) FROM (SELECT 1 FROM group_queue WHERE tier_queue = ? AND runnable > 0
    AND (vt, number) < (?, ?) LIMIT ?) first;
