-- grain    one row per hour (UTC), device (or MIG instance) and run in the samples; samples without a device's identity
--          are left out
-- inputs   gpu_samples of the date, and the last samples before it; events (XIDs) of the date; attempt_facts of
--          attempts that began up to the date, for the run's cluster and pool
-- formula  A sample represents the time since the previous one, at most $max_interval_s: sums of value x time over sums
--          of time. Energy is the increase of the device's counter between consecutive samples. It is unknown if the
--          counter decreased (a driver was reloaded) or if there is a gap. Without a counter it is power x time. Sums
--          are of integers (microseconds, millionths and millijoules), so the order of rows does not change any digit.
--          Sorting samples takes several times as long as adding them up. So a device is sorted only in irregular hours.
--          An hour is regular if the processes that sampled the device in it, and in the $max_interval_s before it, did
--          so one after the other with recorded intervals, if the intervals leave no gap between the first and the last
--          sample, and if the energy increased. A counter that restarts falls below its first value, unless that value
--          was below $max_watts for $max_interval_s: then the hour is irregular, too. An hour depends on nothing else,
--          so the errors of a gap longer than $max_interval_s count only if the gap is within an hour. No sum exceeds
--          64 bits. A regular hour has at most two hours of intervals, an irregular one the time between its samples:
--          7.2*10^9 us times 10^6 millionths, or times 10^3 * $max_watts / 10^3 uJ. Counters end at 10^12 J (kilowatts
--          for thirty years) and 10^9 errors. A regular counter only increases, and an irregular one increases between
--          two samples by at most $max_interval_s * $max_watts J, or 10^9 errors: only billions of samples an hour could
--          exceed it.
-- view read: samples in whole numbers; what cannot be is not known. What follows a sample within $max_interval_s speaks
-- for the time since; so the next hour needs samples of the end of an hour, also of the hour before $since
SELECT
    CASE WHEN ts < $begin THEN -1 ELSE (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 END AS hour_number,
    (CAST(ts AS BIGINT) - CAST($begin AS BIGINT) + 3600000000) % 3600000000 >= 3600000000 - $max_interval_s * 1000000 AS is_end,
    device_uuid AS device,
    coalesce(mig_gpu_instance, -1) AS gpu_instance,
    coalesce(mig_compute_instance, -1) AS compute_instance,
    coalesce(source, '') AS source, incarnation, holder_run, holder_attempt, holder_rank,
    ts, slot, host, device_name, interval_ns,
    CASE WHEN interval_ns BETWEEN 0 AND $max_interval_s * 1000000000 THEN interval_ns / 1000 ELSE 0 END AS us,
    CASE WHEN holder_run IS NOT NULL OR holder_count > 0 THEN 1 WHEN holder_count = 0 THEN 0 END AS held,
    CASE WHEN gpu_utilization_ratio BETWEEN 0 AND 1 THEN CAST(gpu_utilization_ratio * 1e6 + 0.5 AS BIGINT) END AS busy,
    CASE WHEN sm_active_ratio BETWEEN 0 AND 1 THEN CAST(sm_active_ratio * 1e6 + 0.5 AS BIGINT) END AS sm,
    CASE WHEN tensor_active_ratio BETWEEN 0 AND 1 THEN CAST(tensor_active_ratio * 1e6 + 0.5 AS BIGINT) END AS tensor,
    CASE WHEN dram_active_ratio BETWEEN 0 AND 1 THEN CAST(dram_active_ratio * 1e6 + 0.5 AS BIGINT) END AS dram,
    CASE WHEN power_watts BETWEEN 0 AND $max_watts THEN CAST(power_watts * 1e3 + 0.5 AS BIGINT) END AS milliwatts,
    CASE WHEN power_watts > $max_watts THEN 1 ELSE 0 END AS beyond,
    CASE WHEN energy_joules BETWEEN 0 AND 1e12 THEN energy_joules END AS energy,
    CASE
        -- a healthy device at its power limit (sw_power_cap) is not throttled
        WHEN clock_event_reasons LIKE '%thermal%' OR clock_event_reasons LIKE '%hw_slowdown%'
            OR clock_event_reasons LIKE '%power_brake%' THEN 1
        WHEN clock_event_reasons IS NOT NULL THEN 0
    END AS throttled,
    power_watts, temperature_celsius, memory_used_bytes,
    CASE WHEN ecc_uncorrected_volatile_count BETWEEN 0 AND 1000000000 THEN ecc_uncorrected_volatile_count END AS ecc
FROM gpu_samples
WHERE date <= $date AND CAST(ts AS BIGINT) >= CAST($since AS BIGINT) - $max_interval_s * 1000000;

-- into parts: what each process saw of a device, hour by hour and holder by holder, the end of an hour apart
SELECT
    hour_number, is_end, device, gpu_instance, compute_instance, source, incarnation, holder_run, holder_attempt, holder_rank,
    min(host) AS host,
    min(device_name) AS device_name,
    count(*) AS samples,
    count(interval_ns) AS intervals,
    min(interval_ns) AS min_interval_ns,
    max(interval_ns) AS max_interval_ns,
    min(ts) AS first_ts,
    max(ts) AS last_ts,
    sum(us) AS us,
    sum(CASE WHEN held IS NOT NULL THEN us END) AS held_known_us,
    sum(held * us) AS held_us,
    sum(CASE WHEN held = 1 AND busy IS NOT NULL THEN us END) AS held_busy_known_us,
    sum(CASE WHEN held = 1 AND busy = 0 THEN us END) AS idle_us,
    sum(CASE WHEN busy IS NOT NULL THEN us END) AS busy_known_us,
    sum(busy * us) AS busy_ppm_us,
    sum(CASE WHEN sm IS NOT NULL THEN us END) AS sm_known_us,
    sum(sm * us) AS sm_ppm_us,
    sum(CASE WHEN sm IS NOT NULL AND tensor IS NOT NULL THEN us END) AS tensor_known_us,
    sum(CASE WHEN sm IS NOT NULL THEN tensor * us END) AS tensor_ppm_us,
    sum(CASE WHEN sm IS NOT NULL AND dram IS NOT NULL THEN us END) AS dram_known_us,
    sum(CASE WHEN sm IS NOT NULL THEN dram * us END) AS dram_ppm_us,
    sum(CASE WHEN milliwatts IS NOT NULL THEN us END) AS power_known_us,
    sum(milliwatts * (us / 1000)) AS power_microjoules,
    sum(throttled * us) AS throttled_us,
    max(power_watts) AS power_max_watts,
    sum(beyond) AS beyond,
    max(temperature_celsius) AS temperature_max_celsius,
    max(memory_used_bytes) AS memory_used_max_bytes,
    count(energy) AS energies,
    min(energy) AS min_energy,
    max(energy) AS max_energy,
    first_value(energy ORDER BY ts) AS first_energy,
    last_value(energy ORDER BY ts) AS last_energy,
    min(ecc) AS min_ecc,
    max(ecc) AS max_ecc
FROM read
WHERE device IS NOT NULL
GROUP BY hour_number, is_end, device, gpu_instance, compute_instance, source, incarnation, holder_run, holder_attempt, holder_rank;

-- into following: the parts of each hour and of the end of the hour before, each with what came before it
WITH placed AS (
    SELECT hour_number AS of_hour, FALSE AS is_before, * FROM parts
    UNION ALL
    SELECT hour_number + 1, TRUE, * FROM parts WHERE is_end
)
SELECT
    *,
    lag(last_ts) OVER following AS before_ts,
    CAST(first_ts AS BIGINT) - CAST(lag(last_ts) OVER following AS BIGINT) <= $max_interval_s * 1000000 AS reaches,
    lag(max_energy) OVER following AS before_energy,
    lag(max_ecc) OVER following AS before_ecc
FROM placed
WHERE CAST($begin AS BIGINT) + of_hour * 3600000000 >= CAST($since AS BIGINT)
WINDOW following AS (
    PARTITION BY of_hour, device, gpu_instance, compute_instance, source
    ORDER BY first_ts, last_ts, incarnation, holder_run, holder_attempt, holder_rank
);

-- into irregular: devices whose samples of an hour must be put into order, with a number, and how many samples tell an
-- interval
WITH judged AS (
    SELECT
        of_hour, device, gpu_instance, compute_instance, source,
        sum(intervals) AS told,
        bool_or(
            intervals < samples - 1
            OR min_interval_ns <= 0
            OR max_interval_ns > $max_interval_s * 1000000000
            OR first_ts <= before_ts
            -- samples were lost: the time without samples is as long as a gap of $max_interval_s, minus the intervals of the
            -- next and of the first sample, and a tenth for differences of clocks
            OR CAST(last_ts AS BIGINT) - CAST(first_ts AS BIGINT) + 2 * max_interval_ns / 1000 > us + $max_interval_s * 900000
            OR energies BETWEEN 1 AND samples - 1
            OR first_energy > min_energy
            OR last_energy < max_energy
            OR min_energy < $max_interval_s * $max_watts
            OR min_energy < before_energy
            OR min_ecc < max_ecc
            OR min_ecc <> before_ecc
        ) OR sum(us) > 7200000000 OR (sum(intervals) = 0 AND sum(samples) > 1) AS is_irregular
    FROM following
    GROUP BY of_hour, device, gpu_instance, compute_instance, source
)
SELECT
    of_hour, device AS of_device, gpu_instance AS of_gpu, compute_instance AS of_compute, source AS of_source, told,
    row_number() OVER (ORDER BY of_hour, device, gpu_instance, compute_instance, source) AS number
FROM judged
WHERE is_irregular;

-- into again: sums of those over time, each sample with the one before it, whoever took that
WITH neighbours AS (
    SELECT
        number, told, of_hour, hour_number, holder_run, holder_attempt, holder_rank, us AS told_us,
        held, busy, sm, tensor, dram, milliwatts, throttled, energy, ecc,
        CAST(ts AS BIGINT) - CAST(lag(ts) OVER following AS BIGINT) AS since_us,
        energy - lag(energy) OVER following AS grown,
        ecc - lag(ecc) OVER following AS ecc_grown
    FROM read
    INNER JOIN irregular
        ON device = of_device AND gpu_instance = of_gpu AND compute_instance = of_compute AND source = of_source
        AND (hour_number = of_hour OR (hour_number = of_hour - 1 AND is_end))
    WINDOW following AS (PARTITION BY number ORDER BY ts, incarnation, slot)
),
placed AS (
    SELECT
        *,
        CASE
            WHEN told > 0 THEN least(told_us, coalesce(since_us, told_us))
            WHEN since_us <= $max_interval_s * 1000000 THEN since_us
            ELSE 0
        END AS us,
        CASE WHEN grown BETWEEN 0 AND $max_interval_s * $max_watts AND since_us <= $max_interval_s * 1000000 THEN since_us END AS energy_us,
        CASE WHEN grown BETWEEN 0 AND $max_interval_s * $max_watts AND since_us <= $max_interval_s * 1000000
             THEN CAST(round(grown * 1e3) AS BIGINT) END AS millijoules,
        -- a counter that was reset has counted since the reset
        CASE WHEN ecc_grown >= 0 THEN ecc_grown WHEN ecc_grown < 0 THEN ecc END AS errors
    FROM neighbours
)
SELECT
    number, hour_number, holder_run, holder_attempt, holder_rank,
    sum(us) AS us,
    sum(CASE WHEN held IS NOT NULL THEN us END) AS held_known_us,
    sum(held * us) AS held_us,
    sum(CASE WHEN held = 1 AND busy IS NOT NULL THEN us END) AS held_busy_known_us,
    sum(CASE WHEN held = 1 AND busy = 0 THEN us END) AS idle_us,
    sum(CASE WHEN busy IS NOT NULL THEN us END) AS busy_known_us,
    sum(busy * us) AS busy_ppm_us,
    sum(CASE WHEN sm IS NOT NULL THEN us END) AS sm_known_us,
    sum(sm * us) AS sm_ppm_us,
    sum(CASE WHEN sm IS NOT NULL AND tensor IS NOT NULL THEN us END) AS tensor_known_us,
    sum(CASE WHEN sm IS NOT NULL THEN tensor * us END) AS tensor_ppm_us,
    sum(CASE WHEN sm IS NOT NULL AND dram IS NOT NULL THEN us END) AS dram_known_us,
    sum(CASE WHEN sm IS NOT NULL THEN dram * us END) AS dram_ppm_us,
    sum(CASE WHEN milliwatts IS NOT NULL THEN us END) AS power_known_us,
    sum(milliwatts * (us / 1000)) AS power_microjoules,
    sum(throttled * us) AS throttled_us,
    sum(energy_us) AS energy_us,
    sum(millijoules) AS millijoules,
    sum(errors) AS errors
FROM placed
WHERE hour_number = of_hour
GROUP BY number, hour_number, holder_run, holder_attempt, holder_rank;

-- into seen: both kinds of devices in one form, from the one source that tells most of a device in an hour
WITH regular AS (
    SELECT
        following.*,
        CASE WHEN before_energy <= min_energy AND reaches THEN CAST(first_ts AS BIGINT) - CAST(before_ts AS BIGINT) ELSE 0 END
            + CAST(last_ts AS BIGINT) - CAST(first_ts AS BIGINT) AS energy_us,
        CASE WHEN before_energy <= min_energy AND reaches
             THEN CAST(round((min_energy - before_energy) * 1e3) AS BIGINT) ELSE 0 END
            + CAST(round((max_energy - min_energy) * 1e3) AS BIGINT) AS millijoules
    FROM following
    LEFT ANTI JOIN irregular
        ON following.of_hour = irregular.of_hour AND device = of_device AND gpu_instance = of_gpu
        AND compute_instance = of_compute AND source = of_source
    WHERE NOT is_before
),
both_kinds AS (
    SELECT
        hour_number, device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank,
        us, held_known_us, held_us, held_busy_known_us, idle_us, busy_known_us, busy_ppm_us,
        sm_known_us, sm_ppm_us, tensor_known_us, tensor_ppm_us, dram_known_us, dram_ppm_us,
        power_known_us, power_microjoules, throttled_us, energy_us, millijoules, CAST(0 AS BIGINT) AS errors
    FROM regular
    UNION ALL
    SELECT
        hour_number, of_device, of_gpu, of_compute, of_source, holder_run, holder_attempt, holder_rank,
        us, held_known_us, held_us, held_busy_known_us, idle_us, busy_known_us, busy_ppm_us,
        sm_known_us, sm_ppm_us, tensor_known_us, tensor_ppm_us, dram_known_us, dram_ppm_us,
        power_known_us, power_microjoules, throttled_us, energy_us, millijoules, errors
    FROM again
    INNER JOIN irregular ON irregular.number = again.number
),
by_source AS (
    SELECT
        hour_number AS told_hour, device AS told_device, gpu_instance AS told_gpu, compute_instance AS told_compute,
        source AS told_source,
        CASE WHEN sum(sm_known_us) > 0 THEN 1 ELSE 0 END AS tells_sm,
        sum(us) AS told_us
    FROM both_kinds
    GROUP BY hour_number, device, gpu_instance, compute_instance, source
),
told AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY told_hour, told_device, told_gpu, told_compute ORDER BY tells_sm DESC, told_us DESC, told_source
        ) AS place
    FROM by_source
),
summed AS (
    SELECT
        hour_number, device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank,
        sum(us) AS us,
        CASE WHEN sum(held_known_us) > 0 THEN coalesce(sum(held_us), 0) END AS held_us,
        sum(held_busy_known_us) AS held_busy_known_us,
        CASE WHEN sum(held_busy_known_us) > 0 THEN coalesce(sum(idle_us), 0) END AS idle_us,
        coalesce(sum(busy_known_us), 0) AS busy_known_us,
        sum(busy_ppm_us) AS busy_ppm_us,
        sum(sm_known_us) AS sm_known_us,
        sum(sm_ppm_us) AS sm_ppm_us,
        CASE WHEN sum(tensor_known_us) = sum(sm_known_us) THEN sum(tensor_ppm_us) END AS tensor_ppm_us,
        CASE WHEN sum(dram_known_us) = sum(sm_known_us) THEN sum(dram_ppm_us) END AS dram_ppm_us,
        sum(power_known_us) AS power_known_us,
        sum(power_microjoules) AS power_microjoules,
        sum(throttled_us) AS throttled_us,
        sum(energy_us) AS energy_us,
        sum(millijoules) AS millijoules,
        sum(errors) AS errors
    FROM both_kinds
    GROUP BY hour_number, device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank
),
described AS (
    SELECT
        hour_number, device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank,
        min(host) AS host,
        min(device_name) AS device_name,
        sum(samples) AS samples,
        min(first_ts) AS first_ts,
        max(power_max_watts) AS power_max_watts,
        sum(beyond) AS beyond,
        max(temperature_max_celsius) AS temperature_max_celsius,
        max(memory_used_max_bytes) AS memory_used_max_bytes,
        sum(energies) AS energies,
        count(max_ecc) AS eccs
    FROM parts
    GROUP BY hour_number, device, gpu_instance, compute_instance, source, holder_run, holder_attempt, holder_rank
)
SELECT
    summed.*, host, device_name, samples, first_ts, power_max_watts, temperature_max_celsius, memory_used_max_bytes, energies, beyond,
    coalesce(CASE WHEN energies > 0 THEN energy_us ELSE power_known_us END, 0) AS drawn_us,
    CASE WHEN energies > 0 THEN millijoules ELSE power_microjoules / 1000 END AS drawn_millijoules,
    CASE WHEN eccs > 0 THEN coalesce(errors, 0) END AS ecc_errors
