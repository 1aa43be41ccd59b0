-- The store of one namespace: one file, one shard.
--
-- Design. *Lanes* decide what is served next. A lane has a row only while it has messages or
-- leases, and for a moment afterwards: an idle topic has no row anywhere. Two partial indexes serve
-- all lanes: `lane_runnable` by virtual time and `lane_timer` by the clock. Messages are read only
-- after their lane was chosen.
--
-- A message has two rows while it waits (`message`, appended; `ready`, the order in its lane) and
-- two while it is leased (`message`; `lease`, appended, because fences grow). Everything else
-- (keys, merges, own ids, ttls) has tables of its own, which only messages with these features
-- have rows in. The deadlines of a batch of leases are one event. messages.py has a table of the
-- rows that each state has.
--
-- Times are integer microseconds since 1970, rate clocks (tat) quarter microseconds: see
-- engines/shared/fairness.py.

CREATE TABLE shard (                     -- one row: counters, and the clock that never goes back
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    nonce          TEXT NOT NULL,        -- the first part of generated ids
    seq            INTEGER NOT NULL DEFAULT 0,
    fence          INTEGER NOT NULL DEFAULT 0,
    now            INTEGER NOT NULL DEFAULT 0,
    policy_version INTEGER NOT NULL DEFAULT 0,
    waiting        INTEGER NOT NULL DEFAULT 0,
    bytes          INTEGER NOT NULL DEFAULT 0,
    leased         INTEGER NOT NULL DEFAULT 0,
    dead           INTEGER NOT NULL DEFAULT 0,
    published      INTEGER NOT NULL DEFAULT 0,
    delivered      INTEGER NOT NULL DEFAULT 0,
    done           INTEGER NOT NULL DEFAULT 0,
    retried        INTEGER NOT NULL DEFAULT 0,
    died           INTEGER NOT NULL DEFAULT 0,
    merged         INTEGER NOT NULL DEFAULT 0,
    expired        INTEGER NOT NULL DEFAULT 0,
    removed        INTEGER NOT NULL DEFAULT 0,
    lanes          INTEGER NOT NULL DEFAULT 0
);

-- tiers, limits of the namespace (JSON)
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE policy (layer TEXT NOT NULL, pattern TEXT NOT NULL, fields TEXT NOT NULL,
    PRIMARY KEY (layer, pattern)) WITHOUT ROWID;

-- a changed pattern whose lanes have not all been placed again yet
CREATE TABLE sweep (
    pattern TEXT PRIMARY KEY,
    after   TEXT NOT NULL                -- the name of the last lane that was placed
) WITHOUT ROWID;

CREATE TABLE tier_queue (                      -- one tier of one pool
    tier_queue      INTEGER PRIMARY KEY,
    pool      TEXT NOT NULL,
    tier      TEXT NOT NULL,
    vt        INTEGER NOT NULL DEFAULT 0,   -- the virtual time of the lane that was served last
    carry     INTEGER NOT NULL DEFAULT 0,   -- of the tier's share, see fairness.split
    mean      INTEGER NOT NULL DEFAULT 0,   -- a message's mean duration in microseconds, 0: unknown
    delivered INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pool, tier)
);

CREATE TABLE gate (
    name        TEXT PRIMARY KEY,
    -- the limits that the code and the operator set (JSON); the operator's precede
    code        TEXT,
    operator    TEXT,
    tat         INTEGER NOT NULL DEFAULT 0,
    leased      INTEGER NOT NULL DEFAULT 0,
    open        INTEGER NOT NULL DEFAULT 1,
    -- the next permit of a shut gate; NULL: it is open, or opens at a settle
    wake        INTEGER
) WITHOUT ROWID;
CREATE INDEX gate_timer ON gate (wake) WHERE wake IS NOT NULL;

-- one row for each gate and tier queue that has lanes at it: the first of these lanes
CREATE TABLE gate_entry (
    tier_queue INTEGER NOT NULL,
    gate TEXT NOT NULL,
    vt   INTEGER NOT NULL,
    head INTEGER NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (tier_queue, gate)
) WITHOUT ROWID;
CREATE INDEX gate_entry_open ON gate_entry (tier_queue, vt, head) WHERE open = 1;
CREATE INDEX gate_entry_gate ON gate_entry (gate);

CREATE TABLE lane (
    lane       INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,     -- the topic; topic ␟ partition; ␞ pattern ␟ bucket
    -- the topic or pattern that its policy is resolved for; NULL: its name
    rule       TEXT,
    tier_queue       INTEGER NOT NULL,
    -- 0 idle · 1 runnable · 2 asleep · 3 at its gate · 4 full · 5 paused
    place      INTEGER NOT NULL,
    wake       INTEGER,                  -- asleep: until then · idle: deleted then
    vt         INTEGER NOT NULL,
    gate       TEXT,
    tat        INTEGER NOT NULL,
    ready      INTEGER NOT NULL,
    delayed    INTEGER NOT NULL,
    parked     INTEGER NOT NULL,
    leased     INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    published  INTEGER NOT NULL,
    delivered  INTEGER NOT NULL,
    done       INTEGER NOT NULL,
    -- recent deliveries, in windows: when the present window began,
    seen       INTEGER NOT NULL,
    lately     INTEGER NOT NULL,         -- the deliveries in it,
    before     INTEGER NOT NULL,         -- and in the one before
    -- what few lanes have: back-off, rare counts, mean duration (JSON, see rows.Lane)
    more       TEXT,
    -- size classes for the top lists, see size_classes.py; NULL: too small
    big        INTEGER,
    old        INTEGER,
    busy       INTEGER,
    slow       INTEGER
);
CREATE INDEX lane_runnable ON lane (tier_queue, vt, lane) WHERE place = 1;
CREATE INDEX lane_timer ON lane (place, wake, lane) WHERE wake IS NOT NULL;
CREATE INDEX lane_gate ON lane (gate, tier_queue, vt, lane) WHERE place = 3;
CREATE INDEX lane_big ON lane (big) WHERE big IS NOT NULL;
CREATE INDEX lane_old ON lane (old) WHERE old IS NOT NULL;
CREATE INDEX lane_busy ON lane (busy) WHERE busy IS NOT NULL;
CREATE INDEX lane_slow ON lane (slow) WHERE slow IS NOT NULL;

