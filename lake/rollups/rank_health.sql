-- grain    one row per run, attempt, rank and UTC date
-- inputs   steps of that date, and of an hour on either side of it: a step belongs to the date on which its first rank began
-- formula  Paired in every step: the rank's self time (step time less time in collectives, where a fast rank waits for the
--          slow one) over the median self time of the other ranks. Where no rank recorded collectives, the step time itself.
--          A rank is called a straggler only if the effect is large (median excess), steady (share of steps in which it was
--          slower than its peers) and more than chance (sign test, Dixon & Mood 1946; its tail by Chernoff's bound
--          exp(-n KL(k/n || 1/2)), so p is never too small) over enough steps after warming up.
--          score = median excess / (1.4826 median absolute deviation): the robust z of Iglewicz & Hoaglin 1993, over steps.
-- set by   $warmup_steps, $min_steps, $min_excess_ratio, $min_slower_ratio, $max_p_value
WITH own AS (
    SELECT
        run, attempt, rank, step, ts,
        CAST(round(least(step_time_s, 1e6) * 1e9) AS BIGINT)
            - CAST(round(least(coalesce(collective_time_s, 0), 1e6) * 1e9) AS BIGINT) AS self_ns,
        CAST(round(least(coalesce(data_time_s, 0), 1e6) * 1e9) AS BIGINT) AS data_ns,
        CAST(collective_time_s IS NOT NULL AS INT) AS has_collective
    FROM steps
    WHERE date BETWEEN $date - 1 AND $date + 1
      AND ts >= $begin - INTERVAL '1' HOUR
      AND ts < $begin + INTERVAL '25' HOUR
),
placed AS (
    SELECT
        run, attempt, rank, step, self_ns, data_ns,
        row_number() OVER stepwise AS place,
        count(*) OVER whole AS ranks,
        sum(has_collective) OVER whole AS collectives,
        sum(data_ns) OVER whole AS all_data_ns,
        min(ts) OVER whole AS ts
    FROM own
    WINDOW
        whole AS (PARTITION BY run, attempt, step),
        stepwise AS (PARTITION BY run, attempt, step ORDER BY self_ns, rank)
),
warm AS (
    SELECT *, dense_rank() OVER (PARTITION BY run, attempt ORDER BY step) > $warmup_steps AS is_warm
    FROM placed
    WHERE ts >= $begin AND ts < $begin + INTERVAL '24' HOUR
),
middles AS (
    -- the values around the middle of each step, from which the median without any one rank follows
    SELECT
        *,
        max(CASE WHEN place = (ranks - 1) / 2 THEN self_ns END) OVER whole AS below,
        max(CASE WHEN place = (ranks + 1) / 2 THEN self_ns END) OVER whole AS middle,
        max(CASE WHEN place = (ranks + 1) / 2 + 1 THEN self_ns END) OVER whole AS above
    FROM warm
    WINDOW whole AS (PARTITION BY run, attempt, step)
),
paired AS (
    SELECT
        *,
        CASE
            WHEN ranks = 1 THEN NULL
            WHEN collectives NOT IN (0, ranks) THEN NULL
            WHEN ranks % 2 = 0 AND place <= ranks / 2 THEN above
            WHEN ranks % 2 = 0 THEN middle
            WHEN place < (ranks + 1) / 2 THEN (middle + above) / 2.0
            WHEN place = (ranks + 1) / 2 THEN (below + above) / 2.0
            ELSE (below + middle) / 2.0
        END AS peer_ns
    FROM middles
),
compared AS (
    SELECT
        run, attempt, rank, step, ranks, place, collectives,
        self_ns, peer_ns,
        CASE WHEN peer_ns > 0 AND is_warm THEN self_ns / peer_ns - 1 END AS excess,
        CASE WHEN peer_ns > 0 AND is_warm THEN self_ns - peer_ns END AS excess_ns,
        CASE WHEN peer_ns > 0 AND is_warm THEN data_ns - (all_data_ns - data_ns) / CAST(ranks - 1 AS DOUBLE) END
            AS data_excess_ns
    FROM paired
),
centred AS (
    SELECT *, median(excess) OVER (PARTITION BY run, attempt, rank) AS middle_excess FROM compared
),
summed AS (
    SELECT
        run, attempt, rank,
        max(ranks) AS ranks,
        count(*) AS steps,
        count(excess) AS steps_compared,
        median(CAST(self_ns AS DOUBLE)) / 1e9 AS self_time_median_s,
        median(peer_ns) / 1e9 AS peer_time_median_s,
        max(middle_excess) AS excess_ratio,
        median(excess_ns) / 1e9 AS excess_s,
        median(data_excess_ns) / 1e9 AS data_excess_s,
        1.4826 * median(abs(excess - middle_excess)) AS deviation,
        count(*) FILTER (WHERE excess > 0) AS steps_slower,
        count(*) FILTER (WHERE excess IS NOT NULL AND place = ranks) AS steps_slowest,
        bool_or(collectives NOT IN (0, ranks)) AS is_mixed,
        bool_or(collectives > 0) AS has_collectives
    FROM centred
    GROUP BY run, attempt, rank
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
    run, attempt, rank, $date AS date, ranks, steps, steps_compared,
    self_time_median_s, peer_time_median_s, excess_ratio, excess_s, data_excess_s,
    steps_slower, slower_step_ratio,
    steps_slowest, CAST(steps_slowest AS DOUBLE) / nullif(steps_compared, 0) AS slowest_step_ratio,
    p_value,
    excess_ratio / nullif(deviation, 0) AS score,
    CASE WHEN has_collectives THEN 'self time' ELSE 'step time' END AS basis,
    CASE
        WHEN objection IN ('no peer', 'only some ranks recorded collectives', 'too few steps') THEN NULL
        ELSE objection IS NULL
    END AS is_straggler,
    CASE
        WHEN objection IS NOT NULL THEN NULL
        WHEN data_excess_s > excess_s / 2 THEN 'input'
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
