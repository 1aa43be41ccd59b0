-- Groups: lanes of a tier queue that compete as one.
--
-- A lane in a group has `lane.tier_queue` = -number of its group, so its group's lanes are in the
-- indexes of lanes as those of a tier queue are. The row lives as long as it has lanes.

CREATE TABLE group_queue (
    number     INTEGER PRIMARY KEY,      -- numbered together with lanes
    tier_queue INTEGER NOT NULL,
    name       TEXT NOT NULL,
    vt         INTEGER NOT NULL,         -- its own, among the lanes and groups of the tier queue
    inner_vt   INTEGER NOT NULL,         -- of the lane that was served last in it
    lanes      INTEGER NOT NULL,
    runnable   INTEGER NOT NULL,         -- how many of them are runnable,
    at_gate    INTEGER NOT NULL,         -- and at a gate
    weight     REAL NOT NULL,
    UNIQUE (name, tier_queue)
);
CREATE INDEX group_runnable ON group_queue (tier_queue, vt, number) WHERE runnable > 0;

-- A group with lanes at a gate has an entry too, which is never `open`: it counts only below that
-- of its tier queue, so that opening a gate changes one row for each tier queue.
ALTER TABLE gate_entry ADD COLUMN parent INTEGER;      -- of a group: its tier queue,
ALTER TABLE gate_entry ADD COLUMN group_no INTEGER;    -- its number,
ALTER TABLE gate_entry ADD COLUMN group_vt INTEGER;    -- and its virtual time
CREATE INDEX gate_entry_group ON gate_entry (gate, parent, group_vt, group_no)
    WHERE parent IS NOT NULL;
DROP INDEX gate_entry_gate;
CREATE INDEX gate_entry_gate ON gate_entry (gate, tier_queue);