CREATE TABLE message (
    mid        INTEGER PRIMARY KEY,      -- its first sequence number; generated ids contain it
    lane       INTEGER NOT NULL,
    state      INTEGER NOT NULL,         -- 0 ready or leased · 1 delayed · 2 parked · 3 dead
    rank       INTEGER NOT NULL,         -- -2 · priority, + 1 unless it is at the front
    seq        INTEGER NOT NULL,
    since      INTEGER NOT NULL,         -- publish time, or due time
    published  INTEGER NOT NULL,
    expires    INTEGER,
    serial     INTEGER NOT NULL,         -- 0 no · 1 hold · 2 yield
    -- 1: its order may differ from that of its sequence number (cursors read these)
    odd        INTEGER NOT NULL,
    key        TEXT,
    id         TEXT,                     -- its own id; NULL: a generated one
    topic      TEXT,                     -- set if the lane is a bucket
    mkey       BLOB,                     -- merge key
    headers    TEXT,
    attempts   INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0,
    suspect    INTEGER NOT NULL DEFAULT 0,
    joined     INTEGER NOT NULL DEFAULT 0,   -- 1: other messages joined it, see ident
    parts      INTEGER NOT NULL DEFAULT 0,   -- bodies beyond the first
    sticky     INTEGER NOT NULL DEFAULT 0,
    body       BLOB NOT NULL
);
CREATE INDEX message_aside ON message (lane, state, rank, since) WHERE state IN (1, 2);
CREATE INDEX message_odd ON message (lane, rank, seq) WHERE odd = 1;
CREATE INDEX message_topic ON message (topic, mid) WHERE topic IS NOT NULL;

CREATE TABLE ready (                     -- the order in which a lane's messages are delivered
    lane INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,               -- since; at the front: minus the sequence number
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, rank, pos, seq)
) WITHOUT ROWID;

CREATE TABLE lease (
    fence    INTEGER PRIMARY KEY,
    mid      INTEGER NOT NULL,
    lane     INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    -- the duration charged at delivery, in tiers that are fair by time
    charge   INTEGER NOT NULL,
    started  INTEGER NOT NULL,           -- 1: the start of this suspect is recorded
    gate     TEXT,
    -- at most once: no message is left; "" or the serial key that the lease holds
    empty    TEXT,
    gone     INTEGER NOT NULL DEFAULT 0  -- its topic was deleted
);

-- merge = all
CREATE TABLE part (mid INTEGER NOT NULL, n INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (mid, n)) WITHOUT ROWID;

CREATE TABLE note (                      -- what only failed or unhandled messages have
    mid       INTEGER PRIMARY KEY,
    unhandled INTEGER,                   -- when a worker first had no handler for it
    tries     INTEGER NOT NULL DEFAULT 0,
    history   TEXT NOT NULL DEFAULT '[]'
);

CREATE TABLE serial_key (                -- a key with a ready or leased message
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    head INTEGER NOT NULL,               -- that message
    held INTEGER NOT NULL,               -- 1: it is leased, or waits for a retry
    PRIMARY KEY (lane, key)
) WITHOUT ROWID;

CREATE TABLE parked (                    -- the messages behind the head of their key
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, key, rank, pos, seq)
) WITHOUT ROWID;

-- the waiting message of each merge key
CREATE TABLE merge_key (lane INTEGER NOT NULL, mkey BLOB NOT NULL, mid INTEGER NOT NULL,
    PRIMARY KEY (lane, mkey)) WITHOUT ROWID;

-- edge = leading: until when new messages of a key wait for the end of the window
CREATE TABLE edge (
    topic TEXT NOT NULL,
    mkey  BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (topic, mkey)
) WITHOUT ROWID;
CREATE INDEX edge_until ON edge (until);

-- own ids, joined ids, and ids of finished messages
CREATE TABLE ident (
    id    TEXT NOT NULL,
    topic TEXT NOT NULL,
    mid   INTEGER,                       -- NULL: finished
    alias INTEGER NOT NULL DEFAULT 0,    -- 1: the id of a message that joined `mid`
    until INTEGER,                       -- finished: when it is deleted; NULL: never
    PRIMARY KEY (id, topic)
) WITHOUT ROWID;
CREATE INDEX ident_alias ON ident (mid) WHERE alias = 1;
CREATE INDEX ident_until ON ident (until) WHERE until IS NOT NULL;
CREATE INDEX ident_topic ON ident (topic) WHERE mid IS NULL;

CREATE TABLE dead (
    no     INTEGER PRIMARY KEY,
    mid    INTEGER NOT NULL UNIQUE,
    topic  TEXT NOT NULL,
    died   INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error  TEXT
);
CREATE INDEX dead_topic ON dead (topic, no);

CREATE TABLE event (                     -- what happens by the clock
    at   INTEGER NOT NULL,
    -- 1 leases run out (fences a … b) · 2 due · 3 expires
    -- 4 retention of a dead letter ends (a: message)
    kind INTEGER NOT NULL,
    a    INTEGER NOT NULL,
    b    INTEGER,
    PRIMARY KEY (at, kind, a)
) WITHOUT ROWID;
