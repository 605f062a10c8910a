-- grain    one row per detector, device or host, and minute (or moment) in which the detector's rule is true;
--          findings.py joins consecutive rows and keeps those that last long enough
-- inputs   gpu_minutes and host_minutes of the date, and the last minutes before it; step_rollup (when runs step) and
--          events (XIDs, lost devices, imported faults) of the date; ranks (the node number of a host in a run)
-- formula  The increase of a counter is since the previous minute of the same source with this counter. A counter that
--          decreases was reset: errors of memory and kills count from zero then, and those of links count from the next
--          minute on. Sorting all minutes takes longer than the rest, so only devices are sorted whose counters or
--          memory changed enough.
-- view gpus: minutes of devices, and the last ones of the day before
SELECT * FROM gpu_minutes WHERE date <= $date AND CAST(minute AS BIGINT) >= CAST($begin AS BIGINT) - $eve_s * 1000000;

-- view hosts: minutes of hosts, and the last ones of the day before
SELECT * FROM host_minutes WHERE date <= $date AND CAST(minute AS BIGINT) >= CAST($begin AS BIGINT) - $eve_s * 1000000;

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
    run IN (SELECT holder_run FROM gpus) OR run IN (SELECT holder_run FROM hosts)
)
GROUP BY run, attempt, host;

-- into devices: the best links of each device, and whether its counters or its memory changed enough for a finding
SELECT
    device_uuid AS device, max(pcie_link_width) AS best_lanes, max(pcie_link_generation) AS best_generation,
    max(nvlink_active_count) AS best_nvlinks,
    max(ecc_uncorrected_volatile_count) > min(ecc_uncorrected_volatile_count)
        OR max(remapped_rows_uncorrected_count) > min(remapped_rows_uncorrected_count)
        OR max(nvlink_error_count) > min(nvlink_error_count)
        OR max(nvlink_recovery_error_count) > min(nvlink_recovery_error_count)
        OR max(pcie_replay_count) > min(pcie_replay_count) AS has_counts,
    max(memory_used_max_bytes) - min(memory_used_max_bytes)
        >= $gpu_memory_growth_min_ratio * min(memory_total_bytes) AS has_growth
FROM gpus
GROUP BY device_uuid;

-- into grown: counters of devices, by what they grew since the minute before
SELECT * FROM (
    SELECT
        date, host, device_uuid, device_index, holder_run, holder_attempt, holder_rank, first_ts, last_ts,
        CASE WHEN ecc_uncorrected_volatile_count >= lag(ecc_uncorrected_volatile_count) IGNORE NULLS OVER following
             THEN ecc_uncorrected_volatile_count - lag(ecc_uncorrected_volatile_count) IGNORE NULLS OVER following
             WHEN ecc_uncorrected_volatile_count < lag(ecc_uncorrected_volatile_count) IGNORE NULLS OVER following
             THEN ecc_uncorrected_volatile_count END AS ecc,
        remapped_rows_uncorrected_count - lag(remapped_rows_uncorrected_count) IGNORE NULLS OVER following AS remapped,
        nvlink_error_count - lag(nvlink_error_count) IGNORE NULLS OVER following AS nvlink_errors,
        nvlink_recovery_error_count - lag(nvlink_recovery_error_count) IGNORE NULLS OVER following AS nvlink_recoveries,
        pcie_replay_count - lag(pcie_replay_count) IGNORE NULLS OVER following AS pcie_replays
    FROM gpus
    WHERE device_uuid IN (SELECT device FROM devices WHERE has_counts)
    WINDOW following AS (
        PARTITION BY device_uuid, mig_gpu_instance, mig_compute_instance, source ORDER BY first_ts, last_ts
    )
) AS counted
WHERE date = $date AND (ecc > 0 OR remapped > 0 OR nvlink_errors > 0 OR nvlink_recoveries > 0 OR pcie_replays > 0);

-- into filling: memory of held devices, twenty and ten minutes before
SELECT * FROM (
    SELECT
        date, host, device_uuid, device_index, holder_run, holder_attempt, holder_rank, first_ts, last_ts,
        memory_total_bytes AS total, memory_used_max_bytes AS used,
        lag(memory_used_max_bytes, 10) OVER held AS used_before, lag(memory_used_max_bytes, 20) OVER held AS used_first,
        CAST(last_ts AS BIGINT) - CAST(lag(last_ts, 20) OVER held AS BIGINT) AS us_in_all
    FROM gpus
    WHERE holder_run IS NOT NULL AND device_uuid IN (SELECT device FROM devices WHERE has_growth)
    WINDOW held AS (
        PARTITION BY device_uuid, mig_gpu_instance, mig_compute_instance, source, holder_run, holder_attempt, holder_rank
        ORDER BY first_ts, last_ts
    )
) AS used
WHERE date = $date AND used > used_before AND used_before > used_first AND us_in_all BETWEEN 1 AND 2400000000;

