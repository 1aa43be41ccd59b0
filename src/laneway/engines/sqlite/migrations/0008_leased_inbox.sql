-- The fence under which a message of the inbox is leased; NULL: it waits. See inbox.py.

ALTER TABLE inbox ADD COLUMN fence INTEGER;
