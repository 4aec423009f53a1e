-- One function per operation; run_batch and sweep are all that is called from outside. What each does is said in
-- edictum/sessions/ledger.py; the shape of the JSON is made in edictum/sessions/_wire.py. They are PL/pgSQL, whose plans are kept
-- for the life of a connection, except for places_of, which is inlined into the queries that use it.

CREATE FUNCTION now_us() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END $$;

CREATE FUNCTION totals(p_sid text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  t tally;
BEGIN
  SELECT * INTO t FROM tally WHERE sid = p_sid AND tool = '';
  RETURN CASE WHEN FOUND THEN jsonb_build_array(t.attempts, t.executions, t.successes, t.failures, t.consecutive_failures, t.held)
              ELSE '[0,0,0,0,0,0]' END;
END $$;

-- The counters of every tool.
CREATE FUNCTION tallies(p_sid text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT jsonb_agg(jsonb_build_array(tool, attempts, executions, successes, failures, consecutive_failures, held))
          FROM tally WHERE sid = p_sid);
END $$;

-- The accounts a call counts in, its session first, each with the name the call has there: ids of calls are unique within one session.
CREATE FUNCTION places_of(p_step jsonb)
RETURNS TABLE (place bigint, sid text, call text, tools jsonb, limits jsonb, windows jsonb) LANGUAGE sql IMMUTABLE AS $$
  SELECT 0::bigint, p_step->>'sid', p_step->>'call', p_step->'tools', p_step->'limits', p_step->'windows'
  UNION ALL
  SELECT n, a->>'sid', p_step->>'name', a->'tools', a->'limits', a->'windows'
  FROM jsonb_array_elements(p_step->'accounts') WITH ORDINALITY AS it(a, n)
$$;

CREATE FUNCTION add_amounts(p_sid text, p_tools jsonb, p_spent jsonb, p_reserved jsonb, p_sign int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO amount (sid, tool, name, spent, reserved)
    SELECT p_sid, tool, name, coalesce((p_spent->>name)::bigint, 0), p_sign * coalesce((p_reserved->>name)::bigint, 0)
    FROM jsonb_array_elements_text(p_tools) AS tool, jsonb_object_keys(p_spent || p_reserved) AS name
  ON CONFLICT (sid, tool, name)
    DO UPDATE SET spent = amount.spent + excluded.spent, reserved = amount.reserved + excluded.reserved;
END $$;

CREATE FUNCTION stamp(p_sid text, p_window jsonb, p_at bigint, p_value bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w_tool text := p_window->>0; w_counter text := p_window->>1;
BEGIN
  INSERT INTO moment VALUES (p_sid, w_tool, w_counter, p_at, p_value);
  IF w_counter LIKE 'amount:%' THEN
    DELETE FROM moment WHERE sid = p_sid AND tool = w_tool AND counter = w_counter AND at <= p_now - (p_window->>3)::bigint;
  ELSE
    DELETE FROM moment WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM moment WHERE sid = p_sid AND tool = w_tool AND counter = w_counter
      ORDER BY at DESC OFFSET (p_window->>2)::bigint));
  END IF;
END $$;

CREATE FUNCTION remember(p_sid text, p_call text, p_how text, p_counted jsonb, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ended VALUES (p_sid, p_call, p_how, p_counted, p_now)
  ON CONFLICT (sid, call) DO UPDATE SET how = excluded.how, counted = excluded.counted, at = excluded.at;
END $$;

-- A call that ran: an execution and its amounts count from its start, a success or failure from its end.
CREATE FUNCTION count_call(p_sid text, p_tools jsonb, p_windows jsonb, p_success boolean, p_started bigint, p_used jsonb,
                           p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w jsonb; w_counter text;
BEGIN
  INSERT INTO tally (sid, tool, executions, successes, failures, consecutive_failures)
    SELECT p_sid, tool, 1, p_success::int, (NOT p_success)::int, (NOT p_success)::int FROM jsonb_array_elements_text(p_tools) AS tool
  ON CONFLICT (sid, tool) DO UPDATE SET
    executions = tally.executions + 1,
    successes = tally.successes + excluded.successes,
    failures = tally.failures + excluded.failures,
    consecutive_failures = CASE WHEN p_success THEN 0 ELSE tally.consecutive_failures + 1 END;
  IF p_used <> '{}' THEN
    PERFORM add_amounts(p_sid, p_tools, p_used, '{}', 0);
  END IF;
  FOR w IN SELECT * FROM jsonb_array_elements(p_windows) LOOP
    w_counter := w->>1;
    IF w_counter = 'executions' THEN
      PERFORM stamp(p_sid, w, p_started, 1, p_now);
    ELSIF w_counter = (CASE WHEN p_success THEN 'successes' ELSE 'failures' END) THEN
      PERFORM stamp(p_sid, w, p_now, 1, p_now);
    ELSIF w_counter LIKE 'amount:%' AND p_used ? substr(w_counter, 8) THEN
      PERFORM stamp(p_sid, w, p_started, (p_used->>substr(w_counter, 8))::bigint, p_now);
    END IF;
  END LOOP;
END $$;

-- End a call that holds its slots; false when it holds none. Amounts that p_used does not state were used as reserved.
CREATE FUNCTION finish_call(p_sid text, p_call text, p_result text, p_used jsonb, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  held_by lease;
BEGIN
  DELETE FROM lease WHERE sid = p_sid AND call = p_call RETURNING * INTO held_by;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE tally SET held = held - 1 WHERE sid = p_sid AND tool = ANY (ARRAY(SELECT jsonb_array_elements_text(held_by.step->'tools')));
  IF held_by.step->'amounts' <> '{}' THEN
    PERFORM add_amounts(p_sid, held_by.step->'tools', '{}', held_by.step->'amounts', -1);
  END IF;
  IF p_result <> 'release' THEN
    PERFORM count_call(p_sid, held_by.step->'tools', held_by.step->'windows', p_result = 'success', held_by.started,
                       (held_by.step->'amounts') || p_used, p_now);
  END IF;
  PERFORM remember(p_sid, p_call, p_result, NULL, p_now);
  RETURN true;
END $$;

CREATE FUNCTION expire(p_sid text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  over record; counts boolean;
BEGIN
  FOR over IN SELECT call, step FROM lease WHERE sid = p_sid AND expires <= p_now LOOP
    counts := (over.step->>'counts')::boolean;
    PERFORM finish_call(p_sid, over.call, CASE WHEN counts THEN 'failure' ELSE 'release' END, '{}', p_now);
    PERFORM remember(p_sid, over.call, CASE WHEN counts THEN 'expired:counted' ELSE 'expired:released' END, over.step->'amounts', p_now);
  END LOOP;
END $$;

-- What a limit has used and what running calls hold of it, if that leaves no room for this call.
CREATE FUNCTION judge(p_sid text, p_limit jsonb, p_step jsonb, p_now bigint, OUT used bigint, OUT in_flight bigint, OUT is_full boolean)
LANGUAGE plpgsql AS $$
DECLARE
  l_tool text := p_limit->>0; l_counter text := p_limit->>1; maximum bigint := (p_limit->>2)::bigint;
  span bigint := (p_limit->>3)::bigint; l_amount text := p_limit->>6; asked bigint := (p_step->'amounts'->>l_amount)::bigint;
  t tally;
BEGIN
  in_flight := 0;
  IF l_amount <> '' THEN
    SELECT spent, reserved INTO used, in_flight FROM amount WHERE sid = p_sid AND tool = l_tool AND name = l_amount;
    in_flight := coalesce(in_flight, 0);
  ELSE
    SELECT * INTO t FROM tally WHERE sid = p_sid AND tool = l_tool;
    used := CASE l_counter WHEN 'attempts' THEN t.attempts WHEN 'executions' THEN t.executions WHEN 'successes' THEN t.successes
                           WHEN 'failures' THEN t.failures WHEN 'consecutive_failures' THEN t.consecutive_failures END;
    IF (p_limit->>5)::boolean THEN
      in_flight := coalesce(t.held, 0);
    END IF;
  END IF;
  IF span > 0 AND l_counter = 'consecutive_failures' THEN
    -- The row is made of the latest failures, so those of it that are inside the window are at most as many as it is long.
    SELECT least(coalesce(used, 0), count(*)) INTO used
      FROM moment WHERE sid = p_sid AND tool = l_tool AND counter = 'failures' AND at > p_now - span;
  ELSIF span > 0 THEN
    SELECT CASE WHEN l_amount = '' THEN count(*) ELSE sum(value) END INTO used
      FROM moment WHERE sid = p_sid AND tool = l_tool AND counter = l_counter AND at > p_now - span;
  END IF;
  used := coalesce(used, 0);
  is_full := CASE
    WHEN l_counter = 'attempts' AND (p_step->>'attempt')::boolean THEN used > maximum
    WHEN l_counter = 'attempts' THEN NOT (p_step->>'hold')::boolean AND used >= maximum
    WHEN asked IS NOT NULL AND l_amount <> '' THEN used + in_flight + asked > maximum
    ELSE used + in_flight >= maximum END;  -- who does not say what it will use may go on while anything is left
END $$;

-- An account that holds the call still, because only the call's own session was reset, has judged and counted it already: the call is
-- new in the others only. Limits are numbered through all accounts.
CREATE FUNCTION reserve(p_step jsonb, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  found_answer jsonb; it record; new_in text[] := '{}'; first bigint := 0; lim record; judged record; w jsonb;
  breaches jsonb := '[]'; refused boolean := false; granted boolean; answer jsonb;
  lease_us bigint := (p_step->>'lease')::bigint;
BEGIN
  PERFORM expire(sid, p_now) FROM places_of(p_step);
  SELECT l.answer INTO found_answer FROM lease l WHERE sid = p_step->>'sid' AND call = p_step->>'call';
  IF FOUND THEN
    RETURN found_answer;
  END IF;
  FOR it IN SELECT * FROM places_of(p_step) ORDER BY place LOOP
    first := first + jsonb_array_length(it.limits);
    CONTINUE WHEN EXISTS (SELECT 1 FROM lease l WHERE l.sid = it.sid AND l.call = it.call);
    new_in := new_in || it.sid;
    IF (p_step->>'attempt')::boolean THEN
      INSERT INTO tally (sid, tool, attempts) SELECT it.sid, tool, 1 FROM jsonb_array_elements_text(it.tools) AS tool
        ON CONFLICT (sid, tool) DO UPDATE SET attempts = tally.attempts + 1;
      FOR w IN SELECT * FROM jsonb_array_elements(it.windows) AS x WHERE x->>1 = 'attempts' LOOP
        PERFORM stamp(it.sid, w, p_now, 1, p_now);
      END LOOP;
    END IF;
    FOR lim IN SELECT value, first - jsonb_array_length(it.limits) + ordinality - 1 AS number
               FROM jsonb_array_elements(it.limits) WITH ORDINALITY LOOP
      SELECT * INTO judged FROM judge(it.sid, lim.value, p_step, p_now);
      IF judged.is_full THEN
        breaches := breaches || jsonb_build_array(jsonb_build_array(lim.number, judged.used, judged.in_flight));
        refused := refused OR (lim.value->>4)::boolean;
      END IF;
    END LOOP;
  END LOOP;
  granted := NOT (refused AND (p_step->>'enforce')::boolean);
  IF granted AND (p_step->>'hold')::boolean THEN
    INSERT INTO tally (sid, tool, held)
      SELECT sid, tool, 1 FROM places_of(p_step), jsonb_array_elements_text(tools) AS tool WHERE sid = ANY (new_in)
      ON CONFLICT (sid, tool) DO UPDATE SET held = tally.held + 1;
    IF p_step->'amounts' <> '{}' THEN
      PERFORM add_amounts(sid, tools, '{}', p_step->'amounts', 1) FROM places_of(p_step) WHERE sid = ANY (new_in);
    END IF;
  END IF;
  answer := jsonb_build_object('granted', granted, 'counters', totals(p_step->>'sid'), 'breaches', breaches);
  IF (p_step->>'per_tool')::boolean THEN
    answer := answer || jsonb_build_object('tallies', tallies(p_step->>'sid'));
  END IF;
  IF granted AND (p_step->>'hold')::boolean THEN
    INSERT INTO lease SELECT sid, call, p_now, CASE WHEN lease_us > 0 THEN p_now + lease_us END,
        CASE WHEN place = 0 THEN p_step
             ELSE jsonb_build_object('tools', tools, 'windows', windows, 'amounts', p_step->'amounts', 'counts', p_step->'counts') END,
        CASE WHEN place = 0 THEN answer ELSE '{}' END
      FROM places_of(p_step) WHERE sid = ANY (new_in);
  END IF;
  RETURN answer;
END $$;

-- A call that holds nothing any more was settled before, expired, or ran through a reset.
CREATE FUNCTION settle_late(p_sid text, p_call text, p_tools jsonb, p_windows jsonb, p_step jsonb, p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  before ended; w jsonb; more jsonb;
BEGIN
  SELECT * INTO before FROM ended WHERE sid = p_sid AND call = p_call;
  IF p_step->>'result' = 'release' OR before.how IN ('success', 'failure', 'release') THEN
    RETURN;
  END IF;
  IF before.how IS DISTINCT FROM 'expired:counted' THEN
    PERFORM count_call(p_sid, p_tools, p_windows, p_step->>'result' = 'success', p_now, p_step->'amounts', p_now);
  ELSE
    -- It was counted as failed, with the amounts it had reserved. Now it is known better.
    SELECT coalesce(jsonb_object_agg(name, used::bigint - coalesce((before.counted->>name)::bigint, 0)), '{}') INTO more
      FROM jsonb_each_text(p_step->'amounts') AS stated(name, used);
    PERFORM add_amounts(p_sid, p_tools, more, '{}', 0);
    IF p_step->>'result' = 'success' THEN
      UPDATE tally SET failures = failures - 1, successes = successes + 1, consecutive_failures = 0
        WHERE sid = p_sid AND tool = ANY (ARRAY(SELECT jsonb_array_elements_text(p_tools)));
    END IF;
    FOR w IN SELECT * FROM jsonb_array_elements(p_windows) LOOP
      IF w->>1 = 'successes' AND p_step->>'result' = 'success' THEN
        PERFORM stamp(p_sid, w, p_now, 1, p_now);
      ELSIF w->>1 LIKE 'amount:%' AND (more->>substr(w->>1, 8))::bigint > 0 THEN  -- what it used less leaves the window with its start
        PERFORM stamp(p_sid, w, p_now, (more->>substr(w->>1, 8))::bigint, p_now);
      END IF;
    END LOOP;
  END IF;
  PERFORM remember(p_sid, p_call, p_step->>'result', NULL, p_now);
END $$;

CREATE FUNCTION settle(p_step jsonb, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  reserved jsonb; it record;
BEGIN
  SELECT step INTO reserved FROM lease WHERE sid = p_step->>'sid' AND call = p_step->>'call';
  FOR it IN SELECT * FROM places_of(coalesce(reserved, p_step)) LOOP
    IF NOT finish_call(it.sid, it.call, p_step->>'result', p_step->'amounts', p_now) THEN
      PERFORM settle_late(it.sid, it.call, it.tools, it.windows, p_step, p_now);
    END IF;
  END LOOP;
  RETURN jsonb_build_object('counters', totals(p_step->>'sid'));
END $$;

CREATE FUNCTION renew(p_step jsonb, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  reserved jsonb;
BEGIN
  PERFORM expire(p_step->>'sid', p_now);
  SELECT step INTO reserved FROM lease WHERE sid = p_step->>'sid' AND call = p_step->>'call';
  IF NOT FOUND THEN
    RETURN '{"renewed": false}';
  END IF;
  UPDATE lease SET expires = p_now + (p_step->>'lease')::bigint FROM places_of(reserved) AS it
    WHERE lease.sid = it.sid AND lease.call = it.call;
  RETURN '{"renewed": true}';
END $$;

CREATE FUNCTION snapshot(p_sid text, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM expire(p_sid, p_now);
  RETURN jsonb_build_object(
    'sid', p_sid,
    'tallies', tallies(p_sid),
    'amounts', (SELECT jsonb_agg(jsonb_build_array(tool, name, spent::text, reserved::text)) FROM amount WHERE sid = p_sid));
END $$;

CREATE FUNCTION forget(p_sid text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM tally WHERE sid = p_sid;
  DELETE FROM amount WHERE sid = p_sid;
  DELETE FROM lease WHERE sid = p_sid;
  DELETE FROM ended WHERE sid = p_sid;
  DELETE FROM moment WHERE sid = p_sid;
  UPDATE session SET touched = 0, longest = 0 WHERE sid = p_sid;
  RETURN '{}';
END $$;

-- Lock every session of a batch, always in the same order, so that two batches cannot wait for each other.
CREATE FUNCTION lock_sessions(p_ops jsonb, p_ttl bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  it record; known session;
BEGIN
  FOR it IN
    SELECT s.sid, coalesce(max((SELECT max((w->>3)::bigint) FROM jsonb_array_elements(s.windows) AS w)), 0) AS longest,
           bool_or(op->>'op' IN ('reserve', 'settle')) AS asks,
           bool_or(op->>'op' = 'settle' OR (op->>'op' = 'reserve' AND ((op->>'attempt')::boolean OR (op->>'hold')::boolean))) AS uses
    FROM jsonb_array_elements(p_ops) AS op,
         LATERAL (SELECT op->>'sid' AS sid, op->'windows' AS windows
                  UNION ALL SELECT a->>'sid', a->'windows' FROM jsonb_array_elements(op->'accounts') AS a
                  UNION ALL SELECT held.sid, NULL FROM lease, LATERAL places_of(lease.step) AS held
                            WHERE op->>'op' IN ('renew', 'settle') AND lease.sid = op->>'sid' AND lease.call = op->>'call') AS s
    WHERE s.sid IS NOT NULL GROUP BY s.sid ORDER BY s.sid COLLATE "C"
  LOOP
    SELECT * INTO known FROM session WHERE sid = it.sid FOR UPDATE;
    IF it.asks AND p_ttl > 0 AND known.touched BETWEEN 1 AND p_now - greatest(p_ttl, known.longest)
       AND NOT EXISTS (SELECT 1 FROM lease WHERE sid = it.sid AND (expires IS NULL OR expires > p_now)) THEN
      PERFORM forget(it.sid);
    END IF;
    IF it.uses THEN
      INSERT INTO session VALUES (it.sid, p_now, it.longest)
        ON CONFLICT (sid) DO UPDATE SET touched = p_now, longest = greatest(session.longest, excluded.longest);
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION apply_op(p_op jsonb, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  CASE p_op->>'op'
    WHEN 'reserve' THEN RETURN reserve(p_op, p_now);
    WHEN 'settle' THEN RETURN settle(p_op, p_now);
    WHEN 'renew' THEN RETURN renew(p_op, p_now);
    WHEN 'snapshot' THEN RETURN snapshot(p_op->>'sid', p_now);
    WHEN 'reset' THEN RETURN forget(p_op->>'sid');
    WHEN 'sessions' THEN RETURN (
      SELECT jsonb_agg(snapshot(sid, p_now) ORDER BY touched DESC)
      FROM (SELECT sid, touched FROM session WHERE touched > 0 AND left(sid, 1) <> E'\x1f'
            ORDER BY touched DESC LIMIT (p_op->>'limit')::int FOR UPDATE SKIP LOCKED) AS newest);
    WHEN 'ping' THEN RETURN '{}';
  END CASE;
END $$;

-- All operations of one process that waited at the same time, as one transaction. One answer each, in the order of asking.
-- p_version is the schema that the process speaks: one that is not readable here any more must not count anything.
CREATE FUNCTION run_batch(p_client text, p_batch bigint, p_ops jsonb, p_ttl bigint, p_version int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  known client; said jsonb := '[]'; op jsonb; at_us bigint;
BEGIN
  IF p_version < (SELECT readable_since FROM schema_version) THEN
    RAISE EXCEPTION 'this schema is not readable for version % of it any more', p_version;
  END IF;
  INSERT INTO client VALUES (p_client, 0, NULL, now_us()) ON CONFLICT (id) DO NOTHING;
  SELECT * INTO known FROM client WHERE id = p_client FOR UPDATE;
  IF known.batch = p_batch THEN
    RETURN known.answers;
  END IF;
  PERFORM lock_sessions(p_ops, p_ttl, now_us());
  at_us := now_us();  -- after the locks, so that time does not run backwards within a session
  FOR op IN SELECT * FROM jsonb_array_elements(p_ops) LOOP
    said := said || jsonb_build_array(apply_op(op, at_us));
  END LOOP;
  UPDATE client SET batch = p_batch, answers = said, at = at_us WHERE id = p_client;
  RETURN said;
END $$;

-- Forget calls that ended long ago, processes that are gone, and sessions that were not used for their time to live.
CREATE FUNCTION sweep(p_ttl bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  it record; at_us bigint := now_us();
BEGIN
  DELETE FROM ended WHERE at < at_us - 3600 * 1000000::bigint;
  DELETE FROM client WHERE at < at_us - 86400 * 1000000::bigint;
  FOR it IN SELECT sid FROM session
            WHERE touched < CASE WHEN p_ttl > 0 THEN at_us - greatest(p_ttl, longest) ELSE 1 END
              AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.sid = session.sid AND (expires IS NULL OR expires > at_us))
            ORDER BY sid FOR UPDATE SKIP LOCKED LOOP
    PERFORM forget(it.sid);
    DELETE FROM session WHERE sid = it.sid;
  END LOOP;
END $$;
