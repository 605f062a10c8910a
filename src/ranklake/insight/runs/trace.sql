-- Grain: one row per span of a step of a run's attempt. Input: spans. Spans without a step, within one that has it, are
-- not in it. start_ns is exact where a profiler told it, and else that of ts, to the microsecond.
SELECT rank, incarnation, name, kind, span_id, parent_id, stream,
  coalesce(start_ns, CAST(ts AS BIGINT) * 1000) AS start_ns, duration_ns, microbatch, pp_rank, dp_rank, tp_rank, bytes,
  process_group, group_size, sequence, device_time, trace_id
FROM spans
WHERE run = $run AND attempt = {attempt} AND step = {step}
ORDER BY rank, incarnation, start_ns, duration_ns DESC, span_id
LIMIT {most}
