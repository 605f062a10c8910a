-- grain    one row per minute (UTC), device (or MIG instance), source and holder in the samples; samples without a
--          device's identity are left out
-- inputs   gpu_samples of the date
-- formula  Means are over the samples of the minute with a possible value. Counters are the greatest value of the
--          minute; lanes and active links are the least. Sums are of integers (millionths, thousandths, hertz), so the
--          order of rows does not change any digit.
SELECT
    to_timestamp_micros(CAST($begin AS BIGINT) + (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 60000000 * 60000000)
        AT TIME ZONE 'UTC' AS minute,
    min(host) AS host, device_uuid, min(device_index) AS device_index, max(device_name) AS device_name,
    mig_gpu_instance, mig_compute_instance, source, holder_run, holder_attempt, holder_rank,
    min(ts) AS first_ts, max(ts) AS last_ts, count(*) AS sample_count,
    sum(CASE WHEN sm_active_ratio BETWEEN 0 AND 1 THEN CAST(sm_active_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN sm_active_ratio BETWEEN 0 AND 1 THEN 1 END), 0) AS sm_active_ratio,
    sum(CASE WHEN gpu_utilization_ratio BETWEEN 0 AND 1 THEN CAST(gpu_utilization_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN gpu_utilization_ratio BETWEEN 0 AND 1 THEN 1 END), 0) AS gpu_utilization_ratio,
    sum(CASE WHEN temperature_celsius BETWEEN -50 AND 200 THEN CAST(temperature_celsius * 1e3 AS BIGINT) END)
        / 1e3 / nullif(count(CASE WHEN temperature_celsius BETWEEN -50 AND 200 THEN 1 END), 0) AS temperature_celsius,
    max(slowdown_temperature_celsius) AS slowdown_temperature_celsius,
    sum(CASE WHEN sm_clock_hz BETWEEN 0 AND 1e11 THEN CAST(sm_clock_hz AS BIGINT) END)
        / 1e0 / nullif(count(CASE WHEN sm_clock_hz BETWEEN 0 AND 1e11 THEN 1 END), 0) AS sm_clock_hz,
    -- a healthy device at its power limit (sw_power_cap) is not throttled
    CAST(sum(CASE WHEN clock_event_reasons LIKE '%thermal%' OR clock_event_reasons LIKE '%power_brake%'
        OR clock_event_reasons LIKE '%hw_slowdown%' THEN 1 ELSE 0 END) AS DOUBLE)
        / nullif(count(clock_event_reasons), 0) AS throttled_ratio,
    nullif(concat_ws(', ',
        CASE WHEN bool_or(clock_event_reasons LIKE '%thermal%') THEN 'thermal' END,
        CASE WHEN bool_or(clock_event_reasons LIKE '%power_brake%') THEN 'power brake' END,
        CASE WHEN bool_or(clock_event_reasons LIKE '%hw_slowdown%') THEN 'hardware slowdown' END
    ), '') AS throttle_reasons,
    max(ecc_uncorrected_volatile_count) AS ecc_uncorrected_volatile_count,
    max(remapped_rows_uncorrected_count) AS remapped_rows_uncorrected_count,
    bool_or(row_remap_pending) AS row_remap_pending, bool_or(row_remap_failure) AS row_remap_failure,
    max(CASE WHEN nvlink_crc_flit_error_count IS NOT NULL OR nvlink_crc_data_error_count IS NOT NULL
            OR nvlink_replay_error_count IS NOT NULL
        THEN coalesce(nvlink_crc_flit_error_count, 0) + coalesce(nvlink_crc_data_error_count, 0)
            + coalesce(nvlink_replay_error_count, 0) END) AS nvlink_error_count,
    max(nvlink_recovery_error_count) AS nvlink_recovery_error_count,
    max(pcie_replay_count) AS pcie_replay_count,
    max(CASE WHEN memory_used_bytes BETWEEN 0 AND 1e16 THEN memory_used_bytes END) AS memory_used_max_bytes,
    max(CASE WHEN memory_total_bytes BETWEEN 1 AND 1e16 THEN memory_total_bytes END) AS memory_total_bytes,
    min(pcie_link_width) AS pcie_link_width, max(pcie_link_generation) AS pcie_link_generation,
    min(nvlink_active_count) AS nvlink_active_count,
    $date AS date
FROM gpu_samples
WHERE device_uuid IS NOT NULL AND date = $date AND ts >= $since
GROUP BY (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 60000000, device_uuid, mig_gpu_instance, mig_compute_instance,
    source, holder_run, holder_attempt, holder_rank
