-- Groups of topics, see migrations/0013_groups.sql.

-- name: group_any
SELECT EXISTS (SELECT 1 FROM group_queue);

-- name: group_last
SELECT max(number) FROM group_queue;

-- name: groups_read
SELECT {group} FROM json_each(?) j CROSS JOIN group_queue g ON g.number = j.value;

-- name: group_find
SELECT {group} FROM group_queue g WHERE g.name = ? AND g.tier_queue = ?;

-- name: groups_of_name
SELECT {group} FROM group_queue g WHERE g.name = ?;

-- name: group_write
INSERT INTO group_queue (number, tier_queue, name, vt, inner_vt, lanes, runnable, at_gate, weight,
    limited) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (number) DO UPDATE SET vt = excluded.vt, inner_vt = excluded.inner_vt,
        lanes = excluded.lanes, runnable = excluded.runnable, at_gate = excluded.at_gate,
        weight = excluded.weight, limited = excluded.limited;

-- name: group_delete
DELETE FROM group_queue WHERE number = ?;

-- name: groups_runnable
-- The groups of a tier queue in the order in which they are served.
SELECT number, vt FROM group_queue WHERE tier_queue = ? AND runnable > 0 AND (vt, number) > (?, ?)
    ORDER BY vt, number LIMIT ?;

-- name: groups_at_gate
SELECT group_no, group_vt FROM gate_entry WHERE gate = ? AND parent = ?
    AND (group_vt, group_no) > (?, ?) ORDER BY group_vt, group_no LIMIT ?;

-- name: group_heads
-- The first runnable lanes of these groups, as JSON; only the index is read.
SELECT j.value, (SELECT json_group_array(lane) FROM (SELECT lane FROM lane
    WHERE tier_queue = -j.value AND place = 1 ORDER BY vt, lane LIMIT ?2)) FROM json_each(?1) j;

-- name: group_gates
-- The gates that the group has lanes at, open or not.
SELECT gate FROM gate_entry WHERE tier_queue = ?;

-- name: gate_group_head
SELECT group_vt, group_no FROM gate_entry WHERE gate = ? AND parent = ?
    ORDER BY group_vt, group_no LIMIT 1;

-- name: gate_entry_group_write
INSERT INTO gate_entry (tier_queue, gate, vt, head, open, parent, group_no, group_vt)
    VALUES (?, ?, ?, ?, 0, ?, ?, ?)
    ON CONFLICT (tier_queue, gate)
        DO UPDATE SET vt = excluded.vt, head = excluded.head, group_vt = excluded.group_vt;

-- name: gate_entry_group_vt
UPDATE gate_entry SET group_vt = ? WHERE tier_queue = ?;

-- name: groups_before
-- How many groups of a tier queue are served before an entry.
SELECT count(*) FROM (SELECT 1 FROM group_queue WHERE tier_queue = ? AND runnable > 0
    AND (vt, number) < (?, ?) LIMIT ?);
