-- grain    one row per run, attempt and step with a time, as in step_rollup
-- inputs   step_rollup and mfu of the date
-- formula  An hour's FLOPs are divided among the steps that began in it: by tokens if all of them have tokens, else by
--          the number of ranks. Its peak FLOPs are divided by step time summed over ranks. So the sums over the steps
--          of an hour equal mfu's row. A host that launches kernels ahead of the device ends a step too early and waits
--          in a later one. So a step above the peak, in an hour that is not, has no ratio.
WITH hourly AS (
    SELECT
        run, attempt, step, ts, ranks, tokens, sum_step_time_ns,
        (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 AS hour_number
    FROM step_rollup
    WHERE date = $date AND mean_step_time_s IS NOT NULL
),
weighed AS (
    SELECT
        *,
        CASE
            WHEN count(tokens) OVER hour = count(*) OVER hour AND sum(tokens) OVER hour > 0
            THEN CAST(tokens AS DOUBLE) / sum(tokens) OVER hour
            ELSE CAST(ranks AS DOUBLE) / sum(ranks) OVER hour
        END AS flops_share,
        CAST(sum_step_time_ns AS DOUBLE) / nullif(sum(sum_step_time_ns) OVER hour, 0) AS time_share
    FROM hourly
    WINDOW hour AS (PARTITION BY run, attempt, hour_number)
),
shared AS (
    SELECT
        weighed.run, weighed.attempt, weighed.step, weighed.ts, weighed.ranks, weighed.tokens,
        mfu.model_flops * flops_share AS model_flops,
        mfu.hardware_flops * flops_share AS hardware_flops,
        mfu.peak_flops * time_share AS peak_flops,
        mfu.peak_source, mfu.flops_convention, mfu.reason, mfu.hfu_reason, mfu.run AS of_run,
        mfu.mfu_ratio <= 1 AND mfu.model_flops * flops_share > mfu.peak_flops * time_share AS is_ahead,
        mfu.hfu_ratio <= 1 AND mfu.hardware_flops * flops_share > mfu.peak_flops * time_share AS is_hardware_ahead
    FROM weighed
    LEFT JOIN mfu
        ON mfu.run = weighed.run
        AND mfu.attempt = weighed.attempt
        AND mfu.date = $date
        AND CAST(mfu.hour AS BIGINT) = CAST($begin AS BIGINT) + weighed.hour_number * 3600000000
)
SELECT
    run, attempt, step, ts, $date AS date, ranks, tokens,
    model_flops, hardware_flops, peak_flops,
    CASE WHEN is_ahead IS NOT TRUE THEN model_flops / nullif(peak_flops, 0) END AS mfu_ratio,
    CASE WHEN is_hardware_ahead IS NOT TRUE THEN hardware_flops / nullif(peak_flops, 0) END AS hfu_ratio,
    peak_source, flops_convention,
    CASE
        WHEN is_ahead THEN 'the host ran ahead of the device: the step took less time than its FLOPs at the peak'
        WHEN model_flops / nullif(peak_flops, 0) IS NOT NULL THEN NULL
        WHEN of_run IS NULL THEN 'mfu has no row for the hour'
        ELSE coalesce(reason, 'the step took no time')
    END AS reason,
    CASE
        WHEN is_hardware_ahead
            THEN 'the host ran ahead of the device: the step took less time than its FLOPs at the peak'
        WHEN hardware_flops / nullif(peak_flops, 0) IS NOT NULL THEN NULL
        WHEN of_run IS NULL THEN 'mfu has no row for the hour'
        ELSE coalesce(hfu_reason, 'the step took no time')
    END AS hfu_reason
FROM shared
