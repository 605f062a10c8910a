-- grain    one row per UTC date, run, attempt and epoch; one per date, pool and device for time without a run; one per
--          date, pool, team and device type for time that scheduler jobs used in addition
-- inputs   goodput_daily and gpu_hourly of the date; job_facts whose time includes the date; attempt_facts of attempts
--          that began up to the date, for their jobs; prices, the operator's price table
-- formula  cost = device time x price of a device-hour, in decimals, rounded to nine digits. Device time of a run is
--          wall time x devices. Its parts are productive, lost work and idle, as in goodput_daily, and other; the total
--          is the exact sum of the parts. Idle of a run: downtime before a restart in the same scheduler job, which
--          still pays for the devices. Downtime between different jobs is not charged to the run. Idle without a run:
--          time of sampled devices without a run. Quiet days that are one row of goodput_daily have no cost, since the
--          devices of that time are unknown. Jobs: GPUs x time allocated, minus the device time of runs that name the
--          job. The rest is idle if a run names the job, else unrecorded. There is no amount if devices of the cluster
--          were sampled without a run, or if a run names an unknown job: these could be the same devices, and nothing
--          must be charged twice.
-- price    the row of the price table that is valid on the date and has the device and the pool, else only the device,
--          else only the pool, else neither
-- into held: jobs with devices on the date, and for how long; NULL if that is not known
SELECT
    row_number() OVER (ORDER BY job_facts.cluster, job_id, begin_ts) AS number,
    job_facts.cluster, pool, team, gpu_type, job_id,
    CAST(gpu_count AS DECIMAL(10, 0)) * CAST(
        least(CAST(held_until_ts AS BIGINT), CAST($begin AS BIGINT) + 86400000000)
        - greatest(CAST(start_ts AS BIGINT), CAST($begin AS BIGINT))
        AS DECIMAL(19, 0)
    ) * CAST('1000' AS DECIMAL(4, 0)) AS held_ns
FROM job_facts
WHERE begin_ts < $begin + INTERVAL '24' HOUR AND until_ts >= $begin AND coalesce(gpu_count, 1) > 0
  AND least(start_ts, coalesce(held_until_ts, end_ts, start_ts)) < $begin + INTERVAL '24' HOUR
  AND CASE
      WHEN held_until_ts IS NULL THEN greatest(start_ts, coalesce(end_ts, start_ts)) >= $begin
      ELSE held_until_ts > greatest(start_ts, $begin)
  END;

-- into named: the job that each attempt names: NULL if it is not one of those, or not one alone
WITH told AS (
    SELECT run, attempt, scheduler_job_id AS job_id, attempt_facts.cluster FROM attempt_facts WHERE date <= $date
)
SELECT
    told.run, told.attempt, told.cluster,
    CASE WHEN count(held.number) = 1 THEN min(held.number) END AS number
FROM told
LEFT JOIN held ON held.job_id = told.job_id AND coalesce(held.cluster = told.cluster, TRUE)
WHERE told.job_id IS NOT NULL
GROUP BY told.run, told.attempt, told.cluster;

-- into ran: device time that is accounted for by run, attempt and epoch
SELECT
    run, attempt, epoch, accounts.cluster, pool, team, device_name, tokens,
    end_ts > ts + INTERVAL '24' HOUR AS is_quiet,
    CASE
        WHEN end_ts <= ts + INTERVAL '24' HOUR
        THEN CAST(device_count AS DECIMAL(10, 0)) * CAST(wall_ns - unallocated_ns AS DECIMAL(19, 0))
    END AS device_ns,
    CAST(device_count AS DECIMAL(10, 0)) * CAST(productive_ns AS DECIMAL(19, 0)) AS productive_ns,
    CAST(device_count AS DECIMAL(10, 0)) * CAST(lost_work_ns AS DECIMAL(19, 0)) AS lost_work_ns,
    CAST(device_count AS DECIMAL(10, 0)) * CAST(downtime_ns - unallocated_ns AS DECIMAL(19, 0)) AS idle_ns
