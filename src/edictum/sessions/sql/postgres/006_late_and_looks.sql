-- A call that was counted when its lease ran out, and ends all the same, is charged what it used of amounts it had not reserved as
-- well. And who only looks, counting nothing and taking nothing, uses no session: it is not listed, and not kept for longer. All else
-- is as before.

-- A call that holds nothing any more was settled before, expired, or ran through a reset.
CREATE OR REPLACE FUNCTION settle_late(p_sid text, p_call text, p_step jsonb, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  before ended; w jsonb; more jsonb; scopes jsonb := p_step->'scopes';
BEGIN
  SELECT * INTO before FROM ended WHERE sid = p_sid AND call = p_call;
  IF p_step->>'result' = 'release' OR before.how IN ('success', 'failure', 'release') THEN
    RETURN;
  END IF;
  IF before.how IS DISTINCT FROM 'expired:counted' THEN
    PERFORM count_call(p_sid, scopes, p_step->'windows', p_step->>'result' = 'success', p_now, p_step->'amounts', p_now);
  ELSE
    -- It was counted as failed, with the amounts it had reserved. Now it is known better.
    SELECT coalesce(jsonb_object_agg(name, used::bigint - coalesce((before.counted->>name)::bigint, 0)), '{}') INTO more
      FROM jsonb_each_text(p_step->'amounts') AS stated(name, used);
    PERFORM add_amounts(p_sid, scopes, more, '{}', 0);
    IF p_step->>'result' = 'success' THEN
      UPDATE tally SET failures = failures - 1, successes = successes + 1, consecutive_failures = 0
        WHERE sid = p_sid AND scope = ANY (ARRAY(SELECT jsonb_array_elements_text(scopes)));
    END IF;
    FOR w IN SELECT * FROM jsonb_array_elements(p_step->'windows') LOOP
      IF w->>1 = 'successes' AND p_step->>'result' = 'success' THEN
        PERFORM stamp(p_sid, w, p_now, 1, p_now);
      ELSIF w->>1 LIKE 'amount:%' AND (more->>substr(w->>1, 8))::bigint > 0 THEN  -- what it used less leaves the window with its start
        PERFORM stamp(p_sid, w, p_now, (more->>substr(w->>1, 8))::bigint, p_now);
      END IF;
    END LOOP;
  END IF;
  PERFORM remember(p_sid, p_call, p_step->>'result', NULL, p_now);
END $$;

-- Lock every session of a batch, always in the same order, so that two batches cannot wait for each other.
CREATE OR REPLACE FUNCTION lock_sessions(p_ops jsonb, p_ttl bigint, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  it record; last_used bigint;
BEGIN
  FOR it IN
    SELECT s.sid, bool_or(op->>'op' IN ('reserve', 'settle')) AS asks,
           bool_or(op->>'op' = 'settle' OR (op->>'op' = 'reserve' AND ((op->>'attempt')::boolean OR (op->>'hold')::boolean))) AS uses
    FROM jsonb_array_elements(p_ops) AS op,
         LATERAL (SELECT op->>'sid' AS sid UNION ALL SELECT jsonb_array_elements_text(op->'parents')
                  UNION ALL SELECT above.sid FROM lease, LATERAL sessions_of(lease.step) AS above
                            WHERE op->>'op' = 'renew' AND lease.sid = op->>'sid' AND lease.call = op->>'call') AS s
    WHERE s.sid IS NOT NULL GROUP BY s.sid ORDER BY s.sid COLLATE "C"
  LOOP
    SELECT touched INTO last_used FROM session WHERE sid = it.sid FOR UPDATE;
    IF it.asks AND p_ttl > 0 AND last_used BETWEEN 1 AND p_now - p_ttl
       AND NOT EXISTS (SELECT 1 FROM lease WHERE sid = it.sid AND (expires IS NULL OR expires > p_now)) THEN
      PERFORM forget(it.sid);
    END IF;
    IF it.uses THEN
      INSERT INTO session VALUES (it.sid, p_now) ON CONFLICT (sid) DO UPDATE SET touched = p_now;
    END IF;
  END LOOP;
END $$;
