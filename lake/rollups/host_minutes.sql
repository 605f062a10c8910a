-- grain    one row per minute (UTC), host and holder in the samples of the host itself
-- inputs   host_samples of the date
-- formula  Means are over the samples of the minute with a possible value. Counters are the greatest value of the
--          minute. Sums are of integers (millionths), so the order of rows does not change any digit. `links` has each
--          different text of the minute on a line of its own: a JSON string has no line feeds.
SELECT
    to_timestamp_micros(CAST($begin AS BIGINT) + (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 60000000 * 60000000)
        AT TIME ZONE 'UTC' AS minute,
    host, holder_run, holder_attempt, min(ts) AS first_ts, max(ts) AS last_ts, count(*) AS sample_count,
    sum(CASE WHEN cpu_iowait_ratio BETWEEN 0 AND 1 THEN CAST(cpu_iowait_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN cpu_iowait_ratio BETWEEN 0 AND 1 THEN 1 END), 0) AS cpu_iowait_ratio,
    sum(CASE WHEN pressure_cpu_some_ratio BETWEEN 0 AND 1 THEN CAST(pressure_cpu_some_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN pressure_cpu_some_ratio BETWEEN 0 AND 1 THEN 1 END), 0)
        AS pressure_cpu_some_ratio,
    sum(CASE WHEN pressure_io_full_ratio BETWEEN 0 AND 1 THEN CAST(pressure_io_full_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN pressure_io_full_ratio BETWEEN 0 AND 1 THEN 1 END), 0) AS pressure_io_full_ratio,
    sum(CASE WHEN pressure_memory_full_ratio BETWEEN 0 AND 1
        THEN CAST(pressure_memory_full_ratio * 1e6 + 0.5 AS BIGINT) END)
        / 1e6 / nullif(count(CASE WHEN pressure_memory_full_ratio BETWEEN 0 AND 1 THEN 1 END), 0)
        AS pressure_memory_full_ratio,
    max(oom_kill_count) AS oom_kill_count,
    max(CASE WHEN memory_used_bytes BETWEEN 0 AND 1e16 THEN memory_used_bytes END) AS memory_used_max_bytes,
    max(CASE WHEN memory_total_bytes BETWEEN 1 AND 1e16 THEN memory_total_bytes END) AS memory_total_bytes,
    max(CASE WHEN infiniband_symbol_error_count BETWEEN 0 AND 1e15 AND infiniband_link_downed_count BETWEEN 0 AND 1e15
        AND infiniband_link_recovery_count BETWEEN 0 AND 1e15 AND infiniband_receive_error_count BETWEEN 0 AND 1e15
        THEN infiniband_symbol_error_count + infiniband_link_downed_count + infiniband_link_recovery_count
            + infiniband_receive_error_count END) AS infiniband_error_count,
    array_to_string(
        array_sort(array_agg(DISTINCT replace(links, chr(10), ' ')) FILTER (WHERE links IS NOT NULL)), chr(10)
    ) AS links,
    $date AS date
FROM host_samples
WHERE subject = 'host' AND host IS NOT NULL AND date = $date AND ts >= $since
GROUP BY (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 60000000, host, holder_run, holder_attempt
