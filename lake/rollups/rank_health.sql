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
-- view own: what each rank needed for itself in each step
SELECT
    run, attempt, rank, step, ts,
    CAST(round(least(step_time_s, 1e6) * 1e9) AS BIGINT)
    - CAST(round(greatest(least(coalesce(collective_time_s, 0), 1e6), 0) * 1e9) AS BIGINT) AS self_ns,
    CAST(round(greatest(least(coalesce(data_time_s, 0), 1e6), 0) * 1e9) AS BIGINT) AS data_ns,
    CAST(collective_time_s IS NOT NULL AS INT) AS has_collective
FROM steps
WHERE date BETWEEN $date - 1 AND $date + 1
  AND ts >= $begin - INTERVAL '1' HOUR
  AND ts < $begin + INTERVAL '25' HOUR
  -- one line for several steps is one measurement
  AND coalesce(interval_end_step, step) = step;

-- into stepwise: the peers of each step
SELECT *
FROM (
    SELECT
        run, attempt, step,
        row_number() OVER (PARTITION BY run, attempt ORDER BY step) > $warmup_steps AS is_warm,
        min(ts) AS ts,
        count(*) AS ranks,
        sum(has_collective) AS collectives,
        exact_sum(self_ns) AS all_self_ns,
        max(self_ns) AS max_self_ns,
        median(CAST(self_ns AS DOUBLE)) AS middle_ns,
        exact_sum(data_ns) AS all_data_ns
    FROM own
    GROUP BY run, attempt, step
)
WHERE ts >= $begin AND ts < $begin + INTERVAL '24' HOUR;

-- view compared: each rank against its peers in each step
SELECT
    run, attempt, rank, step, ranks, collectives, self_ns, is_slowest,
    CASE WHEN peer_ns > 0 THEN self_ns / peer_ns - 1 END AS excess,
    CASE WHEN peer_ns > 0 THEN CAST(round(self_ns - peer_ns) AS BIGINT) END AS excess_ns,
    CASE WHEN peer_ns > 0 THEN CAST(round(peer_ns) AS BIGINT) END AS peer_ns,
    CASE WHEN peer_ns > 0 THEN data_excess_ns END AS data_excess_ns
FROM (
    SELECT
        own.run, own.attempt, own.rank, own.step, stepwise.ranks, stepwise.collectives, own.self_ns,
        own.self_ns = stepwise.max_self_ns AS is_slowest,
        CASE
            WHEN NOT stepwise.is_warm OR stepwise.collectives NOT IN (0, stepwise.ranks) THEN NULL
            WHEN stepwise.ranks = 2 THEN CAST(stepwise.all_self_ns - own.self_ns AS DOUBLE)
            WHEN stepwise.ranks > 2 THEN stepwise.middle_ns
        END AS peer_ns,
        CASE WHEN stepwise.ranks > 1
             THEN CAST(round(
                 own.data_ns - (stepwise.all_data_ns - own.data_ns) / CAST(stepwise.ranks - 1 AS DOUBLE)
             ) AS BIGINT) END AS data_excess_ns
    FROM own
    INNER JOIN stepwise
        ON stepwise.run = own.run AND stepwise.attempt = own.attempt AND stepwise.step = own.step
);

-- into summed: each rank over all steps
SELECT
    run, attempt, rank,
    max(ranks) AS ranks,
    count(*) AS steps,
    count(excess) AS steps_compared,
    median(CAST(self_ns AS DOUBLE)) / 1e9 AS self_time_median_s,
    median(excess) AS excess_ratio,
    exact_sum(excess_ns) AS sum_excess_ns,
    exact_sum(peer_ns) AS sum_peer_ns,
    exact_sum(data_excess_ns) AS sum_data_excess_ns,
    count(*) FILTER (WHERE excess > 0) AS steps_slower,
    count(*) FILTER (WHERE excess IS NOT NULL AND is_slowest) AS steps_slowest,
    bool_or(collectives NOT IN (0, ranks)) AS is_mixed,
    bool_or(collectives > 0) AS has_collectives
FROM compared
GROUP BY run, attempt, rank;

-- into scattered: how much each rank's excess varies
SELECT
    compared.run, compared.attempt, compared.rank,
    1.4826 * median(abs(compared.excess - summed.excess_ratio)) AS deviation
FROM compared
INNER JOIN summed
    ON summed.run = compared.run AND summed.attempt = compared.attempt AND summed.rank = compared.rank
GROUP BY compared.run, compared.attempt, compared.rank;