-- into link_states: links that were down or slow, against what they and their peers were (as host_hourly judges them),
-- by the text of a minute's links
WITH texts AS (
    SELECT DISTINCT host, links FROM hosts WHERE links IS NOT NULL
),
lines AS (
    SELECT host, links, unnest(string_to_array(replace(links, ', "', ',"'), chr(10))) AS line FROM texts
),
pieces AS (
    SELECT host, links, unnest(string_to_array(line, '},"')) AS piece FROM lines
),
states AS (
    SELECT
        host, links,
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
    host AS of_host, links AS of_links, link, expected,
    bool_and(is_up) AS stayed_up, min(CASE WHEN is_up THEN speed END) AS least
FROM states
INNER JOIN expected ON host = best_host AND link = best_link
GROUP BY host, links, link, expected
HAVING NOT bool_and(is_up) OR min(CASE WHEN is_up THEN speed END) < expected;

-- into models: limits of devices, by their names in samples
SELECT device_name AS model, warn_celsius, nvlink_links, pcie_lanes, pcie_generation
FROM (SELECT DISTINCT device_name FROM gpus) AS named
INNER JOIN limits ON limits.name_key = lower(trim(regexp_replace(device_name, '[-_ ]+', ' ', 'g')));

-- into placed: minutes of devices with their limits; counters that grew and memory are rows of their own
SELECT
    host, device_uuid, device_index, holder_run, holder_attempt, holder_rank, first_ts, last_ts,
    sm_active_ratio, gpu_utilization_ratio, temperature_celsius, throttled_ratio, throttle_reasons, sm_clock_hz,
    row_remap_pending, row_remap_failure, nvlink_active_count, pcie_link_width, pcie_link_generation,
    CAST(coalesce(warn_celsius, slowdown_temperature_celsius - $gpu_temperature_margin_celsius, $gpu_temperature_celsius)
        AS DOUBLE) AS limit_celsius,
    nvlink_links, best_nvlinks, greatest(best_lanes, coalesce(pcie_lanes, 0)) AS most_lanes,
    greatest(best_generation, coalesce(pcie_generation, 0)) AS most_generation
FROM gpus
INNER JOIN devices ON device = device_uuid
LEFT JOIN models ON model = device_name
WHERE date = $date
UNION ALL BY NAME
SELECT * FROM grown
UNION ALL BY NAME
SELECT * FROM filling;

-- into hosts_near: minutes of hosts with what came before and after
SELECT
    *,
    CASE WHEN oom_kill_count >= lag(oom_kill_count) IGNORE NULLS OVER following
         THEN oom_kill_count - lag(oom_kill_count) IGNORE NULLS OVER following
         WHEN oom_kill_count < lag(oom_kill_count) IGNORE NULLS OVER following THEN oom_kill_count END AS killed,
    infiniband_error_count - lag(infiniband_error_count) IGNORE NULLS OVER counted AS network_errors,
    greatest(max(CAST(last_ts AS BIGINT)) OVER (PARTITION BY holder_run, holder_attempt), coalesce(stepped_us, 0)) AS run_last_us,
    lead(first_ts) OVER mine AS mine_next_ts,
    lag(memory_used_max_bytes, 10) OVER following AS used_before, lag(memory_used_max_bytes, 20) OVER following AS used_first,
    CAST(last_ts AS BIGINT) - CAST(lag(last_ts, 20) OVER following AS BIGINT) AS us_in_all
FROM hosts
LEFT JOIN (
    SELECT step_run, step_attempt, max(end_us) AS stepped_us FROM stepping GROUP BY step_run, step_attempt
) AS stepped ON step_run = holder_run AND step_attempt = holder_attempt
WINDOW
    following AS (PARTITION BY host ORDER BY first_ts, last_ts),
    counted AS (PARTITION BY host ORDER BY last_ts, first_ts),
    mine AS (PARTITION BY host, holder_run, holder_attempt ORDER BY first_ts, last_ts);

-- the minutes: detector, subject, from when to when its rule holds, value and baseline, and a word or number that says more
WITH gpu_faults AS (
    SELECT 'low_sm' AS detector, placed.*, sm_active_ratio AS value, $low_sm_min_ratio AS baseline,
        CAST(NULL AS VARCHAR) AS detail, CAST(NULL AS DOUBLE) AS amount
    FROM placed
    LEFT JOIN stepping ON step_run = holder_run AND step_attempt = holder_attempt
        AND begin_us <= CAST(first_ts AS BIGINT) AND end_us >= CAST(last_ts AS BIGINT)
    LEFT JOIN (SELECT DISTINCT step_run AS known_run, step_attempt AS known_attempt FROM stepping) AS known
        ON known_run = holder_run AND known_attempt = holder_attempt
    WHERE holder_run IS NOT NULL AND sm_active_ratio < $low_sm_min_ratio
        AND CASE WHEN known_run IS NOT NULL THEN step_run IS NOT NULL ELSE gpu_utilization_ratio >= $low_sm_busy_ratio END
    UNION ALL
    SELECT 'gpu_temperature', *, temperature_celsius AS value, limit_celsius AS baseline, NULL, NULL
    FROM placed WHERE temperature_celsius >= limit_celsius
    UNION ALL
    SELECT 'gpu_throttling', *, throttled_ratio AS value, 0e0, throttle_reasons AS detail, sm_clock_hz / 1e6
    FROM placed WHERE throttled_ratio >= $gpu_throttling_min_ratio
    UNION ALL
    SELECT 'ecc', *, CAST(ecc AS DOUBLE), 0e0, NULL, NULL FROM placed WHERE ecc > 0
    UNION ALL
    SELECT 'row_remap', *, CAST(remapped AS DOUBLE), 0e0, 'remapped', NULL FROM placed WHERE remapped > 0
    UNION ALL
    SELECT 'row_remap', *, 0e0, 0e0, CASE WHEN row_remap_failure THEN 'failed' ELSE 'pending' END, NULL
    FROM placed WHERE row_remap_failure OR row_remap_pending
    UNION ALL
    SELECT 'nvlink_errors', *, CAST(nvlink_errors AS DOUBLE), 0e0, 'errors', NULL FROM placed WHERE nvlink_errors > 0
    UNION ALL
    SELECT 'nvlink_recovery', *, CAST(nvlink_recoveries AS DOUBLE), 0e0, NULL, NULL FROM placed WHERE nvlink_recoveries > 0
    UNION ALL
    SELECT 'nvlink_down', *, CAST(nvlink_active_count AS DOUBLE), CAST(greatest(best_nvlinks, nvlink_links) AS DOUBLE), NULL, NULL
    FROM placed WHERE nvlink_active_count < best_nvlinks OR (nvlink_active_count > 0 AND nvlink_active_count < nvlink_links)
    UNION ALL
    SELECT 'pcie_replays', *, CAST(pcie_replays AS DOUBLE), 0e0, NULL, NULL FROM placed WHERE pcie_replays > 0
    UNION ALL
    SELECT 'pcie_width', *, CAST(pcie_link_width AS DOUBLE), CAST(most_lanes AS DOUBLE), NULL, NULL
    FROM placed WHERE pcie_link_width > 0 AND pcie_link_width < most_lanes
    UNION ALL
    -- an idle device saves power by a lower generation
    SELECT 'pcie_generation', placed.*, CAST(pcie_link_generation AS DOUBLE), CAST(most_generation AS DOUBLE), NULL, NULL
    FROM placed
    INNER JOIN stepping ON step_run = holder_run AND step_attempt = holder_attempt
        AND begin_us <= CAST(first_ts AS BIGINT) AND end_us >= CAST(last_ts AS BIGINT)
    WHERE pcie_link_generation > 0 AND pcie_link_generation < most_generation
    UNION ALL
    -- as host_memory_growth below
    SELECT 'gpu_memory_growth', *, (used - used_first) / (us_in_all / 1e6), 0e0, NULL,
        (total - used) / ((used - used_first) / (us_in_all / 1e6))
    FROM placed
    WHERE used - used_before >= 0.4 * (used - used_first) AND used_before - used_first >= 0.4 * (used - used_first)
        AND used - used_first >= $gpu_memory_growth_min_ratio * total
        AND (total - used) <= $gpu_memory_growth_horizon_s * (used - used_first) / (us_in_all / 1e6)
),
host_faults AS (
    SELECT 'iowait' AS detector, *, cpu_iowait_ratio AS value, $iowait_min_ratio AS baseline,
        CAST(NULL AS VARCHAR) AS detail, CAST(NULL AS DOUBLE) AS amount
    FROM hosts_near WHERE cpu_iowait_ratio >= $iowait_min_ratio
    UNION ALL
    SELECT 'io_pressure', *, pressure_io_full_ratio AS value, $io_pressure_min_ratio, NULL, NULL
    FROM hosts_near WHERE pressure_io_full_ratio >= $io_pressure_min_ratio
    UNION ALL
    SELECT 'memory_pressure', *, pressure_memory_full_ratio AS value, $memory_pressure_min_ratio, NULL, NULL
    FROM hosts_near WHERE pressure_memory_full_ratio >= $memory_pressure_min_ratio
    UNION ALL
    SELECT 'cpu_pressure', *, pressure_cpu_some_ratio AS value, $cpu_pressure_min_ratio, NULL, NULL
    FROM hosts_near WHERE pressure_cpu_some_ratio >= $cpu_pressure_min_ratio
    UNION ALL
    -- memory grew as fast in the last ten minutes as in the ten before, and would be full soon
    SELECT 'host_memory_growth', *, (memory_used_max_bytes - used_first) / (us_in_all / 1e6), 0e0, NULL,
        (memory_total_bytes - memory_used_max_bytes) / ((memory_used_max_bytes - used_first) / (us_in_all / 1e6))
    FROM hosts_near
    WHERE memory_used_max_bytes > used_before AND used_before > used_first AND us_in_all BETWEEN 1 AND 2400000000
        AND memory_used_max_bytes - used_before >= 0.4 * (memory_used_max_bytes - used_first)
        AND used_before - used_first >= 0.4 * (memory_used_max_bytes - used_first)
        AND memory_used_max_bytes - used_first >= $host_memory_growth_min_ratio * memory_total_bytes
        AND (memory_total_bytes - memory_used_max_bytes) <= $host_memory_growth_horizon_s
            * (memory_used_max_bytes - used_first) / (us_in_all / 1e6)
    UNION ALL
    SELECT 'oom_kill', *, CAST(killed AS DOUBLE), 0e0, NULL, NULL FROM hosts_near WHERE killed > 0
    UNION ALL
    SELECT 'network_errors', *, CAST(network_errors AS DOUBLE), 0e0, NULL, NULL FROM hosts_near WHERE network_errors > 0
    UNION ALL
    SELECT 'host_silence', *,
        (coalesce(CAST(mine_next_ts AS BIGINT), run_last_us) - CAST(last_ts AS BIGINT)) / 1e6, $host_silence_min_s,
        CASE WHEN mine_next_ts IS NULL THEN 'since' ELSE 'between' END, NULL
    FROM hosts_near
    WHERE holder_run IS NOT NULL
        AND coalesce(CAST(mine_next_ts AS BIGINT), run_last_us) - CAST(last_ts AS BIGINT) >= $host_silence_min_s * 1000000
)
SELECT
    detector, gpu_faults.host, device_uuid, device_index, holder_run AS run, holder_attempt AS attempt, holder_rank AS rank, node,
    first_ts, last_ts, (SELECT max(last_ts) FROM gpus) AS newest_ts, value, baseline, detail, amount, '' AS event_key
FROM gpu_faults
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = gpu_faults.host
UNION ALL
SELECT
    detector, host_faults.host, NULL, NULL, holder_run, holder_attempt, NULL, node,
    CASE WHEN detector = 'host_silence' THEN last_ts ELSE first_ts END,
    CASE WHEN detector = 'host_silence' THEN mine_next_ts ELSE last_ts END,
    (SELECT max(last_ts) FROM hosts), value, baseline, detail, amount, ''
FROM host_faults
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = host_faults.host
WHERE date = $date
UNION ALL
SELECT
    CASE WHEN stayed_up THEN 'link_slow' ELSE 'link_down' END, host, NULL, NULL, holder_run, holder_attempt, NULL, node,
    first_ts, last_ts, (SELECT max(last_ts) FROM hosts),
    CASE WHEN stayed_up THEN CAST(least AS DOUBLE) ELSE 0e0 END, CAST(expected AS DOUBLE), link, NULL, ''
FROM link_states
INNER JOIN hosts ON host = of_host AND links = of_links
LEFT JOIN nodes ON node_run = holder_run AND node_attempt = holder_attempt AND node_host = host
WHERE date = $date
UNION ALL
SELECT
    detector, host, reported_device, device_index, holder_run, holder_attempt, holder_rank, node,
    ts AS begin_ts, ts AS close_ts, NULL, value, 0e0, detail, NULL, ''
FROM (
    SELECT
        reported.*, host, device_index, holder_run, holder_attempt, holder_rank, node,
        row_number() OVER (
            PARTITION BY event_key
            ORDER BY first_ts <= ts DESC, CASE WHEN first_ts <= ts THEN first_ts END DESC, first_ts,
                coalesce(mig_gpu_instance, -1), coalesce(mig_compute_instance, -1), coalesce(source, ''),
                holder_run, holder_attempt, holder_rank
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
    LEFT JOIN gpus ON device_uuid = reported_device
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
