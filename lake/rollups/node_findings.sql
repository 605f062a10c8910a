-- grain    one row per detector, device or host, and minute (or moment) in which the detector's rule is true;
--          findings.py joins consecutive rows and keeps those that last long enough
-- inputs   gpu_samples and host_samples of the date, and the last samples before it; step_rollup (when runs step) and
--          events (XIDs, lost devices, imported faults) of the date; ranks (the node number of a host in a run)
-- formula  Means and shares of a minute, of integers, so the order of rows does not change any digit. The increase of a
--          counter is since the previous sample of the same source with this counter; a counter that decreases was
--          reset.
-- into gpu_minutes: a minute of a device and holder; minutes below 0 are of the day before
SELECT
    CAST(floor((CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 6e7) AS BIGINT) AS minute,
    device_uuid AS device, coalesce(mig_gpu_instance, -1) AS gpu_instance, coalesce(mig_compute_instance, -1) AS compute_instance,
    coalesce(source, '') AS source, holder_run, holder_attempt, holder_rank,
    min(host) AS host, min(device_index) AS device_index, max(device_name) AS device_name,
    min(ts) AS first_ts, max(ts) AS last_ts, count(*) AS samples,
    count(sm_active_ratio) AS sm_count,
    sum(CASE WHEN sm_active_ratio BETWEEN 0 AND 1 THEN CAST(sm_active_ratio * 1e6 + 0.5 AS BIGINT) END) AS sm_ppm,
    count(gpu_utilization_ratio) AS busy_count,
    sum(CASE WHEN gpu_utilization_ratio BETWEEN 0 AND 1 THEN CAST(gpu_utilization_ratio * 1e6 + 0.5 AS BIGINT) END) AS busy_ppm,
    count(temperature_celsius) AS temperature_count,
    sum(CASE WHEN temperature_celsius BETWEEN -50 AND 200 THEN CAST(temperature_celsius * 1e3 AS BIGINT) END) AS temperature_milli,
    max(slowdown_temperature_celsius) AS slowdown_celsius,
    count(clock_event_reasons) AS reason_count,
    sum(CASE WHEN clock_event_reasons LIKE '%thermal%' THEN 1 ELSE 0 END) AS thermal_count,
    sum(CASE WHEN clock_event_reasons LIKE '%power_brake%' THEN 1 ELSE 0 END) AS brake_count,
    sum(CASE WHEN clock_event_reasons LIKE '%hw_slowdown%' THEN 1 ELSE 0 END) AS slowdown_count,
    sum(CASE WHEN clock_event_reasons LIKE '%thermal%' OR clock_event_reasons LIKE '%power_brake%'
        OR clock_event_reasons LIKE '%hw_slowdown%' THEN 1 ELSE 0 END) AS throttled_count,
    count(sm_clock_hz) AS clock_count,
    sum(CASE WHEN sm_clock_hz BETWEEN 0 AND 1e11 THEN CAST(sm_clock_hz / 1e6 AS BIGINT) END) AS clock_megahertz,
    max(ecc_uncorrected_volatile_count) AS ecc,
    max(remapped_rows_uncorrected_count) AS remapped,
    bool_or(row_remap_pending) AS is_remap_pending, bool_or(row_remap_failure) AS is_remap_failed,
    max(coalesce(nvlink_crc_flit_error_count, 0) + coalesce(nvlink_crc_data_error_count, 0)
        + coalesce(nvlink_replay_error_count, 0)) AS nvlink_errors,
    max(nvlink_recovery_error_count) AS nvlink_recoveries,
    max(pcie_replay_count) AS pcie_replays,
    max(CASE WHEN memory_used_bytes BETWEEN 0 AND 1e16 THEN memory_used_bytes END) AS memory_used,
    max(CASE WHEN memory_total_bytes BETWEEN 1 AND 1e16 THEN memory_total_bytes END) AS memory_total,
    min(pcie_link_width) AS lanes, max(pcie_link_generation) AS generation, min(nvlink_active_count) AS nvlinks
FROM gpu_samples
WHERE device_uuid IS NOT NULL AND date <= $date AND CAST(ts AS BIGINT) >= CAST($begin AS BIGINT) - $eve_s * 1000000
GROUP BY CAST(floor((CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 6e7) AS BIGINT), device_uuid, mig_gpu_instance,
    mig_compute_instance, source, holder_run, holder_attempt, holder_rank;

-- into host_minutes: a minute of a host and holder, and which rank's process sampled it
SELECT
    CAST(floor((CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 6e7) AS BIGINT) AS minute,
    host, holder_run, holder_attempt, min(run) AS by_run, min(attempt) AS by_attempt, min(rank) AS by_rank,
    min(ts) AS first_ts, max(ts) AS last_ts,
    count(cpu_iowait_ratio) AS iowait_count,
    sum(CASE WHEN cpu_iowait_ratio BETWEEN 0 AND 1 THEN CAST(cpu_iowait_ratio * 1e6 + 0.5 AS BIGINT) END) AS iowait_ppm,
    count(pressure_io_full_ratio) AS io_count,
    sum(CASE WHEN pressure_io_full_ratio BETWEEN 0 AND 1 THEN CAST(pressure_io_full_ratio * 1e6 + 0.5 AS BIGINT) END) AS io_ppm,
    count(pressure_memory_full_ratio) AS memory_count,
    sum(CASE WHEN pressure_memory_full_ratio BETWEEN 0 AND 1 THEN CAST(pressure_memory_full_ratio * 1e6 + 0.5 AS BIGINT) END) AS memory_ppm,
    count(pressure_cpu_some_ratio) AS cpu_count,
    sum(CASE WHEN pressure_cpu_some_ratio BETWEEN 0 AND 1 THEN CAST(pressure_cpu_some_ratio * 1e6 + 0.5 AS BIGINT) END) AS cpu_ppm,
    max(oom_kill_count) AS kills, max(boot_id) AS boot_id,
    max(CASE WHEN memory_used_bytes BETWEEN 0 AND 1e16 THEN memory_used_bytes END) AS memory_used,
    max(CASE WHEN memory_total_bytes BETWEEN 1 AND 1e16 THEN memory_total_bytes END) AS memory_total,
    exact_sum(network_errors) AS network_errors
FROM (
    SELECT
        *,
        CASE WHEN infiniband_errors >= lag(infiniband_errors) IGNORE NULLS OVER following
             THEN infiniband_errors - lag(infiniband_errors) IGNORE NULLS OVER following END AS network_errors
    FROM (
        SELECT
            *,
            CASE WHEN infiniband_symbol_error_count BETWEEN 0 AND 1e15 AND infiniband_link_downed_count BETWEEN 0 AND 1e15
                AND infiniband_link_recovery_count BETWEEN 0 AND 1e15 AND infiniband_receive_error_count BETWEEN 0 AND 1e15
                THEN infiniband_symbol_error_count + infiniband_link_downed_count + infiniband_link_recovery_count
                    + infiniband_receive_error_count END AS infiniband_errors
        FROM host_samples
        WHERE subject = 'host' AND host IS NOT NULL AND date <= $date
            AND CAST(ts AS BIGINT) >= CAST($begin AS BIGINT) - $eve_s * 1000000
    ) AS samples
    WINDOW following AS (PARTITION BY host ORDER BY ts, incarnation, slot)
) AS grown
GROUP BY CAST(floor((CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 6e7) AS BIGINT), host, holder_run, holder_attempt;

-- into stepping: stretches in which a run steps, a minute between two steps at most
WITH marked AS (
    SELECT
        run, attempt, CAST(ts AS BIGINT) AS begin_us,
        CAST(ts AS BIGINT) + CAST(coalesce(max_step_time_s, 0) * 1e6 AS BIGINT) AS end_us
    FROM step_rollup
    WHERE date = $date AND coalesce(max_step_time_s, 0) BETWEEN 0 AND 86400
),
cut AS (
    SELECT
        *,
        CASE WHEN begin_us <= max(end_us) OVER before + 60000000 THEN 0 ELSE 1 END AS is_first
    FROM marked
    WINDOW before AS (PARTITION BY run, attempt ORDER BY begin_us, end_us ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
numbered AS (
    SELECT *, sum(is_first) OVER (PARTITION BY run, attempt ORDER BY begin_us, end_us ROWS UNBOUNDED PRECEDING) AS stretch
    FROM cut
)
SELECT run AS step_run, attempt AS step_attempt, min(begin_us) AS begin_us, max(end_us) AS end_us
FROM numbered
GROUP BY run, attempt, stretch;

-- into nodes: which node of a run's attempt a host is, numbered by its lowest rank as launchers do
SELECT run AS node_run, attempt AS node_attempt, host AS node_host,
    CAST(row_number() OVER (PARTITION BY run, attempt ORDER BY min(rank)) AS BIGINT) - 1 AS node
FROM ranks
WHERE host IS NOT NULL AND (
    run IN (SELECT holder_run FROM gpu_minutes) OR run IN (SELECT holder_run FROM host_minutes)
)
GROUP BY run, attempt, host;

-- into grown: counters of devices, with what they grew by since the minute before
SELECT
    *,
    CASE WHEN ecc >= lag(ecc) IGNORE NULLS OVER following THEN ecc - lag(ecc) IGNORE NULLS OVER following
         WHEN ecc < lag(ecc) IGNORE NULLS OVER following THEN ecc END AS ecc_grown,
    CASE WHEN remapped > lag(remapped) IGNORE NULLS OVER following
         THEN remapped - lag(remapped) IGNORE NULLS OVER following END AS remapped_grown,
    CASE WHEN nvlink_errors > lag(nvlink_errors) IGNORE NULLS OVER following
         THEN nvlink_errors - lag(nvlink_errors) IGNORE NULLS OVER following END AS nvlink_grown,
    CASE WHEN nvlink_recoveries > lag(nvlink_recoveries) IGNORE NULLS OVER following
         THEN nvlink_recoveries - lag(nvlink_recoveries) IGNORE NULLS OVER following END AS recoveries_grown,
    CASE WHEN pcie_replays > lag(pcie_replays) IGNORE NULLS OVER following
         THEN pcie_replays - lag(pcie_replays) IGNORE NULLS OVER following END AS replays_grown,
    max(lanes) OVER whole AS best_lanes, max(generation) OVER whole AS best_generation,
    max(nvlinks) OVER whole AS best_nvlinks,
    lag(memory_used, 10) OVER held AS used_before, lag(memory_used, 20) OVER held AS used_first,
    CAST(last_ts AS BIGINT) - CAST(lag(last_ts, 20) OVER held AS BIGINT) AS us_in_all
FROM gpu_minutes
WINDOW
    held AS (PARTITION BY device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank
        ORDER BY first_ts, last_ts),
    following AS (PARTITION BY device, gpu_instance, compute_instance, source ORDER BY first_ts, last_ts),
    whole AS (PARTITION BY device);

-- into link_minutes: links that were down or slow, against what they and their peers were (as host_hourly judges them)
WITH texts AS (
    SELECT DISTINCT
        CAST(floor((CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 6e7) AS BIGINT) AS minute,
        host, holder_run, holder_attempt, replace(links, ', "', ',"') AS links
    FROM host_samples
    WHERE subject = 'host' AND host IS NOT NULL AND links IS NOT NULL AND date <= $date
        AND CAST(ts AS BIGINT) >= CAST($begin AS BIGINT) - $eve_s * 1000000
),
pieces AS (
    SELECT minute, host, holder_run, holder_attempt, unnest(string_to_array(links, '},"')) AS piece FROM texts
),
states AS (
    SELECT
        minute, host, holder_run, holder_attempt,
        regexp_match(piece, '^[{]?"?([^"]+)": *[{]')[1] AS link,
        coalesce(regexp_match(piece, '"make": *"([^"]*)"')[1], '') AS make,
        piece ~ '"up": *true' AS is_up,
        TRY_CAST(regexp_match(piece, '"bits_per_s": *([0-9]+)')[1] AS BIGINT) AS speed
    FROM pieces
),
best AS (
    SELECT host, link, make, max(CASE WHEN is_up THEN speed END) AS speed
    FROM states
    GROUP BY host, link, make
    HAVING bool_or(is_up)
),
placed AS (
    SELECT
        link, make, speed,
        row_number() OVER (PARTITION BY link, make ORDER BY speed DESC, host) AS place,
        count(*) OVER (PARTITION BY link, make) AS hosts
    FROM best
    WHERE speed IS NOT NULL
),
expected AS (
    SELECT best.host AS best_host, best.link AS best_link, greatest(best.speed, placed.speed) AS expected
    FROM best
    LEFT JOIN placed ON placed.link = best.link AND placed.make = best.make AND hosts >= $min_peers AND place = hosts / 2 + 1
)
SELECT
    minute AS of_minute, host AS of_host, holder_run AS of_run, holder_attempt AS of_attempt, link, expected,
    bool_and(is_up) AS stayed_up, min(CASE WHEN is_up THEN speed END) AS least
FROM states
INNER JOIN expected ON host = best_host AND link = best_link
GROUP BY minute, host, holder_run, holder_attempt, link, expected
HAVING NOT bool_and(is_up) OR min(CASE WHEN is_up THEN speed END) < expected;

-- into gpu_minutes_placed: minutes of devices with their limits, and whether their run steps
SELECT grown.*, warn_celsius, nvlink_links, pcie_lanes, pcie_generation, step_run IS NOT NULL AS is_stepping,
    steps IS NOT NULL AS has_steps
FROM grown
LEFT JOIN limits
    ON limits.name_key = lower(trim(regexp_replace(device_name, '[-_ ]+', ' ', 'g')))
LEFT JOIN stepping ON step_run = holder_run AND step_attempt = holder_attempt
    AND begin_us <= CAST(first_ts AS BIGINT) AND end_us >= CAST(last_ts AS BIGINT)
LEFT JOIN (
    SELECT step_run AS known_run, step_attempt AS known_attempt, count(*) AS steps FROM stepping GROUP BY step_run, step_attempt
) AS known ON known_run = holder_run AND known_attempt = holder_attempt
WHERE minute >= 0;

-- into host_minutes_near: minutes of hosts with what came before and after
SELECT
    *,
    CASE WHEN kills >= lag(kills) IGNORE NULLS OVER following THEN kills - lag(kills) IGNORE NULLS OVER following
         WHEN kills < lag(kills) IGNORE NULLS OVER following THEN kills END AS killed,
    greatest(max(CAST(last_ts AS BIGINT)) OVER (PARTITION BY holder_run, holder_attempt), coalesce(stepped_us, 0)) AS run_last_us,
    lead(first_ts) OVER mine AS mine_next_ts,
    lag(memory_used, 10) OVER following AS used_before, lag(memory_used, 20) OVER following AS used_first,
    CAST(last_ts AS BIGINT) - CAST(lag(last_ts, 20) OVER following AS BIGINT) AS us_in_all
FROM host_minutes
LEFT JOIN (
    SELECT step_run, step_attempt, max(end_us) AS stepped_us FROM stepping GROUP BY step_run, step_attempt
) AS stepped ON step_run = holder_run AND step_attempt = holder_attempt
WINDOW
    following AS (PARTITION BY host ORDER BY first_ts, last_ts),
    mine AS (PARTITION BY host, holder_run, holder_attempt ORDER BY first_ts, last_ts);

-- the minutes: detector, subject, from when to when its rule holds, value and baseline, and a word or number that says more
WITH gpus AS (
    SELECT 'low_sm' AS detector, *, sm_ppm / 1e6 / sm_count AS value, $low_sm_min_ratio AS baseline,
        CAST(NULL AS VARCHAR) AS detail, CAST(NULL AS DOUBLE) AS amount
    FROM gpu_minutes_placed
    WHERE sm_count > 0 AND holder_run IS NOT NULL AND sm_ppm / 1e6 / sm_count < $low_sm_min_ratio
        AND CASE WHEN has_steps THEN is_stepping ELSE busy_ppm / 1e6 / nullif(busy_count, 0) >= $low_sm_busy_ratio END
    UNION ALL
    SELECT 'gpu_temperature', *, temperature_milli / 1e3 / temperature_count,
        CAST(coalesce(warn_celsius, slowdown_celsius - $gpu_temperature_margin_celsius, $gpu_temperature_celsius) AS DOUBLE), NULL, NULL
    FROM gpu_minutes_placed
    WHERE temperature_count > 0 AND temperature_milli / 1e3 / temperature_count
        >= coalesce(warn_celsius, slowdown_celsius - $gpu_temperature_margin_celsius, $gpu_temperature_celsius)
    UNION ALL
    SELECT 'gpu_throttling', *, CAST(throttled_count AS DOUBLE) / reason_count, 0e0,
        concat_ws(', ', CASE WHEN thermal_count > 0 THEN 'thermal' END, CASE WHEN brake_count > 0 THEN 'power brake' END,
            CASE WHEN slowdown_count > 0 THEN 'hardware slowdown' END),
        clock_megahertz / nullif(CAST(clock_count AS DOUBLE), 0)
    FROM gpu_minutes_placed
    WHERE reason_count > 0 AND CAST(throttled_count AS DOUBLE) / reason_count >= $gpu_throttling_min_ratio
    UNION ALL
    SELECT 'ecc', *, CAST(ecc_grown AS DOUBLE), 0e0, NULL, NULL FROM gpu_minutes_placed WHERE ecc_grown > 0
    UNION ALL
    SELECT 'row_remap', *, CAST(remapped_grown AS DOUBLE), 0e0, 'remapped', NULL FROM gpu_minutes_placed WHERE remapped_grown > 0
    UNION ALL
    SELECT 'row_remap', *, 0e0, 0e0, CASE WHEN is_remap_failed THEN 'failed' ELSE 'pending' END, NULL
    FROM gpu_minutes_placed WHERE is_remap_failed OR is_remap_pending
    UNION ALL
    SELECT 'nvlink_errors', *, CAST(nvlink_grown AS DOUBLE), 0e0, 'errors', NULL FROM gpu_minutes_placed WHERE nvlink_grown > 0
    UNION ALL
    SELECT 'nvlink_recovery', *, CAST(recoveries_grown AS DOUBLE), 0e0, NULL, NULL FROM gpu_minutes_placed WHERE recoveries_grown > 0
    UNION ALL
    SELECT 'nvlink_down', *, CAST(nvlinks AS DOUBLE), CAST(greatest(best_nvlinks, nvlink_links) AS DOUBLE), NULL, NULL
    FROM gpu_minutes_placed WHERE nvlinks < best_nvlinks OR (nvlinks > 0 AND nvlinks < nvlink_links)
    UNION ALL
    SELECT 'pcie_replays', *, CAST(replays_grown AS DOUBLE), 0e0, NULL, NULL FROM gpu_minutes_placed WHERE replays_grown > 0
    UNION ALL
    SELECT 'pcie_width', *, CAST(lanes AS DOUBLE), CAST(greatest(best_lanes, pcie_lanes) AS DOUBLE), NULL, NULL
    FROM gpu_minutes_placed WHERE lanes > 0 AND lanes < greatest(best_lanes, coalesce(pcie_lanes, 0))
    UNION ALL
    -- an idle device saves power by a lower generation
    SELECT 'pcie_generation', *, CAST(generation AS DOUBLE),
        CAST(greatest(best_generation, coalesce(pcie_generation, 0)) AS DOUBLE), NULL, NULL
    FROM gpu_minutes_placed
    WHERE is_stepping AND generation > 0 AND generation < greatest(best_generation, coalesce(pcie_generation, 0))
    UNION ALL
    -- as host_memory_growth below
    SELECT 'gpu_memory_growth', *, (memory_used - used_first) / (us_in_all / 1e6), 0e0, NULL,
        (memory_total - memory_used) / ((memory_used - used_first) / (us_in_all / 1e6))
    FROM gpu_minutes_placed
    WHERE holder_run IS NOT NULL
        AND memory_used > used_before AND used_before > used_first AND us_in_all BETWEEN 1 AND 2400000000
        AND memory_used - used_before >= 0.4 * (memory_used - used_first) AND used_before - used_first >= 0.4 * (memory_used - used_first)
        AND memory_used - used_first >= $gpu_memory_growth_min_ratio * memory_total
        AND (memory_total - memory_used) <= $gpu_memory_growth_horizon_s * (memory_used - used_first) / (us_in_all / 1e6)
),
hosts AS (
    SELECT 'iowait' AS detector, *, iowait_ppm / 1e6 / iowait_count AS value, $iowait_min_ratio AS baseline,
        CAST(NULL AS VARCHAR) AS detail, CAST(NULL AS DOUBLE) AS amount
    FROM host_minutes_near WHERE iowait_count > 0 AND iowait_ppm / 1e6 / iowait_count >= $iowait_min_ratio
    UNION ALL
    SELECT 'io_pressure', *, io_ppm / 1e6 / io_count, $io_pressure_min_ratio, NULL, NULL
    FROM host_minutes_near WHERE io_count > 0 AND io_ppm / 1e6 / io_count >= $io_pressure_min_ratio
    UNION ALL
    SELECT 'memory_pressure', *, memory_ppm / 1e6 / memory_count, $memory_pressure_min_ratio, NULL, NULL
    FROM host_minutes_near WHERE memory_count > 0 AND memory_ppm / 1e6 / memory_count >= $memory_pressure_min_ratio
    UNION ALL
    SELECT 'cpu_pressure', *, cpu_ppm / 1e6 / cpu_count, $cpu_pressure_min_ratio, NULL, NULL
    FROM host_minutes_near WHERE cpu_count > 0 AND cpu_ppm / 1e6 / cpu_count >= $cpu_pressure_min_ratio
    UNION ALL
    -- memory grew as fast in the last ten minutes as in the ten before, and would be full soon
    SELECT 'host_memory_growth', *, (memory_used - used_first) / (us_in_all / 1e6), 0e0, NULL,
        (memory_total - memory_used) / ((memory_used - used_first) / (us_in_all / 1e6))
    FROM host_minutes_near
    WHERE memory_used > used_before AND used_before > used_first AND us_in_all BETWEEN 1 AND 2400000000
        AND memory_used - used_before >= 0.4 * (memory_used - used_first) AND used_before - used_first >= 0.4 * (memory_used - used_first)
        AND memory_used - used_first >= $host_memory_growth_min_ratio * memory_total
        AND (memory_total - memory_used) <= $host_memory_growth_horizon_s * (memory_used - used_first) / (us_in_all / 1e6)
    UNION ALL
    SELECT 'oom_kill', *, CAST(killed AS DOUBLE), 0e0, NULL, NULL FROM host_minutes_near WHERE killed > 0
    UNION ALL
    SELECT 'network_errors', *, CAST(network_errors AS DOUBLE), 0e0, NULL, NULL FROM host_minutes_near WHERE network_errors > 0
    UNION ALL
    SELECT 'host_silence', *,
        (coalesce(CAST(mine_next_ts AS BIGINT), run_last_us) - CAST(last_ts AS BIGINT)) / 1e6, $host_silence_min_s,
        CASE WHEN mine_next_ts IS NULL THEN 'since' ELSE 'between' END, NULL
    FROM host_minutes_near
    WHERE holder_run IS NOT NULL
        AND coalesce(CAST(mine_next_ts AS BIGINT), run_last_us) - CAST(last_ts AS BIGINT) >= $host_silence_min_s * 1000000
)
SELECT
    detector, gpus.host, device AS device_uuid, device_index, holder_run AS run, holder_attempt AS attempt, holder_rank AS rank, node,
    first_ts, last_ts, (SELECT max(last_ts) FROM gpu_minutes) AS newest_ts, value, baseline, detail, amount, '' AS event_key
FROM gpus
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = gpus.host
UNION ALL
SELECT
    detector, hosts.host, NULL, NULL, holder_run, holder_attempt, NULL, node,
    CASE WHEN detector = 'host_silence' THEN last_ts ELSE first_ts END,
    CASE WHEN detector = 'host_silence' THEN mine_next_ts ELSE last_ts END,
    (SELECT max(last_ts) FROM host_minutes), value, baseline, detail, amount, ''
FROM hosts
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = hosts.host
WHERE minute >= 0
UNION ALL
SELECT
    CASE WHEN stayed_up THEN 'link_slow' ELSE 'link_down' END, host, NULL, NULL, holder_run, holder_attempt, NULL, node,
    first_ts, last_ts, (SELECT max(last_ts) FROM host_minutes),
    CASE WHEN stayed_up THEN CAST(least AS DOUBLE) ELSE 0e0 END, CAST(expected AS DOUBLE), link, NULL, ''
FROM link_minutes
INNER JOIN host_minutes ON of_minute = minute AND of_host = host AND (of_run IS NOT DISTINCT FROM holder_run)
    AND (of_attempt IS NOT DISTINCT FROM holder_attempt)
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = host
WHERE minute >= 0
UNION ALL
SELECT
    detector, host, reported_device, device_index, holder_run, holder_attempt, holder_rank, node,
    ts AS begin_ts, ts AS close_ts, NULL, value, 0e0, detail, NULL, ''
FROM (
    SELECT
        reported.*, host, device_index, holder_run, holder_attempt, holder_rank, node,
        row_number() OVER (
            PARTITION BY event_key
            ORDER BY first_ts <= ts DESC, CASE WHEN first_ts <= ts THEN first_ts END DESC, first_ts, gpu_instance, compute_instance,
                source, holder_run, holder_attempt, holder_rank
        ) AS place
    FROM (
        SELECT
            event AS detector, ts, concat(incarnation, '/', segment, '/', slot) AS event_key,
            regexp_match(attributes, '"device_uuid": *"([^"]*)"')[1] AS reported_device,
            coalesce(TRY_CAST(regexp_match(attributes, '"xid": *([0-9]+)')[1] AS DOUBLE), 0e0) AS value,
            regexp_match(attributes, '"reason": *"([^"]*)"')[1] AS detail
        FROM events
        WHERE date = $date AND event IN ('xid', 'gpu_lost')
    ) AS reported
    LEFT JOIN gpu_minutes ON gpu_minutes.device = reported_device
    LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = host
) AS placed_events
WHERE place = 1
UNION ALL
SELECT
    'node_fault', host, NULL, NULL, NULL, NULL, NULL, CAST(events.rank AS BIGINT), events.ts,
    arrow_cast(regexp_match(attributes, '"end_ts": *"([^"]*)"')[1], 'Timestamp(Microsecond, Some("UTC"))'),
    NULL, 0e0, 0e0, attributes, NULL, concat(incarnation, '/', segment, '/', slot)
FROM events
LEFT JOIN (
    SELECT run AS host_run, attempt AS host_attempt, rank AS host_rank, min(host) AS host FROM ranks GROUP BY run, attempt, rank
) AS names ON host_run = events.run AND host_attempt = events.attempt AND host_rank = events.rank
WHERE events.date = $date AND event = 'fault_start'
