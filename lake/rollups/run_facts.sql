-- grain    one row per run, attempt and rank that recorded facts about its model or device, on the UTC date of the
--          record
-- inputs   scalars of the date
-- formula  The last value of each metric (by time, then by the row's id); of measured peaks, the highest.
SELECT
    run, attempt, rank, $date AS date, max(ts) AS ts,
    last_value(value ORDER BY ts, incarnation, segment, slot)
        FILTER (WHERE metric = 'model/flops_per_token') AS flops_per_token,
    last_value(value ORDER BY ts, incarnation, segment, slot)
        FILTER (WHERE metric = 'model/flops_per_step') AS flops_per_step,
    last_value(value ORDER BY ts, incarnation, segment, slot)
        FILTER (WHERE metric = 'model/hardware_flops_per_step') AS hardware_flops_per_step,
    max(value) FILTER (WHERE metric = 'device/peak_flops_measured') AS measured_peak_flops_per_s
FROM scalars
WHERE date = $date
  AND metric IN (
      'model/flops_per_token', 'model/flops_per_step', 'model/hardware_flops_per_step', 'device/peak_flops_measured'
  )
  AND value > 0
GROUP BY run, attempt, rank
