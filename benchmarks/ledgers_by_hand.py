"""Counters on SQLite, Valkey and PostgreSQL as a good engineer writes them in an afternoon.

Each has ``reserve`` before a call and ``settle`` after it, and each of them is one atomic step: no
limit is passed under any number of calls at once, and a call whose process dies is known by its
lease. Kept: attempts, executions, successes, failures and calls in flight, per session and per
tool. What they do not have: windows, amounts, parent sessions, repeated answers, renewal, expiry,
circuit breakers, several event loops, forks.
"""

import asyncio
import hashlib
import json
import queue
import sqlite3
import threading
import time

LEASE_S = 60.0

SQLITE_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE tally (
  sid TEXT NOT NULL, tool TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, executions INTEGER NOT NULL DEFAULT 0,
  successes INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  held INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (sid, tool)
) WITHOUT ROWID;
CREATE TABLE lease (
  sid TEXT NOT NULL, call TEXT NOT NULL, tool TEXT NOT NULL, expires REAL NOT NULL,
  PRIMARY KEY (sid, call)
) WITHOUT ROWID;
"""


class SqliteByHand:
    """One thread writes; what has come together while it was busy is one transaction."""

    ATTEMPT = (
        "INSERT INTO tally (sid, tool, attempts) VALUES (?, ?, 1)"
        " ON CONFLICT DO UPDATE SET attempts = attempts + 1"
    )
    HOLD = (
        "UPDATE tally SET held = held + 1 WHERE sid = ? AND tool = '' AND attempts <= ?"
        " AND executions + held < ? RETURNING attempts, executions"
    )
    HOLD_TOOL = (
        "INSERT INTO tally (sid, tool, attempts, held) VALUES (?, ?, 1, 1)"
        " ON CONFLICT DO UPDATE SET attempts = attempts + 1, held = held + 1"
    )
    LEASE = "INSERT INTO lease (sid, call, tool, expires) VALUES (?, ?, ?, ?)"
    END = "DELETE FROM lease WHERE sid = ? AND call = ?"
    COUNT = (
        "UPDATE tally SET held = held - 1, executions = executions + 1, successes = successes + ?,"
        " failures = failures + ? WHERE sid = ? AND tool IN ('', ?)"
    )

    def __init__(self, path, max_attempts, max_calls):
        self._path, self._limits = path, (max_attempts, max_calls)
        self._wanted = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    async def reserve(self, sid, call, tool):
        """Return attempts and executions so far, or None where a limit is reached."""
        return await self._ask(self._reserve, (sid, call, tool))

    async def settle(self, sid, call, tool, success):
        await self._ask(self._settle, (sid, call, tool, success))

    async def close(self):
        self._wanted.put(None)
        await asyncio.to_thread(self._thread.join)

    def _ask(self, work, arguments):
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._wanted.put((work, arguments, loop, future))
        return future

    def _write(self):
        db = sqlite3.connect(self._path, isolation_level=None)
        self._prepare(db)
        while (first := self._wanted.get()) is not None:
            batch = [first]
            while not self._wanted.empty() and len(batch) < 500:
                batch.append(self._wanted.get())
            stop = None in batch
            self._answer([one for one in batch if one is not None], db)
            if stop:
                break
        db.close()

    def _prepare(self, db):
        db.executescript(SQLITE_TABLES)

    def _answer(self, batch, db):
        db.execute("BEGIN IMMEDIATE")
        try:
            answers = [work(db, *arguments) for work, arguments, _, _ in batch]
            db.execute("COMMIT")
        except Exception as exc:
            db.execute("ROLLBACK")
            batch[0][2].call_soon_threadsafe(_fail, [one[3] for one in batch], exc)
            return
        batch[0][2].call_soon_threadsafe(_give, [one[3] for one in batch], answers)

    def _reserve(self, db, sid, call, tool):
        max_attempts, max_calls = self._limits
        db.execute(self.ATTEMPT, (sid, ""))
        counted = db.execute(self.HOLD, (sid, max_attempts, max_calls)).fetchone()
        if counted is not None:
            db.execute(self.HOLD_TOOL, (sid, tool))
            db.execute(self.LEASE, (sid, call, tool, time.time() + LEASE_S))
        return counted

    def _settle(self, db, sid, call, tool, success):
        if db.execute(self.END, (sid, call)).rowcount:
            db.execute(self.COUNT, (success, not success, sid, tool))


class ChainedByHand(SqliteByHand):
    """With a table of events: each is written in the transaction that counts its call, with the
    counters of that moment, and holds the hash of the one before it.
    """

    EVENTS = """
    CREATE TABLE event (
      id INTEGER PRIMARY KEY, at TEXT NOT NULL, session TEXT NOT NULL, tool TEXT NOT NULL,
      action TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL
    );
    CREATE INDEX event_at ON event (at);
    CREATE INDEX event_session ON event (session);
    """
    WRITE = "INSERT INTO event (at, session, tool, action, body, hash) VALUES (?, ?, ?, ?, ?, ?)"

    def __init__(self, path, max_attempts, max_calls):
        self._hash = "0" * 64
        super().__init__(path, max_attempts, max_calls)

    def _prepare(self, db):
        super()._prepare(db)
        db.executescript(self.EVENTS)

    async def reserve(self, sid, call, tool, allowed, denied):
        return await self._ask(self._reserve, (sid, call, tool, allowed, denied))

    async def settle(self, sid, call, tool, success, ended):
        await self._ask(self._settle, (sid, call, tool, success, ended))

    def _reserve(self, db, sid, call, tool, allowed, denied):
        counted = super()._reserve(db, sid, call, tool)
        self._append(db, denied if counted is None else allowed, counted or (0, 0))
        return counted

    def _settle(self, db, sid, call, tool, success, ended):
        super()._settle(db, sid, call, tool, success)
        total = "SELECT attempts, executions FROM tally WHERE sid = ? AND tool = ''"
        self._append(db, ended, db.execute(total, (sid,)).fetchone())

    def _append(self, db, event, counters):
        event["session_attempt_count"], event["session_execution_count"] = counters
        event["previous"] = self._hash
        body = json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self._hash = hashlib.sha256(body.encode()).hexdigest()
        names = (event["timestamp"], event["session_id"], event["tool_name"], event["action"])
        db.execute(self.WRITE, (*names, body, self._hash))


def _give(futures, answers):
    for future, answer in zip(futures, answers, strict=True):
        if not future.done():
            future.set_result(answer)


def _fail(futures, exc):
    for future in futures:
        if not future.done():
            future.set_exception(exc)


class ValkeyByHand:
    """A script per step, through the library's own pool of connections."""

    RESERVE = """
    local attempts = redis.call('HINCRBY', KEYS[1], 'attempts', 1)
    local executions = tonumber(redis.call('HGET', KEYS[1], 'executions') or '0')
    local held = tonumber(redis.call('HGET', KEYS[1], 'held') or '0')
    if attempts > tonumber(ARGV[3]) or executions + held >= tonumber(ARGV[4]) then return false end
    redis.call('HINCRBY', KEYS[1], 'held', 1)
    redis.call('HINCRBY', KEYS[1], 'attempts:' .. ARGV[2], 1)
    redis.call('HINCRBY', KEYS[1], 'held:' .. ARGV[2], 1)
    redis.call('ZADD', KEYS[2], redis.call('TIME')[1] + ARGV[5], ARGV[1])
    return {attempts, executions}
    """
    SETTLE = """
    if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return end
    for _, tail in ipairs({'', ':' .. ARGV[2]}) do
      redis.call('HINCRBY', KEYS[1], 'held' .. tail, -1)
      redis.call('HINCRBY', KEYS[1], 'executions' .. tail, 1)
      redis.call('HINCRBY', KEYS[1], ARGV[3] .. tail, 1)
    end
    """

    def __init__(self, url, max_attempts, max_calls):
        import redis.asyncio

        self._client = redis.asyncio.Redis.from_url(url)
        self._limits = (max_attempts, max_calls)
        self._reserve = self._client.register_script(self.RESERVE)
        self._settle = self._client.register_script(self.SETTLE)

    async def reserve(self, sid, call, tool):
        keys = [f"tally:{sid}", f"lease:{sid}"]
        return await self._reserve(keys, [call, tool, *self._limits, LEASE_S])

    async def settle(self, sid, call, tool, success):
        keys = [f"tally:{sid}", f"lease:{sid}"]
        await self._settle(keys, [call, tool, "successes" if success else "failures"])

    async def close(self):
        await self._client.aclose()


