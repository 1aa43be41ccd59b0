-- Lanes with several gates. The key of such lanes, in `lane.gate` and `gate_entry.gate`, is their
-- gates' names joined by U+001F. One row for each gate of each such entry, so that a gate that
-- opens or shuts finds its entries.
CREATE TABLE gate_part (
    gate       TEXT NOT NULL,
    tier_queue INTEGER NOT NULL,
    entry      TEXT NOT NULL,
    PRIMARY KEY (gate, tier_queue, entry)
) WITHOUT ROWID;
