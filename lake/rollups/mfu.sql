-- grain    one row per run, attempt and hour (UTC) in which steps began
-- inputs   steps of the date; attempt_facts and rank_facts of attempts that began up to the date; peaks, the table of
--          dense peaks by device name and number format
-- formula  MFU = model FLOPs of all steps of all ranks / (sum over ranks of step time x peak FLOP/s of the rank's
--          device) (Chowdhery et al. 2022, PaLM, appendix B). Numerator and denominator are summed before the division,
--          so hours and ranks are weighted by device time. A row of steps for several ranks (column ranks, in logs of
--          one rank) counts for all of them. FLOPs of a rank: its own count per step, else its tokens x the run's FLOPs
--          per token. HFU likewise, with the count that includes recomputed activations: the rank's own, else the model
--          FLOPs times the ratio of both counts on the rank that has them. Sums are of decimals, so the order of rows
--          does not change any digit.
-- finding  A measured peak is for float32 matrices (capture's calibration). So it is for another number format than a
--          run in bfloat16, or an attempt with several formats. A ratio above $max_plausible_ratio of a published peak
--          is impossible: the peak is for another format or device. The ratio is kept, and a flag is set.
WITH worked AS (
    SELECT
        run, attempt, rank,
        (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 AS hour_number,
        count(*) AS steps,
        sum(CASE WHEN ranks BETWEEN 1 AND 10000000 THEN ranks ELSE 1 END) AS rank_steps,
        max(CASE WHEN ranks BETWEEN 1 AND 10000000 THEN ranks ELSE 1 END) AS ranks,
        exact_sum(tokens) AS tokens,
        count(tokens) AS steps_with_tokens,
        CASE WHEN sum(least(step_time_s, 1e6) * 1e9) < 9.2e18
             THEN sum(CAST(round(least(step_time_s, 1e6) * 1e9) AS BIGINT)) END AS step_time_ns,
        CASE WHEN sum(least(step_time_s, 1e6) * 1e9 * CASE WHEN ranks BETWEEN 1 AND 10000000 THEN ranks ELSE 1 END) < 9.2e18
             THEN sum(CAST(round(least(step_time_s, 1e6) * 1e9) AS BIGINT) * CASE WHEN ranks BETWEEN 1 AND 10000000 THEN ranks ELSE 1 END) END AS all_step_time_ns
    FROM steps
    WHERE date = $date AND ts >= $since
    GROUP BY run, attempt, rank, (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000
),
started AS (
    SELECT run, attempt, device_type, device_name, compute_dtype, dtype, has_dtypes, world_size, device_count
    FROM attempt_facts
    WHERE date <= $date
),
rank_said AS (
    -- the last fact up to the date; if there is none, the first one after it
    SELECT
        run, attempt, rank,
        coalesce(
            last_value(flops_per_step ORDER BY said_date) FILTER (WHERE flops_per_step IS NOT NULL AND said_date <= $date),
            first_value(flops_per_step ORDER BY said_date) FILTER (WHERE flops_per_step IS NOT NULL)
        ) AS flops_per_step,
        coalesce(
            last_value(hardware_flops_per_step ORDER BY said_date)
                FILTER (WHERE hardware_flops_per_step IS NOT NULL AND said_date <= $date),
            first_value(hardware_flops_per_step ORDER BY said_date) FILTER (WHERE hardware_flops_per_step IS NOT NULL)
        ) AS hardware_flops_per_step,
        coalesce(
            last_value(flops_per_token ORDER BY said_date) FILTER (WHERE flops_per_token IS NOT NULL AND said_date <= $date),
            first_value(flops_per_token ORDER BY said_date) FILTER (WHERE flops_per_token IS NOT NULL)
        ) AS flops_per_token,
        coalesce(
            max(measured_peak_flops_per_s) FILTER (WHERE said_date <= $date),
            first_value(measured_peak_flops_per_s ORDER BY said_date) FILTER (WHERE measured_peak_flops_per_s IS NOT NULL)
        ) AS peak_flops_measured
    FROM rank_facts
    WHERE date <= $date
    GROUP BY run, attempt, rank
),
run_said AS (
    SELECT
        run, attempt,
        first_value(flops_per_token ORDER BY rank) FILTER (WHERE flops_per_token IS NOT NULL) AS flops_per_token,
        first_value(hardware_flops_per_step / flops_per_step ORDER BY rank)
            FILTER (WHERE flops_per_token + flops_per_step + hardware_flops_per_step IS NOT NULL) AS hardware_factor,
        first_value(peak_flops_measured ORDER BY rank)
            FILTER (WHERE peak_flops_measured IS NOT NULL) AS peak_flops_measured
    FROM rank_said
    GROUP BY run, attempt
),
told AS (
    SELECT
        worked.run, worked.attempt, worked.rank, worked.hour_number,
        worked.rank_steps, worked.ranks, worked.tokens, worked.step_time_ns, worked.all_step_time_ns,
        started.device_type, started.device_name, started.compute_dtype, started.dtype, started.has_dtypes,
        started.run AS known_run,
        coalesce(
            rank_said.flops_per_step * worked.rank_steps,
            CASE WHEN worked.steps_with_tokens = worked.steps
                 THEN coalesce(rank_said.flops_per_token, run_said.flops_per_token) * worked.tokens END
        ) AS model_flops,
        coalesce(
            rank_said.hardware_flops_per_step * worked.rank_steps,
            CASE WHEN rank_said.flops_per_step IS NULL AND worked.steps_with_tokens = worked.steps
                 THEN coalesce(rank_said.flops_per_token, run_said.flops_per_token)
                     * run_said.hardware_factor * worked.tokens END
        ) AS hardware_flops,
        -- a rank with several devices (or a device with several ranks) gets its share
        peaks.flops_per_s * coalesce(CAST(started.device_count AS DOUBLE) / started.world_size, 1.0) AS table_peak,
        peaks.source AS table_source,
        coalesce(rank_said.peak_flops_measured, run_said.peak_flops_measured) AS measured_peak
    FROM worked
    LEFT JOIN started ON started.run = worked.run AND started.attempt = worked.attempt
    LEFT JOIN rank_said
        ON rank_said.run = worked.run AND rank_said.attempt = worked.attempt AND rank_said.rank = worked.rank
    LEFT JOIN run_said ON run_said.run = worked.run AND run_said.attempt = worked.attempt
    LEFT JOIN peaks
        ON peaks.name_key = lower(trim(regexp_replace(started.device_name, '[-_ ]+', ' ', 'g')))
        AND peaks.dtype = started.dtype
),
joined AS (
    -- no device reaches this; larger values are errors, and NULL
    SELECT
        * EXCLUDE (model_flops, hardware_flops, table_peak, measured_peak),
        CASE WHEN abs(model_flops) < 1e30 THEN model_flops END AS model_flops,
        CASE WHEN abs(hardware_flops) < 1e30 THEN hardware_flops END AS hardware_flops,
        CASE WHEN abs(table_peak) < 1e18 THEN table_peak END AS table_peak,
        CASE WHEN abs(measured_peak) < 1e18 THEN measured_peak END AS measured_peak
    FROM told
),
summed AS (
    SELECT
        run, attempt, hour_number,
        least(sum(ranks), 2147483647) AS ranks,
        sum(rank_steps) AS rank_steps,
        exact_sum(tokens) AS tokens,
        exact_sum(step_time_ns) AS step_time_ns,
        CASE WHEN count(model_flops) = count(*)
             THEN CAST(sum(CAST(round(model_flops) AS DECIMAL(38, 0))) AS DOUBLE) END AS model_flops,
        sum(CASE WHEN model_flops IS NULL THEN ranks ELSE 0 END) AS ranks_without_flops,
        CASE WHEN count(hardware_flops) = count(*)
             THEN CAST(sum(CAST(round(hardware_flops) AS DECIMAL(38, 0))) AS DOUBLE) END AS hardware_flops,
        CASE WHEN count(coalesce(table_peak, measured_peak)) = count(*)
             THEN CAST(sum(
                 CAST(round(coalesce(table_peak, measured_peak)) AS DECIMAL(19, 0))
                 * CAST(all_step_time_ns AS DECIMAL(19, 0))
             ) AS DOUBLE) / 1e9 END AS peak_flops,
        min(table_source) AS table_source,
        min(device_type) AS device_type,
        min(device_name) AS device_name,
        min(compute_dtype) AS compute_dtype,
        min(dtype) AS dtype,
        bool_or(has_dtypes) AS has_dtypes,
        min(known_run) AS known_run
    FROM joined
    GROUP BY run, attempt, hour_number
)
SELECT
    run, attempt, to_timestamp_micros(CAST($begin AS BIGINT) + hour_number * 3600000000) AT TIME ZONE 'UTC' AS hour,
    $date AS date, ranks, rank_steps, tokens, step_time_ns,
    model_flops, hardware_flops, peak_flops,
    model_flops / nullif(peak_flops, 0) AS mfu_ratio,
    hardware_flops / nullif(peak_flops, 0) AS hfu_ratio,
    model_flops / rank_steps * ranks AS flops_per_step,
    peak_flops / nullif(step_time_ns, 0) * 1e9 AS peak_flops_per_s,
    CASE
        WHEN peak_flops IS NULL THEN NULL
        WHEN table_source IS NOT NULL THEN concat('table: ', table_source)
        ELSE 'measured: calibration matrix product'
    END AS peak_source,
    CASE WHEN peak_flops IS NULL THEN NULL WHEN table_source IS NOT NULL THEN dtype ELSE 'float32' END AS peak_dtype,
    CASE
        WHEN peak_flops IS NULL THEN NULL
        WHEN has_dtypes THEN TRUE
        WHEN table_source IS NULL THEN dtype <> 'float32'
        ELSE FALSE
    END AS is_peak_of_other_dtype,
    CASE
        WHEN table_source IS NOT NULL
        THEN greatest(model_flops, coalesce(hardware_flops, 0)) > $max_plausible_ratio * nullif(peak_flops, 0)
    END AS is_ratio_implausible,
    device_type, device_name,
    CASE WHEN model_flops IS NOT NULL THEN 'counted' END AS flops_convention,
    CAST(NULL AS STRING) AS n_convention,
    CASE
        WHEN model_flops IS NULL
        THEN concat('model FLOPs are not recorded on ', ranks_without_flops, ' of ', ranks, ' ranks')
        WHEN peak_flops IS NOT NULL THEN NULL
        WHEN known_run IS NULL THEN 'the run''s device is not recorded'
        WHEN device_name IS NULL OR compute_dtype IS NULL THEN 'device name or number format is not recorded'
        ELSE concat('no dense peak is known of ', device_name, ' in ', compute_dtype, ', and none was measured')
    END AS reason,
    CASE
        WHEN hardware_flops IS NULL THEN 'recomputed FLOPs are not recorded'
        WHEN peak_flops IS NULL THEN 'no peak'
    END AS hfu_reason
FROM summed
