-- A lane waits at one of its gates, in the order of that gate: by its turn, its virtual time there.
-- `lane.gate` is where it waits, or waited last. Lanes at gates are placed again by a sweep.
ALTER TABLE lane ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
DROP INDEX lane_gate;
UPDATE lane SET place = 0, wake = NULL, gate = NULL WHERE place = 3;
UPDATE lane SET gate = NULL WHERE gate IS NOT NULL;
CREATE INDEX lane_gate ON lane (gate, tier_queue, turn, lane) WHERE place = 3;
INSERT INTO sweep (pattern, after) SELECT '*', '' WHERE EXISTS (SELECT 1 FROM gate_entry)
    ON CONFLICT (pattern) DO UPDATE SET after = '';
UPDATE group_queue SET at_gate = 0;

ALTER TABLE gate ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;    -- of the entry served last
ALTER TABLE gate ADD COLUMN mean INTEGER NOT NULL DEFAULT 0;    -- length of a lease, microseconds
ALTER TABLE gate ADD COLUMN holder INTEGER NOT NULL DEFAULT 0;  -- the lane that `need` is held for
ALTER TABLE gate ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0; -- lanes at gates that go through it
UPDATE gate SET need = 0, held_until = 0;

-- The virtual times of a group at gates: its own and that of its lane served last there; and how
-- many of its lanes wait there.
CREATE TABLE group_turn (
    group_no   INTEGER NOT NULL,
    gate       TEXT NOT NULL,
    tier_queue INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    inner_turn INTEGER NOT NULL,
    waiting    INTEGER NOT NULL,
    PRIMARY KEY (group_no, gate)
) WITHOUT ROWID;
CREATE INDEX group_turn_order ON group_turn (gate, tier_queue, turn, group_no) WHERE waiting > 0;

-- One row for each gate and tier queue that has lanes there: the position of its first one in the
-- tier queue.
DROP TABLE gate_part;
DROP TABLE gate_entry;
CREATE TABLE gate_entry (
    tier_queue INTEGER NOT NULL,
    gate TEXT NOT NULL,
    vt   INTEGER NOT NULL,
    head INTEGER NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (tier_queue, gate)
) WITHOUT ROWID;
CREATE INDEX gate_entry_open ON gate_entry (tier_queue, vt, head) WHERE open = 1;
CREATE INDEX gate_entry_gate ON gate_entry (gate, tier_queue);
