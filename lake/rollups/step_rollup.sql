-- grain    one row per run, attempt and step; it lies on the UTC date on which the first of its ranks began the step
-- inputs   steps of that date, and of an hour on either side, since ranks do not begin a step at one moment
-- formula  self time = step time - time in collectives: what a rank needs for itself, without waiting for the others;
--          imbalance = longest / mean step time (DeRose et al. 2007, Detecting application load imbalance, there minus 1);
--          deviation of the population, from exact integer sums, so that no order of the rows changes a digit;
--          lead_*: rank 0's own times, for the run's timeline; of a step that rank 0 did not record the first start and the
--          longest times
WITH ranked AS (
    SELECT
        run, attempt, rank, step, ts, tokens, samples, loss, grad_norm, non_finite,
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
        max(grad_norm) AS max_grad_norm,
        max(memory_allocated_bytes) AS max_memory_allocated_bytes,
        max(memory_reserved_bytes) AS max_memory_reserved_bytes,
        count(non_finite) AS non_finite_ranks
    FROM ranked
    GROUP BY run, attempt, step
    -- 64 bits hold the times, of at most 10^15 ns each, of 9,223 ranks that all took that long: a step of which they do
    -- not hold the sum was never taken, and has no row rather than a sum that wrapped round
    HAVING sum(1e0 * step_ns) < 9.2e18
)
SELECT
    run, attempt, step, ts, $date AS date, ranks,
    lead_ts, lead_step_time_ns, lead_checkpoint_time_ns, lead_evaluation_time_ns,
    sum_step_time_ns, min_step_time_s, median_step_time_s,
    CAST(sum_step_time_ns AS DOUBLE) / ranks / 1e9 AS mean_step_time_s,
    max_step_time_s,
    sqrt(greatest(
        CAST(sum_squared_ns AS DOUBLE) / ranks - power(CAST(sum_step_time_ns AS DOUBLE) / ranks, 2), 0
    )) / 1e9 AS std_step_time_s,
    max_step_time_s * 1e9 * ranks / nullif(sum_step_time_ns, 0) AS imbalance_ratio,
    sum_self_time_ns,
    max_self_ns / 1e9 AS max_self_time_s,
    CASE WHEN ranks > 1 THEN 1048575 - slowest % 1048576 END AS slowest_rank,
    CASE WHEN ranks > 1
         THEN CAST(CAST(ranks AS DECIMAL(19, 0)) * CAST(max_self_ns AS DECIMAL(19, 0)) - sum_self_time_ns AS DOUBLE)
              / CAST(ranks - 1 AS DOUBLE) / 1e9
    END AS slowest_excess_s,
    mean_data_time_s, max_data_time_s, mean_forward_time_s, max_forward_time_s,
    mean_backward_time_s, max_backward_time_s, mean_optimizer_time_s, max_optimizer_time_s,
    mean_collective_time_s, max_collective_time_s, mean_checkpoint_time_s, max_checkpoint_time_s,
    mean_evaluation_time_s, max_evaluation_time_s,
    tokens, samples, mean_loss, loss_ranks, max_grad_norm,
    max_memory_allocated_bytes, max_memory_reserved_bytes, non_finite_ranks
FROM stepped
WHERE ts >= $begin AND ts < $begin + INTERVAL '24' HOUR
