-- The registry: live state that is looked up by something other than an id or a due time.
--
-- Every table has key columns, columns to search by, and one body: the msgpack of key, searched columns and value.
-- `crc` is the CRC-32C of the body, so that a flipped bit is found at the row it is in (SQLite does not look).

CREATE TABLE meta          (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;

-- Messages that were restarted, or are to be listed by owner: where their present version is.
CREATE TABLE live          (origin_seq INTEGER PRIMARY KEY, owner TEXT, due_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX live_by_owner ON live (owner, due_at_ms, origin_seq) WHERE owner IS NOT NULL;

-- What became of messages, for as long as the retention says.
CREATE TABLE finalised     (origin_seq INTEGER PRIMARY KEY, owner TEXT, finalised_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX finalised_by_time  ON finalised (finalised_at_ms, origin_seq);
CREATE INDEX finalised_by_owner ON finalised (owner, finalised_at_ms, origin_seq) WHERE owner IS NOT NULL;

CREATE TABLE groups        (owner TEXT, name TEXT, closed_at_ms INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (owner, name)) WITHOUT ROWID;
CREATE TABLE idempotency   (owner TEXT, key TEXT, accepted_at_ms INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (owner, key)) WITHOUT ROWID;
CREATE INDEX idempotency_by_time ON idempotency (accepted_at_ms);
CREATE TABLE owners        (owner TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE policies      (scope TEXT, name TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (scope, name)) WITHOUT ROWID;

CREATE TABLE topics        (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE chunks        (topic TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE waiting       (topic TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE subscriptions (topic TEXT, name TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, name)) WITHOUT ROWID;
CREATE TABLE acks          (topic TEXT, subscription TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, subscription, number)) WITHOUT ROWID;
CREATE TABLE producers     (topic TEXT, producer TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, producer)) WITHOUT ROWID;
