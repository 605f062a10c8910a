-- Grain: one row per span of a rank of a run's attempt. Input: spans. start_ns is exact where it was recorded, else ts.
SELECT CAST(ts AS BIGINT) AS ts_us, incarnation, segment, slot, name, kind, span_id, parent_id, trace_id, step, stream,
  coalesce(start_ns, CAST(ts AS BIGINT) * 1000) AS start_ns, duration_ns, microbatch, dp_rank, pp_rank, tp_rank, bytes,
  process_group, group_size, sequence, device_time
FROM spans
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
  AND {after}
ORDER BY ts, incarnation, segment, slot
LIMIT {most}
