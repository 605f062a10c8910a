-- grain    one row per run, attempt and step, on the UTC date on which the first rank began the step
-- inputs   steps of the date, and of one hour before and after it, since ranks do not begin a step at the same time;
--          scalars of the same time that have a step; step_metrics, the usual names of loss, learning rate, gradient
--          norm, tokens and samples
-- formula  self time = step time - time in collectives: the rank's own work, without waiting for other ranks; imbalance
--          = longest / mean step time (DeRose et al. 2007, Detecting application load imbalance, there minus 1);
--          population deviation from exact integer sums, so the order of rows does not change any digit; lead_*: rank
--          0's times, for the run's timeline; for a step without rank 0, the first start and the longest times. Values
--          that a row in steps lacks are taken from scalars, under the first matching name in step_metrics. An attempt
--          without rows in steps (only metrics with steps) has the steps of its scalars, without times. A mean over
--          ranks is NULL if a rank has NaN or an infinity. Of scalars, only loss and gradient norm count as not finite,
--          since NaN is a usual value for a missing score.
WITH ranked AS (
    SELECT
        run, attempt, rank, step, ts, tokens, samples, loss, lr, grad_norm, non_finite,
        CASE WHEN non_finite IS NOT NULL THEN regexp_match(concat(',', non_finite), ',loss:([^,]+)')[1] END AS loss_flag,
        memory_allocated_bytes, memory_reserved_bytes, step_time_s,
        data_time_s, forward_time_s, backward_time_s, optimizer_time_s, collective_time_s,
        checkpoint_time_s, evaluation_time_s,
        CAST(least(step_time_s, 1e6) * 1e9 + 0.5 AS BIGINT) AS step_ns,
        greatest(
            CAST(least(step_time_s, 1e6) * 1e9 + 0.5 AS BIGINT)
            - CAST(greatest(least(coalesce(collective_time_s, 0), 1e6), 0) * 1e9 + 0.5 AS BIGINT),
            0
        ) AS self_ns,
        CASE WHEN checkpoint_time_s IS NOT NULL THEN CAST(greatest(least(checkpoint_time_s, 1e6), 0) * 1e9 + 0.5 AS BIGINT) END
            AS checkpoint_ns,
        CASE WHEN evaluation_time_s IS NOT NULL THEN CAST(greatest(least(evaluation_time_s, 1e6), 0) * 1e9 + 0.5 AS BIGINT) END
            AS evaluation_ns
    FROM steps
    WHERE date BETWEEN $date - 1 AND $date + 1
      AND step BETWEEN $first AND $last
      AND ts >= $begin - INTERVAL '1' HOUR
      AND ts < $begin + INTERVAL '25' HOUR
),
stepped AS (
    SELECT
        run, attempt, step,
        min(ts) AS ts,
        count(*) AS ranks,
        sum(CAST(rank AS BIGINT)) AS sum_rank,
        sum(CAST(rank AS BIGINT) * CAST(rank AS BIGINT)) AS sum_squared_rank,
        coalesce(min(ts) FILTER (WHERE rank = 0), min(ts)) AS lead_ts,
        coalesce(max(step_ns) FILTER (WHERE rank = 0), max(step_ns)) AS lead_step_time_ns,
        CASE WHEN min(rank) = 0 THEN max(checkpoint_ns) FILTER (WHERE rank = 0) ELSE max(checkpoint_ns) END
            AS lead_checkpoint_time_ns,
        CASE WHEN min(rank) = 0 THEN max(evaluation_ns) FILTER (WHERE rank = 0) ELSE max(evaluation_ns) END
            AS lead_evaluation_time_ns,
        sum(step_ns) AS sum_step_time_ns,
        sum(CAST(step_ns AS DECIMAL(19, 0)) * CAST(step_ns AS DECIMAL(19, 0))) AS sum_squared_ns,
        min(step_time_s) AS min_step_time_s,
        median(step_time_s) AS median_step_time_s,
        max(step_time_s) AS max_step_time_s,
        -- longest self time (in us) and the lowest rank that had it, in one integer
        max(self_ns / 1000 * 1048576 + 1048575 - rank) AS slowest,
        sum(self_ns) AS sum_self_time_ns,
        max(self_ns) AS max_self_ns,
        avg(data_time_s) AS mean_data_time_s,
        max(data_time_s) AS max_data_time_s,
        avg(forward_time_s) AS mean_forward_time_s,
        max(forward_time_s) AS max_forward_time_s,
        avg(backward_time_s) AS mean_backward_time_s,
        max(backward_time_s) AS max_backward_time_s,
        avg(optimizer_time_s) AS mean_optimizer_time_s,
        max(optimizer_time_s) AS max_optimizer_time_s,
        avg(collective_time_s) AS mean_collective_time_s,
        max(collective_time_s) AS max_collective_time_s,
        avg(checkpoint_time_s) AS mean_checkpoint_time_s,
        max(checkpoint_time_s) AS max_checkpoint_time_s,
        avg(evaluation_time_s) AS mean_evaluation_time_s,
        max(evaluation_time_s) AS max_evaluation_time_s,
        exact_sum(tokens) AS tokens,
        exact_sum(samples) AS samples,
        avg(loss) AS mean_loss,
        count(loss) AS loss_ranks,
        max(loss_flag) AS loss_flag,
        max(lr) AS lr,
        max(grad_norm) AS max_grad_norm,
        max(memory_allocated_bytes) AS max_memory_allocated_bytes,
        max(memory_reserved_bytes) AS max_memory_reserved_bytes,
        count(non_finite) AS non_finite_ranks
    FROM ranked
    GROUP BY run, attempt, step
    -- 64 bits hold the times, of at most 10^15 ns each, of 9,223 ranks that all took that long: a step of which they do
    -- not hold the sum was never taken, and has no row rather than a sum that wrapped round
    HAVING sum(1e0 * step_ns) < 9.2e18
),
stepped_attempts AS (
    SELECT run, attempt
    FROM steps
    WHERE date BETWEEN $date - 1 AND $date + 1
      AND ts >= $begin - INTERVAL '1' HOUR
      AND ts < $begin + INTERVAL '25' HOUR
    UNION
    SELECT run, attempt FROM settled_attempts
),
named AS (
    SELECT metric, "column", place
    FROM (SELECT DISTINCT metric FROM scalars WHERE date BETWEEN $date - 1 AND $date + 1 AND step IS NOT NULL) AS metrics
    INNER JOIN step_metrics ON step_metrics.name = lower(regexp_replace(metric, '[^A-Za-z0-9]+', '_', 'g'))
),
valued AS (
    SELECT
        scalars.run, scalars.attempt, rank, step, ts, "column", place, incarnation, segment, slot, value_flag IS NOT NULL AS is_flag,
        CASE WHEN abs(value) < 3.4e38 THEN value END AS value,
        CASE WHEN value >= 3.4e38 THEN '+inf' WHEN value <= -3.4e38 THEN '-inf' ELSE value_flag END AS flag
    FROM scalars
    LEFT JOIN named ON named.metric = scalars.metric
    LEFT JOIN stepped_attempts
        ON stepped_attempts.run = scalars.run AND stepped_attempts.attempt = scalars.attempt
    WHERE date BETWEEN $date - 1 AND $date + 1
      AND step BETWEEN $first AND $last
      AND ts >= $begin - INTERVAL '1' HOUR
      AND ts < $begin + INTERVAL '25' HOUR
      AND (named.metric IS NOT NULL OR stepped_attempts.run IS NULL)
),
logged_by_rank AS (
    SELECT
        run, attempt, rank, step, min(ts) AS ts,
        last_value(value ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'loss') AS loss,
        last_value(flag ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'loss') AS loss_flag,
        last_value(value ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'lr') AS lr,
        last_value(value ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'grad_norm')
            AS grad_norm,
        last_value(value ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'tokens') AS tokens,
        last_value(value ORDER BY place DESC, ts, incarnation, segment, slot) FILTER (WHERE "column" = 'samples') AS samples,
        bool_or(is_flag AND "column" IN ('loss', 'grad_norm')) AS has_flag
    FROM valued
    GROUP BY run, attempt, rank, step
),
logged AS (
    SELECT
        run, attempt, step, min(ts) AS ts, count(*) AS ranks,
        sum(CAST(rank AS BIGINT)) AS sum_rank,
        sum(CAST(rank AS BIGINT) * CAST(rank AS BIGINT)) AS sum_squared_rank,
        TRY_CAST(sum(tokens) AS BIGINT) AS tokens,
        TRY_CAST(sum(samples) AS BIGINT) AS samples,
        avg(loss) AS mean_loss,
        count(loss) AS loss_ranks,
        max(loss_flag) AS loss_flag,
        max(lr) AS lr,
        max(grad_norm) AS grad_norm,
        count(*) FILTER (WHERE has_flag) AS non_finite_ranks
    FROM logged_by_rank
    GROUP BY run, attempt, step
),
joined AS (
    SELECT
        coalesce(stepped.run, logged.run) AS run,
        coalesce(stepped.attempt, logged.attempt) AS attempt,
        coalesce(stepped.step, logged.step) AS step,
        coalesce(stepped.ts, logged.ts) AS ts,
        coalesce(stepped.ranks, logged.ranks) AS ranks,
        stepped.ranks AS timed_ranks,
        coalesce(stepped.sum_rank, logged.sum_rank) AS sum_rank,
        coalesce(stepped.sum_squared_rank, logged.sum_squared_rank) AS sum_squared_rank,
        coalesce(lead_ts, logged.ts) AS lead_ts,
        coalesce(lead_step_time_ns, 0) AS lead_step_time_ns, lead_checkpoint_time_ns, lead_evaluation_time_ns,
        coalesce(sum_step_time_ns, 0) AS sum_step_time_ns, sum_squared_ns, min_step_time_s, median_step_time_s, max_step_time_s,
        slowest, coalesce(sum_self_time_ns, 0) AS sum_self_time_ns, max_self_ns,
        mean_data_time_s, max_data_time_s, mean_forward_time_s, max_forward_time_s,
        mean_backward_time_s, max_backward_time_s, mean_optimizer_time_s, max_optimizer_time_s,
        mean_collective_time_s, max_collective_time_s, mean_checkpoint_time_s, max_checkpoint_time_s,
        mean_evaluation_time_s, max_evaluation_time_s,
        coalesce(stepped.tokens, logged.tokens) AS tokens,
        coalesce(stepped.samples, logged.samples) AS samples,
        CASE WHEN stepped.loss_ranks > 0 OR stepped.loss_flag IS NOT NULL THEN stepped.mean_loss ELSE logged.mean_loss END
            AS mean_loss,
        CASE WHEN stepped.loss_ranks > 0 OR stepped.loss_flag IS NOT NULL THEN stepped.loss_ranks
             ELSE coalesce(logged.loss_ranks, 0) END AS loss_ranks,
        CASE WHEN stepped.loss_ranks > 0 OR stepped.loss_flag IS NOT NULL THEN stepped.loss_flag ELSE logged.loss_flag END
            AS loss_flag,
        coalesce(stepped.lr, logged.lr) AS lr,
        coalesce(stepped.max_grad_norm, logged.grad_norm) AS max_grad_norm,
        max_memory_allocated_bytes, max_memory_reserved_bytes,
        greatest(coalesce(stepped.non_finite_ranks, 0), coalesce(logged.non_finite_ranks, 0)) AS non_finite_ranks
    FROM stepped
    FULL JOIN logged ON logged.run = stepped.run AND logged.attempt = stepped.attempt AND logged.step = stepped.step
)
SELECT
    run, attempt, step, ts, $date AS date, ranks,
    lead_ts, lead_step_time_ns, lead_checkpoint_time_ns, lead_evaluation_time_ns,
    sum_step_time_ns, min_step_time_s, median_step_time_s,
    CAST(sum_step_time_ns AS DOUBLE) / timed_ranks / 1e9 AS mean_step_time_s,
    max_step_time_s,
    sqrt(greatest(
        CAST(sum_squared_ns AS DOUBLE) / timed_ranks - power(CAST(sum_step_time_ns AS DOUBLE) / timed_ranks, 2), 0
    )) / 1e9 AS std_step_time_s,
    max_step_time_s * 1e9 * timed_ranks / nullif(sum_step_time_ns, 0) AS imbalance_ratio,
    sum_self_time_ns,
    max_self_ns / 1e9 AS max_self_time_s,
    CASE WHEN timed_ranks > 1 THEN 1048575 - slowest % 1048576 END AS slowest_rank,
    CASE WHEN timed_ranks > 1
         THEN CAST(CAST(timed_ranks AS DECIMAL(19, 0)) * CAST(max_self_ns AS DECIMAL(19, 0)) - sum_self_time_ns AS DOUBLE)
              / CAST(timed_ranks - 1 AS DOUBLE) / 1e9
    END AS slowest_excess_s,
    mean_data_time_s, max_data_time_s, mean_forward_time_s, max_forward_time_s,
    mean_backward_time_s, max_backward_time_s, mean_optimizer_time_s, max_optimizer_time_s,
    mean_collective_time_s, max_collective_time_s, mean_checkpoint_time_s, max_checkpoint_time_s,
    mean_evaluation_time_s, max_evaluation_time_s,
    tokens, samples,
    CASE WHEN loss_flag IS NULL THEN mean_loss END AS mean_loss,
    CASE WHEN loss_flag IS NULL THEN loss_ranks ELSE 0 END AS loss_ranks,
    loss_flag, lr, max_grad_norm,
    max_memory_allocated_bytes, max_memory_reserved_bytes, non_finite_ranks, sum_rank, sum_squared_rank
FROM joined
WHERE ts >= $begin AND ts < $begin + INTERVAL '24' HOUR
