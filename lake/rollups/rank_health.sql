-- grain    one row per run, attempt, rank and UTC date
-- inputs   steps of that date, and of an hour on either side of it: a step belongs to the date on which its first rank began
-- formula  Paired in every step: the rank's self time (step time less time in collectives, where a fast rank waits for the
--          slow one) over its peers': of two ranks the other's, else the median of all. Where no rank recorded collectives,
--          the step time itself.
--          A rank is called a straggler only if the effect is large (median excess), steady (share of steps in which it was
--          slower than its peers) and more than chance (sign test, Dixon & Mood 1946; its tail by Chernoff's bound
--          exp(-n KL(k/n || 1/2)), so p is never too small) over enough steps after warming up.
--          score = median excess / (1.4826 median absolute deviation): the robust z of Iglewicz & Hoaglin 1993, over steps.
-- set by   $warmup_steps, $min_steps, $min_excess_ratio, $min_slower_ratio, $max_p_value
--
-- view own: what each rank needed for itself in each step
SELECT
    run, attempt, rank, step, ts,
    CAST(round(least(step_time_s, 1e6) * 1e9) AS BIGINT)
    - CAST(round(least(coalesce(collective_time_s, 0), 1e6) * 1e9) AS BIGINT) AS self_ns,
    CAST(round(least(coalesce(data_time_s, 0), 1e6) * 1e9) AS BIGINT) AS data_ns,
    CAST(collective_time_s IS NOT NULL AS INT) AS has_collective
FROM steps
WHERE date BETWEEN $date - 1 AND $date + 1
  AND ts >= $begin - INTERVAL '1' HOUR
  AND ts < $begin + INTERVAL '25' HOUR;

-- into stepwise: the peers of each step
SELECT
    *,
    row_number() OVER (PARTITION BY run, attempt ORDER BY step) > $warmup_steps AS is_warm
FROM (
    SELECT
        run, attempt, step,
        min(ts) AS ts,
        count(*) AS ranks,
        sum(has_collective) AS collectives,
        sum(self_ns) AS all_self_ns,
        max(self_ns) AS max_self_ns,
        median(CAST(self_ns AS DOUBLE)) AS middle_ns,
        sum(data_ns) AS all_data_ns
    FROM own
    GROUP BY run, attempt, step
)
WHERE ts >= $begin AND ts < $begin + INTERVAL '24' HOUR;

-- view compared: each rank against its peers in each step
SELECT
    run, attempt, rank, ranks, collectives, self_ns, is_slowest,
    CASE WHEN peer_ns > 0 THEN self_ns / peer_ns - 1 END AS excess,
    CASE WHEN peer_ns > 0 THEN CAST(round(self_ns - peer_ns) AS BIGINT) END AS excess_ns,
    CASE WHEN peer_ns > 0 THEN data_excess_ns END AS data_excess_ns
FROM (
    SELECT
        own.run, own.attempt, own.rank, stepwise.ranks, stepwise.collectives, own.self_ns,
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
    sum(excess_ns) AS sum_excess_ns,
    sum(data_excess_ns) AS sum_data_excess_ns,
    count(*) FILTER (WHERE excess > 0) AS steps_slower,
    count(*) FILTER (WHERE excess IS NOT NULL AND is_slowest) AS steps_slowest,
    bool_or(collectives NOT IN (0, ranks)) AS is_mixed,
    bool_or(collectives > 0) AS has_collectives
FROM compared
GROUP BY run, attempt, rank;

-- the verdict
WITH scattered AS (
    SELECT
        compared.run, compared.attempt, compared.rank,
        1.4826 * median(abs(compared.excess - summed.excess_ratio)) AS deviation
    FROM compared
    INNER JOIN summed
        ON summed.run = compared.run AND summed.attempt = compared.attempt AND summed.rank = compared.rank
    GROUP BY compared.run, compared.attempt, compared.rank
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
        *,
        CASE
            WHEN steps_compared = 0 AND ranks = 1 THEN 'no peer'
            WHEN steps_compared = 0 AND is_mixed THEN 'only some ranks recorded collectives'
            WHEN steps_compared < $min_steps THEN 'too few steps'
            WHEN excess_ratio < $min_excess_ratio THEN 'within its peers'
            WHEN slower_step_ratio < $min_slower_ratio THEN 'not steady'
            WHEN p_value > $max_p_value THEN 'could be chance'
        END AS objection
    FROM tested
)
SELECT
    judged.run, judged.attempt, judged.rank, $date AS date, ranks, steps, steps_compared,
    self_time_median_s, excess_ratio,
    sum_excess_ns, CAST(sum_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS excess_s,
    sum_data_excess_ns, CAST(sum_data_excess_ns AS DOUBLE) / nullif(steps_compared, 0) / 1e9 AS data_excess_s,
    steps_slower, slower_step_ratio,
    steps_slowest, CAST(steps_slowest AS DOUBLE) / nullif(steps_compared, 0) AS slowest_step_ratio,
    p_value,
    excess_ratio / nullif(scattered.deviation, 0) AS score,
    CASE WHEN has_collectives THEN 'self time' ELSE 'step time' END AS basis,
    CASE
        WHEN objection IN ('no peer', 'only some ranks recorded collectives', 'too few steps') THEN NULL
        ELSE objection IS NULL
    END AS is_straggler,
    CASE
        WHEN objection IS NOT NULL THEN NULL
        WHEN 2 * sum_data_excess_ns > sum_excess_ns THEN 'input'
        ELSE 'compute'
    END AS cause,
    CASE
        WHEN objection IN ('no peer', 'only some ranks recorded collectives') THEN objection
        WHEN objection = 'too few steps'
        THEN concat('too few steps: ', steps_compared, ' compared, ', $min_steps, ' needed')
        ELSE concat(
            coalesce(objection, 'straggler'), ': ', CASE WHEN excess_ratio < 0 THEN '' ELSE '+' END,
            round(100 * excess_ratio, 1), ' % against its peers, slower in ',
            round(100 * slower_step_ratio, 1), ' % of ', steps_compared, ' steps'
        )
    END AS reason
FROM judged
INNER JOIN scattered
    ON scattered.run = judged.run AND scattered.attempt = judged.attempt AND scattered.rank = judged.rank
