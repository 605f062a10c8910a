-- grain    one row per run, attempt, rank and UTC date
-- inputs   steps of the date, and of one hour before and after it: a step belongs to the date on which its first rank
--          began it
-- formula  In each step, the rank's self time (step time minus time in collectives, where a fast rank waits for a slow
--          one) is compared with that of its peers: with two ranks that of the other one, else the median of all ranks.
--          If no rank recorded collectives, the step time is used. The first $warmup_steps steps of an attempt are left
--          out, as far as they are on the date or in the hour before it. Steps with one common mean (interval_end_step)
--          are one measurement and count as one step. A rank is a straggler if its effect is large (median excess),
--          steady (share of steps in which it was slower than its peers; not needed for a clear effect over many steps)
--          and significant (sign test, Dixon & Mood 1946; its tail by Chernoff's bound exp(-n KL(k/n || 1/2)), so p is
--          never too small), over enough steps after the warm-up. A rank is also a straggler if it is slow at times: in
--          more steps than its peers, its excess is far above its usual one (by $min_burst_ratio and $burst_deviations
--          robust deviations). Slow steps within $burst_gap_steps are one episode, since a process that takes a core
--          takes it for several steps. If all ranks are equal, an episode is equally likely on each. So the test is
--          binomial: the rank's episodes among those of all ranks (tail: its first term, by Robbins's bounds of
--          factorials, times a geometric series that exceeds the rest), times the number of ranks. score = median
--          excess / (1.4826 median absolute deviation): the robust z of Iglewicz & Hoaglin 1993, over steps.
-- set by   $warmup_steps, $min_steps, $min_excess_ratio, $min_slower_ratio, $max_p_value, $clear_excess_ratio,
--          $min_burst_ratio, $burst_deviations, $burst_gap_steps, $min_burst_step_ratio, $max_burst_chance
-- into own: what each rank needed for itself in each step; day is 0 before the date, 1 on it, 2 after it
SELECT
    run, attempt, rank, step,
    CASE WHEN ts < $begin THEN 0 WHEN ts < $begin + INTERVAL '24' HOUR THEN 1 ELSE 2 END AS day,
    CAST(round(greatest(least(step_time_s, 1e6), -1e6) * 1e9) AS BIGINT)
    - CAST(round(greatest(least(coalesce(collective_time_s, 0), 1e6), 0) * 1e9) AS BIGINT) AS self_ns,
    CAST(round(greatest(least(coalesce(data_time_s, 0), 1e6), 0) * 1e9) AS BIGINT) AS data_ns,
    CAST(collective_time_s IS NOT NULL AS TINYINT) AS has_collective
FROM steps
WHERE date BETWEEN $date - 1 AND $date + 1
  AND ts >= $begin - INTERVAL '1' HOUR
  AND ts < $begin + INTERVAL '25' HOUR
  -- one line for several steps is one measurement
  AND coalesce(interval_end_step, step) = step;

