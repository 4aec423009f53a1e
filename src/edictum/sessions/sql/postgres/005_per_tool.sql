-- A reservation that asks for it is answered with the counters of each tool as well, of the same moment: session contracts that look
-- at them must see the calls in one order. All else is as before.

CREATE FUNCTION tallies(p_sid text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT jsonb_agg(jsonb_build_array(scope, attempts, executions, successes, failures, consecutive_failures, held))
          FROM tally WHERE sid = p_sid);
END $$;

CREATE OR REPLACE FUNCTION reserve(p_step jsonb, p_now bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  found_answer jsonb; it record; here text; new_in text[] := '{}'; lim record; judged record; w jsonb;
  breaches jsonb := '[]'; refused boolean := false; granted boolean; answer jsonb;
  lease_us bigint := (p_step->>'lease')::bigint;
BEGIN
  FOR it IN SELECT sid, call FROM sessions_of(p_step) LOOP
    PERFORM expire(it.sid, p_now);
    IF NOT EXISTS (SELECT 1 FROM lease l WHERE l.sid = it.sid AND l.call = it.call) THEN
      new_in := new_in || it.sid;
    END IF;
  END LOOP;
  SELECT l.answer INTO found_answer FROM lease l WHERE sid = p_step->>'sid' AND call = p_step->>'call';
  IF FOUND THEN
    RETURN found_answer;
  END IF;
  FOREACH here IN ARRAY new_in LOOP
    IF (p_step->>'attempt')::boolean THEN
      INSERT INTO tally (sid, scope, attempts) VALUES (here, '', 1) ON CONFLICT (sid, scope) DO UPDATE SET attempts = tally.attempts + 1;
      FOR w IN SELECT * FROM jsonb_array_elements(p_step->'windows') AS x WHERE x->>1 = 'attempts' LOOP
        PERFORM stamp(here, w, p_now, 1, p_now);
      END LOOP;
    END IF;
    FOR lim IN SELECT value, ordinality - 1 AS number FROM jsonb_array_elements(p_step->'limits') WITH ORDINALITY LOOP
      SELECT * INTO judged FROM judge(here, lim.value, p_step, p_now);
      IF judged.is_full THEN
        breaches := breaches || jsonb_build_array(jsonb_build_array(lim.number, judged.used, judged.in_flight));
        refused := refused OR (lim.value->>4)::boolean;
      END IF;
    END LOOP;
  END LOOP;
  granted := NOT (refused AND (p_step->>'enforce')::boolean);
  IF granted AND (p_step->>'hold')::boolean THEN
    FOREACH here IN ARRAY new_in LOOP
      INSERT INTO tally (sid, scope, held) SELECT here, scope, 1 FROM jsonb_array_elements_text(p_step->'scopes') AS scope
        ON CONFLICT (sid, scope) DO UPDATE SET held = tally.held + 1;
      IF p_step->'amounts' <> '{}' THEN
        PERFORM add_amounts(here, p_step->'scopes', '{}', p_step->'amounts', 1);
      END IF;
    END LOOP;
  END IF;
  answer := jsonb_build_object('granted', granted, 'counters', totals(p_step->>'sid'), 'breaches', breaches);
  IF (p_step->>'per_tool')::boolean THEN
    answer := answer || jsonb_build_object('tallies', tallies(p_step->>'sid'));
  END IF;
  IF granted AND (p_step->>'hold')::boolean THEN
    INSERT INTO lease SELECT sid, call, p_now, CASE WHEN lease_us > 0 THEN p_now + lease_us END, p_step, answer
      FROM sessions_of(p_step) WHERE sid = ANY (new_in);
  END IF;
  RETURN answer;
END $$;