FROM summed
INNER JOIN told
    ON summed.hour_number = told_hour AND summed.device = told_device AND summed.gpu_instance = told_gpu
    AND summed.compute_instance = told_compute AND summed.source = told_source AND place = 1
INNER JOIN described
    ON summed.hour_number = described.hour_number AND summed.device = described.device
    AND summed.gpu_instance = described.gpu_instance AND summed.compute_instance = described.compute_instance
    AND summed.source = described.source AND (summed.holder_run IS NOT DISTINCT FROM described.holder_run)
    AND (summed.holder_attempt IS NOT DISTINCT FROM described.holder_attempt)
    AND (summed.holder_rank IS NOT DISTINCT FROM described.holder_rank);

-- into reported: XIDs, each in the row of who held the device then
WITH xids AS (
    SELECT
        (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 AS xid_hour, ts AS xid_ts,
        incarnation AS xid_incarnation, slot AS xid_slot, segment AS xid_segment,
        regexp_match(attributes, '"device_uuid": *"([^"]*)"')[1] AS xid_device,
        coalesce(TRY_CAST(regexp_match(attributes, '"gpu_instance": *([0-9]+)')[1] AS INT), -1) AS xid_gpu
    FROM events
    WHERE date = $date AND event = 'xid'
),
held AS (
    SELECT
        seen.*,
        row_number() OVER (
            PARTITION BY xid_incarnation, xid_segment, xid_slot
            ORDER BY first_ts <= xid_ts DESC, gpu_instance = xid_gpu DESC,
                CASE WHEN first_ts <= xid_ts THEN first_ts END DESC, first_ts, compute_instance, holder_run, holder_attempt,
                holder_rank
        ) AS place
    FROM seen
    INNER JOIN xids ON hour_number = xid_hour AND device = xid_device
)
SELECT
    hour_number AS xid_hour, device AS xid_device, gpu_instance AS xid_gpu, compute_instance AS xid_compute,
    holder_run AS xid_run, holder_attempt AS xid_attempt, holder_rank AS xid_rank, count(*) AS xids
FROM held
WHERE place = 1
GROUP BY hour_number, device, gpu_instance, compute_instance, holder_run, holder_attempt, holder_rank;

-- the hours
WITH started AS (
    SELECT run, attempt, attempt_facts.cluster, pool FROM attempt_facts WHERE date <= $date
)
SELECT
    to_timestamp_micros(CAST($begin AS BIGINT) + hour_number * 3600000000) AT TIME ZONE 'UTC' AS hour,
    started.cluster, started.pool, host, device AS device_uuid, device_name,
    nullif(gpu_instance, -1) AS mig_gpu_instance,
    nullif(compute_instance, -1) AS mig_compute_instance,
    holder_run, holder_attempt, holder_rank,
    samples AS sample_count,
    us / 1e6 AS observed_s,
    held_us / 1e6 AS allocated_s,
    busy_ppm_us / 1e12 AS busy_s,
    busy_known_us / 1e6 AS busy_observed_s,
    sm_ppm_us / 1e12 AS sm_active_s,
    sm_known_us / 1e6 AS sm_active_observed_s,
    tensor_ppm_us / 1e12 AS tensor_active_s,
    dram_ppm_us / 1e12 AS dram_active_s,
    idle_us / 1e6 AS idle_allocated_s,
    held_busy_known_us / 1e6 AS allocated_observed_s,
    busy_ppm_us / 1e6 / nullif(busy_known_us, 0) AS gpu_utilization_ratio,
    sm_ppm_us / 1e6 / nullif(sm_known_us, 0) AS sm_active_ratio,
    CASE WHEN drawn_us > 0 THEN drawn_millijoules / 1e3 END AS energy_joules,
    drawn_us / 1e6 AS energy_observed_s,
    power_max_watts, temperature_max_celsius, memory_used_max_bytes,
    throttled_us / 1e6 AS throttled_s,
    ecc_errors AS ecc_uncorrected_count,
    CASE WHEN source = 'nvml' THEN coalesce(xids, 0) ELSE xids END AS xid_count,
    nullif(concat('{', concat_ws(', ',
        CASE WHEN us = 0 THEN '"observed_s": "no sample tells since when it speaks"' END,
        CASE WHEN held_us IS NULL THEN '"allocated_s": "no sample tells who held it"' END,
        CASE WHEN busy_known_us = 0 THEN '"gpu_utilization_ratio": "no sample tells it"' END,
        CASE WHEN coalesce(sm_known_us, 0) = 0 THEN '"sm_active_ratio": "no sample tells it: it takes DCGM or GPM"' END,
        CASE
            WHEN drawn_us > 0 THEN NULL
            WHEN energies > 0 THEN '"energy_joules": "the counter never grew from one sample to the next"'
            WHEN beyond > 0
            THEN concat('"energy_joules": "samples tell more than ', CAST($max_watts AS BIGINT), ' W, the most that a device draws"')
            ELSE '"energy_joules": "no sample tells energy or power"'
        END,
        CASE WHEN throttled_us IS NULL THEN '"throttled_s": "no sample tells it"' END,
        CASE WHEN ecc_errors IS NULL THEN '"ecc_uncorrected_count": "no sample tells it"' END,
        CASE WHEN source <> 'nvml' AND xids IS NULL THEN '"xid_count": "only NVML reports them"' END
    ), '}'), '{}') AS unavailable,
    $date AS date
FROM seen
LEFT JOIN started ON started.run = holder_run AND started.attempt = holder_attempt
LEFT JOIN reported
    ON hour_number = xid_hour AND device = xid_device AND gpu_instance = xid_gpu AND compute_instance = xid_compute
    AND (holder_run IS NOT DISTINCT FROM xid_run) AND (holder_attempt IS NOT DISTINCT FROM xid_attempt)
    AND (holder_rank IS NOT DISTINCT FROM xid_rank)
