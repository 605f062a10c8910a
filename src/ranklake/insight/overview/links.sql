-- Grain: one row per device whose links told of errors in the last day. Input: gpu_samples: counters, of which the
-- greatest reading of a sampling process less its least is what came.
SELECT device_uuid, max(device_name) AS device_name, last_value(holder ORDER BY last_ts) AS holder,
  sum(crc) AS nvlink_crc_count, sum(replays) AS nvlink_replay_count, sum(recoveries) AS nvlink_recovery_count,
  sum(pcie) AS pcie_replay_count, max(last_ts) AS last_ts
FROM (
  SELECT device_uuid, max(device_name) AS device_name, last_value(holder_run ORDER BY ts) AS holder,
    coalesce(max(nvlink_crc_flit_error_count) - min(nvlink_crc_flit_error_count), 0)
      + coalesce(max(nvlink_crc_data_error_count) - min(nvlink_crc_data_error_count), 0) AS crc,
    max(nvlink_replay_error_count) - min(nvlink_replay_error_count) AS replays,
    max(nvlink_recovery_error_count) - min(nvlink_recovery_error_count) AS recoveries,
    max(pcie_replay_count) - min(pcie_replay_count) AS pcie, max(ts) AS last_ts
  FROM gpu_samples
  WHERE ts >= {day_ago} AND date >= {since_date}
  GROUP BY device_uuid, source, incarnation
)
WHERE device_uuid IS NOT NULL
GROUP BY device_uuid
HAVING sum(crc) > 0 OR sum(replays) > 0 OR sum(recoveries) > 0 OR sum(pcie) > {pcie_replays}
ORDER BY nvlink_recovery_count DESC NULLS LAST, nvlink_crc_count DESC, nvlink_replay_count DESC NULLS LAST,
  pcie_replay_count DESC NULLS LAST, device_uuid
LIMIT 50