-- the verdict on each row of compared, which rank_health.py computes from own
WITH counted AS (  -- each rank's episodes as k of n on q ranks in all
    SELECT
        *,
        CAST(episodes AS DOUBLE) AS k,
        CAST(sum(CASE WHEN steps_compared > 0 THEN episodes END) OVER (PARTITION BY run, attempt) AS DOUBLE) AS n,
        CAST(sum(CAST(steps_compared > 0 AS BIGINT)) OVER (PARTITION BY run, attempt) AS DOUBLE) AS q
    FROM compared
),
at_times AS (
    SELECT
        *,
        CASE
            WHEN q < 2 OR k * q <= n THEN NULL
            WHEN k = n THEN q * exp(-k * ln(q))
            ELSE q * exp(
                -k * ln(k * q / n) - (n - k) * ln((n - k) / (n * (1 - 1 / q)))
                + 0.5 * ln(n / (2 * pi() * k * (n - k)))
                + 1 / (12 * n) - 1 / (12 * k + 1) - 1 / (12 * (n - k) + 1)
            ) / (1 - (n - k) / ((k + 1) * (q - 1)))
        END AS chance
    FROM counted
),
tested AS (
    SELECT
        *,
        CAST(steps_slower AS DOUBLE) / nullif(steps_compared, 0) AS slower_step_ratio,
        CASE
            WHEN steps_compared = 0 THEN NULL
            WHEN 2 * steps_slower <= steps_compared THEN 1.0
            WHEN steps_slower = steps_compared THEN exp(-steps_compared * ln(2))
            ELSE exp(
                -steps_slower * ln(2.0 * steps_slower / steps_compared)
                - (steps_compared - steps_slower) * ln(2.0 * (steps_compared - steps_slower) / steps_compared)
            )
        END AS p_value
    FROM at_times
),
judged AS (
    SELECT
        *,
        steps_compared >= $min_steps
        AND coalesce(chance <= $max_burst_chance, FALSE)
        AND steps_beyond >= $min_burst_step_ratio * steps_compared AS is_slow_at_times,
        CASE
            WHEN steps_compared = 0 AND ranks = 1 THEN 'no peer'
            WHEN steps_compared = 0 AND is_mixed THEN 'only some ranks recorded collectives'
            WHEN steps_compared < $min_steps THEN 'too few steps'
            WHEN excess_ratio < $min_excess_ratio THEN 'within its peers'
            WHEN slower_step_ratio < $min_slower_ratio
                AND NOT (excess_ratio >= $clear_excess_ratio AND steps_compared >= 4 * $min_steps) THEN 'not steady'
            WHEN p_value > $max_p_value THEN 'could be chance'
        END AS objection
    FROM tested
)
SELECT
    run, attempt, rank, $date AS date, ranks, steps, steps_compared,
    self_time_median_s, excess_ratio,
    sum_excess_ns, CAST(sum_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS excess_s,
    sum_peer_ns,
    sum_data_excess_ns, CAST(sum_data_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS data_excess_s,
    steps_slower, slower_step_ratio,
    steps_slowest, CAST(steps_slowest AS DOUBLE) / nullif(steps_compared, 0) AS slowest_step_ratio,
    p_value,
    excess_ratio / nullif(deviation, 0) AS score,
    CASE WHEN has_collectives THEN 'self time' ELSE 'step time' END AS basis,
    CASE
        WHEN objection IN ('no peer', 'only some ranks recorded collectives', 'too few steps') THEN NULL
        ELSE objection IS NULL OR is_slow_at_times
    END AS is_straggler,
    CASE
        WHEN objection IS NOT NULL AND NOT is_slow_at_times THEN NULL
        WHEN objection IS NOT NULL AND 2 * burst_data_excess_ns > burst_excess_ns THEN 'input'
        WHEN objection IS NOT NULL THEN 'compute'
        WHEN 2 * sum_data_excess_ns > sum_excess_ns THEN 'input'
        ELSE 'compute'
    END AS cause,
    CASE
        WHEN objection IN ('no peer', 'only some ranks recorded collectives') THEN objection
        WHEN objection = 'too few steps'
        THEN concat('too few steps: ', steps_compared, ' compared, ', $min_steps, ' needed')
        WHEN objection IS NOT NULL AND is_slow_at_times
        THEN concat(
            'straggler at times: +', round(100 * burst_ratio, 1), ' % beyond its usual in ', steps_beyond, ' of ',
            steps_compared, ' steps; ', episodes, ' of the ', CAST(n AS BIGINT),
            ' such episodes of all ', ranks, ' ranks'
        )
        ELSE concat(
            coalesce(objection, 'straggler'), ': ', CASE WHEN excess_ratio < 0 THEN '' ELSE '+' END,
            round(100 * excess_ratio, 1), ' % against its peers, slower in ',
            round(100 * slower_step_ratio, 1), ' % of ', steps_compared, ' steps'
        )
    END AS reason
FROM judged