-- into usual: what is usual for each rank, and where far beyond it begins
SELECT
    summed.run, summed.attempt, summed.rank, summed.excess_ratio,
    greatest(
        $min_burst_ratio,
        $burst_deviations * greatest(scattered.deviation, pooled.deviation)
    ) AS beyond
FROM summed
INNER JOIN scattered
    ON scattered.run = summed.run AND scattered.attempt = summed.attempt AND scattered.rank = summed.rank
INNER JOIN (SELECT run, attempt, median(deviation) AS deviation FROM scattered GROUP BY run, attempt) AS pooled
    ON pooled.run = summed.run AND pooled.attempt = summed.attempt;

-- into bursts: the steps of each rank far beyond its usual, and how many episodes they make
SELECT
    run, attempt, rank,
    count(*) AS steps_beyond,
    count(*) FILTER (WHERE since IS NULL OR since > $burst_gap_steps) AS episodes,
    median(excess) AS burst_ratio,
    exact_sum(excess_ns) AS burst_excess_ns,
    exact_sum(data_excess_ns) AS burst_data_excess_ns
FROM (
    SELECT
        compared.run, compared.attempt, compared.rank, compared.excess - usual.excess_ratio AS excess,
        compared.excess_ns, compared.data_excess_ns,
        compared.step - lag(compared.step) OVER (
            PARTITION BY compared.run, compared.attempt, compared.rank ORDER BY compared.step
        ) AS since
    FROM compared
    INNER JOIN usual
        ON usual.run = compared.run AND usual.attempt = compared.attempt AND usual.rank = compared.rank
    WHERE compared.excess - usual.excess_ratio > usual.beyond
)
GROUP BY run, attempt, rank;

-- into counted: each rank's episodes as k of n on q ranks in all
SELECT
    summed.run, summed.attempt, summed.rank, bursts.steps_beyond, bursts.burst_ratio, bursts.burst_excess_ns,
    bursts.burst_data_excess_ns,
    CAST(bursts.episodes AS DOUBLE) AS k,
    CAST(everyone.episodes AS DOUBLE) AS n,
    CAST(everyone.ranks AS DOUBLE) AS q
FROM summed
INNER JOIN bursts
    ON bursts.run = summed.run AND bursts.attempt = summed.attempt AND bursts.rank = summed.rank
INNER JOIN (
    SELECT summed.run, summed.attempt, count(*) AS ranks, sum(coalesce(bursts.episodes, 0)) AS episodes
    FROM summed
    LEFT JOIN bursts
        ON bursts.run = summed.run AND bursts.attempt = summed.attempt AND bursts.rank = summed.rank
    WHERE summed.steps_compared > 0
    GROUP BY summed.run, summed.attempt
) AS everyone
    ON everyone.run = summed.run AND everyone.attempt = summed.attempt;

-- the verdict
WITH at_times AS (
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
    FROM summed
),
judged AS (
    SELECT
        tested.*,
        at_times.steps_beyond, at_times.burst_ratio, at_times.burst_excess_ns, at_times.burst_data_excess_ns,
        at_times.k AS episodes, at_times.n AS all_episodes,
        steps_compared >= $min_steps
        AND coalesce(at_times.chance <= $max_burst_chance, FALSE)
        AND at_times.steps_beyond >= $min_burst_step_ratio * steps_compared AS is_slow_at_times,
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
    LEFT JOIN at_times
        ON at_times.run = tested.run AND at_times.attempt = tested.attempt AND at_times.rank = tested.rank
)
SELECT
    judged.run, judged.attempt, judged.rank, $date AS date, ranks, steps, steps_compared,
    self_time_median_s, excess_ratio,
    sum_excess_ns, CAST(sum_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS excess_s,
    sum_peer_ns,
    sum_data_excess_ns, CAST(sum_data_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS data_excess_s,
    steps_slower, slower_step_ratio,
    steps_slowest, CAST(steps_slowest AS DOUBLE) / nullif(steps_compared, 0) AS slowest_step_ratio,
    p_value,
    excess_ratio / nullif(scattered.deviation, 0) AS score,
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
            steps_compared, ' steps; ', CAST(episodes AS BIGINT), ' of the ', CAST(all_episodes AS BIGINT),
            ' such episodes of all ', ranks, ' ranks'
        )
        ELSE concat(
            coalesce(objection, 'straggler'), ': ', CASE WHEN excess_ratio < 0 THEN '' ELSE '+' END,
            round(100 * excess_ratio, 1), ' % against its peers, slower in ',
            round(100 * slower_step_ratio, 1), ' % of ', steps_compared, ' steps'
        )
    END AS reason
FROM judged
INNER JOIN scattered
    ON scattered.run = judged.run AND scattered.attempt = judged.attempt AND scattered.rank = judged.rank
