-- Requests for approval and grants, beside the tables of sessions or in a schema of their own. body: the row as JSON, see _rows.py; times are seconds since the epoch.
-- seq: when a row changed last, as a number that only grows, 0 for a new row; approval_counter has the newest. Writers take turns (an advisory lock), so that changes are seen in their order.
CREATE TABLE approval (
  id text PRIMARY KEY,
  kind text NOT NULL, key text NOT NULL, status text NOT NULL, session text, tool text NOT NULL,
  asked float8 NOT NULL, expires float8 NOT NULL, leased float8 NOT NULL, changed float8 NOT NULL,
  seq bigint NOT NULL, body text NOT NULL
);
CREATE INDEX approval_key ON approval (key);
CREATE INDEX approval_status ON approval (kind, status, asked, id);
CREATE INDEX approval_seq ON approval (seq);
CREATE INDEX approval_changed ON approval (changed);

CREATE TABLE approval_counter (seq bigint NOT NULL);
INSERT INTO approval_counter VALUES (0);

CREATE TABLE approval_version (version integer NOT NULL, readable_since integer NOT NULL);