FROM (
    SELECT
        run, attempt, epoch, goodput_daily.cluster, pool, team, device_name, device_count, exact_sum(tokens) AS tokens,
        min(ts) AS ts, max(end_ts) AS end_ts, sum(wall_ns) AS wall_ns, sum(productive_ns) AS productive_ns,
        sum(lost_work_ns) AS lost_work_ns, sum(downtime_ns) AS downtime_ns, sum(unallocated_ns) AS unallocated_ns
    FROM goodput_daily
    WHERE date = $date
    GROUP BY run, attempt, epoch, goodput_daily.cluster, pool, team, device_name, device_count
) AS accounts;

-- into sampled: devices that no run held
SELECT gpu_hourly.cluster, pool, device_name, sum(CAST(round(observed_s * 1e9) AS DECIMAL(29, 0))) AS device_ns
FROM gpu_hourly
WHERE date = $date AND holder_run IS NULL
GROUP BY gpu_hourly.cluster, pool, device_name;

-- into allocated: what jobs held beyond what runs account for
WITH recorded AS (
    SELECT
        number,
        CASE WHEN count(device_ns) = count(*) THEN sum(device_ns) END AS device_ns
    FROM named
    INNER JOIN ran ON ran.run = named.run AND ran.attempt = named.attempt
    WHERE number IS NOT NULL AND NOT is_quiet
    GROUP BY number
),
doubtful AS (
    -- device time that may belong to an unknown job
    SELECT sampled.cluster, TRUE AS is_doubtful FROM sampled
    UNION
    SELECT named.cluster, TRUE
    FROM named
    INNER JOIN ran ON ran.run = named.run AND ran.attempt = named.attempt
    WHERE number IS NULL
),
left_over AS (
    SELECT
        held.cluster, pool, team, gpu_type, mine.number IS NOT NULL AS is_named,
        CASE
            WHEN recorded.number IS NULL THEN held_ns
            WHEN recorded.device_ns > held_ns THEN CAST(0 AS DECIMAL(33, 0))
            ELSE held_ns - recorded.device_ns
        END AS ns
    FROM held
    LEFT JOIN recorded ON recorded.number = held.number
    LEFT JOIN (SELECT DISTINCT number FROM named) AS mine ON mine.number = held.number
),
summed AS (
    SELECT
        left_over.cluster, pool, team, gpu_type,
        CASE WHEN count(ns) = count(*) THEN sum(ns) END AS device_ns,
        CASE WHEN count(ns) = count(*) THEN sum(CASE WHEN is_named THEN ns ELSE 0 END) END AS idle_ns
    FROM left_over
    GROUP BY left_over.cluster, pool, team, gpu_type
)
SELECT
    summed.cluster, pool, team, gpu_type, device_ns, idle_ns,
    coalesce(bool_or(is_doubtful), FALSE) AS is_doubtful
FROM summed
LEFT JOIN doubtful ON coalesce(doubtful.cluster = summed.cluster, TRUE)
GROUP BY summed.cluster, pool, team, gpu_type, device_ns, idle_ns;

-- into numbered: whatever is paid for
WITH paid AS (
    SELECT
        'runs' AS told_by, run, attempt, epoch, ran.cluster, pool, team, device_name, tokens, is_quiet, FALSE AS is_doubtful,
        CAST(device_ns AS DECIMAL(29, 0)) AS device_ns,
        CAST(productive_ns AS DECIMAL(29, 0)) AS productive_ns,
        CAST(lost_work_ns AS DECIMAL(29, 0)) AS lost_work_ns,
        CAST(idle_ns AS DECIMAL(29, 0)) AS idle_ns,
        CAST(0 AS DECIMAL(29, 0)) AS unrecorded_ns
    FROM ran
    UNION ALL
    SELECT
        'samples', NULL, NULL, NULL, sampled.cluster, pool, NULL, device_name, NULL, FALSE, FALSE,
        CAST(device_ns AS DECIMAL(29, 0)), CAST(0 AS DECIMAL(29, 0)), CAST(0 AS DECIMAL(29, 0)),
        CAST(device_ns AS DECIMAL(29, 0)), CAST(0 AS DECIMAL(29, 0))
    FROM sampled
    UNION ALL
    SELECT
        'jobs', NULL, NULL, NULL, allocated.cluster, pool, team, gpu_type, NULL, FALSE, is_doubtful,
        CASE WHEN NOT is_doubtful THEN CAST(device_ns AS DECIMAL(29, 0)) END,
        CAST(0 AS DECIMAL(29, 0)), CAST(0 AS DECIMAL(29, 0)),
        CASE WHEN NOT is_doubtful THEN CAST(idle_ns AS DECIMAL(29, 0)) END,
        CASE WHEN NOT is_doubtful THEN CAST(device_ns - idle_ns AS DECIMAL(29, 0)) END
    FROM allocated
    WHERE device_ns IS NULL OR device_ns > 0
)
SELECT
    *, row_number() OVER (ORDER BY told_by, run, attempt, epoch, paid.cluster, pool, team, device_name) AS number,
    lower(trim(regexp_replace(device_name, '[-_ ]+', ' ', 'g'))) AS device_key
