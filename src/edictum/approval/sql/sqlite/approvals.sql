-- Requests for approval and grants, beside the tables of sessions or in a file of their own. body: the row as JSON, see _rows.py; seq: when it changed last, as a number that only grows.
CREATE TABLE approval (
  id     TEXT PRIMARY KEY,
  kind TEXT NOT NULL, key TEXT NOT NULL, status TEXT NOT NULL, session TEXT, tool TEXT NOT NULL,
  asked REAL NOT NULL, expires REAL NOT NULL, leased REAL NOT NULL, changed REAL NOT NULL,
  seq INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX approval_key ON approval (key);
CREATE INDEX approval_status ON approval (kind, status, asked, id);
CREATE INDEX approval_seq ON approval (seq);
CREATE INDEX approval_changed ON approval (changed);

CREATE TABLE approval_version (written_by INTEGER NOT NULL, readable_since INTEGER NOT NULL);
