-- Rates by cost: a gate may be held until it has the permits that a delivery of a high cost needs.
ALTER TABLE gate ADD COLUMN need INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gate ADD COLUMN held_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gate ADD COLUMN owes INTEGER NOT NULL DEFAULT 0;
