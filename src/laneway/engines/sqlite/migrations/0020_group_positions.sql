-- A gate where a group is first stands in the order of that group, by the group's first lane there.
-- So the position of a group is only in its own row, however many gates its lanes wait at.
ALTER TABLE gate_entry ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;  -- tier queue, or -group
UPDATE gate_entry SET owner = tier_queue,
    open = coalesce((SELECT g.open FROM gate g WHERE g.name = gate_entry.gate), 0);
UPDATE gate_entry SET owner = -g.number, vt = l.vt, head = l.lane FROM group_queue g, lane l
    WHERE g.number = gate_entry.head AND l.lane = (SELECT lane FROM lane
        WHERE gate = gate_entry.gate AND tier_queue = -g.number AND place = 3
        ORDER BY turn, lane LIMIT 1);
DROP INDEX gate_entry_open;
CREATE INDEX gate_entry_open ON gate_entry (owner, vt, head) WHERE open = 1;

ALTER TABLE group_queue ADD COLUMN open INTEGER NOT NULL DEFAULT 0;  -- whether it has an open gate
UPDATE group_queue SET open = EXISTS (SELECT 1 FROM gate_entry e
    WHERE e.owner = -number AND e.open = 1);
CREATE INDEX group_open ON group_queue (tier_queue, vt, number) WHERE open = 1;