FROM paid;

-- the bill
WITH candidates AS (
    SELECT
        numbered.number, price, currency, source,
        row_number() OVER (
            PARTITION BY numbered.number
            ORDER BY prices.device_key IS NULL, prices.pool IS NULL, source
        ) AS choice
    FROM numbered
    CROSS JOIN prices
    WHERE (prices.device_key IS NULL OR prices.device_key = numbered.device_key)
      AND (prices.pool IS NULL OR prices.pool = numbered.pool)
      AND prices.valid_from <= $date
      AND (prices.valid_to IS NULL OR prices.valid_to > $date)
),
charged AS (
    SELECT
        numbered.*, price, currency, source,
        CAST(productive_ns * price / CAST('3600000000000' AS DECIMAL(13, 0)) AS DECIMAL(38, 9)) AS cost_productive,
        CAST(lost_work_ns * price / CAST('3600000000000' AS DECIMAL(13, 0)) AS DECIMAL(38, 9)) AS cost_lost_work,
        CAST(idle_ns * price / CAST('3600000000000' AS DECIMAL(13, 0)) AS DECIMAL(38, 9)) AS cost_idle,
        CAST(unrecorded_ns * price / CAST('3600000000000' AS DECIMAL(13, 0)) AS DECIMAL(38, 9)) AS cost_unrecorded,
        CAST(
            (device_ns - productive_ns - lost_work_ns - idle_ns - unrecorded_ns) * price / CAST('3600000000000' AS DECIMAL(13, 0))
            AS DECIMAL(38, 9)
        ) AS cost_other
    FROM numbered
    LEFT JOIN candidates ON candidates.number = numbered.number AND choice = 1
)
SELECT
    charged.cluster, pool, team, run, attempt, epoch, device_name,
    CAST(CAST(device_ns AS DECIMAL(38, 9)) / CAST('1000000000' AS DECIMAL(10, 0)) AS DECIMAL(38, 9)) AS device_s,
    CAST(price AS DECIMAL(38, 9)) AS device_price, currency, source AS price_source,
    CAST(cost_productive + cost_lost_work + cost_idle + cost_unrecorded + cost_other AS DECIMAL(38, 9)) AS cost_total,
    cost_productive, cost_lost_work, cost_idle, cost_unrecorded, cost_other,
    tokens, told_by, $date AS date,
    CASE
        WHEN cost_other IS NOT NULL THEN NULL
        WHEN is_quiet THEN 'nothing is known of the run for more than a month, nor who held its devices'
        WHEN is_doubtful THEN 'devices of the cluster were sampled without a run, or a run names an unknown job: these may be the same'
        WHEN device_ns IS NULL AND told_by = 'jobs' THEN 'devices or times of jobs are not known'
        WHEN device_ns IS NULL THEN 'the devices of the attempt are not recorded'
        WHEN (SELECT count(*) FROM prices) = 0 THEN 'no price table is given'
        ELSE concat(
            'the price table has no price of ', coalesce(device_name, 'a device without a name'), ' in ',
            coalesce(concat('pool ', pool), 'no pool'), ' on ', CAST($date AS STRING)
        )
    END AS reason
FROM charged