class PostgresByHand:
    """One statement per step, through the library's own pool. The row of the session is locked
    first, so calls of one session queue on it and never wait for each other in a circle.
    """

    TABLES = """
    CREATE TABLE IF NOT EXISTS session_by_hand (
      sid text PRIMARY KEY, attempts bigint NOT NULL DEFAULT 0,
      executions bigint NOT NULL DEFAULT 0, successes bigint NOT NULL DEFAULT 0,
      failures bigint NOT NULL DEFAULT 0, held bigint NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS tool_by_hand (
      sid text, tool text, attempts bigint NOT NULL, executions bigint NOT NULL DEFAULT 0,
      successes bigint NOT NULL DEFAULT 0, failures bigint NOT NULL DEFAULT 0,
      held bigint NOT NULL, PRIMARY KEY (sid, tool));
    CREATE TABLE IF NOT EXISTS lease_by_hand (
      sid text, call text, tool text, expires timestamptz, PRIMARY KEY (sid, call));
    """
    RESERVE = """
    WITH counted AS (
      INSERT INTO session_by_hand AS s (sid, attempts, held) VALUES ($1, 1, 1)
      ON CONFLICT (sid) DO UPDATE SET attempts = s.attempts + 1, held = s.held + 1
      WHERE s.attempts < $4 AND s.executions + s.held < $5
      RETURNING attempts, executions
    ), leased AS (
      INSERT INTO lease_by_hand SELECT $1, $2, $3, now() + $6 * interval '1 second' FROM counted
    ), used AS (
      INSERT INTO tool_by_hand AS t (sid, tool, attempts, held) SELECT $1, $3, 1, 1 FROM counted
      ON CONFLICT (sid, tool) DO UPDATE SET attempts = t.attempts + 1, held = t.held + 1
    ) SELECT attempts, executions FROM counted
    """
    SETTLE = """
    WITH ended AS (
      DELETE FROM lease_by_hand WHERE sid = $1 AND call = $2 RETURNING sid
    ), counted AS (
      UPDATE session_by_hand AS s SET held = held - 1, executions = executions + 1,
        successes = successes + $4, failures = failures + 1 - $4
      FROM ended WHERE s.sid = ended.sid RETURNING s.sid
    ) UPDATE tool_by_hand AS t SET held = held - 1, executions = executions + 1,
        successes = successes + $4, failures = failures + 1 - $4
      FROM counted WHERE t.sid = counted.sid AND t.tool = $3
    """

    def __init__(self, url, max_attempts, max_calls):
        self._url, self._limits = url, (max_attempts, max_calls)
        self._pool = None

    async def open(self):
        import asyncpg

        self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=10)
        await self._pool.execute(self.TABLES)

    async def reserve(self, sid, call, tool):
        return await self._pool.fetchrow(self.RESERVE, sid, call, tool, *self._limits, LEASE_S)

    async def settle(self, sid, call, tool, success):
        await self._pool.execute(self.SETTLE, sid, call, tool, int(success))

    async def close(self):
        await self._pool.close()
