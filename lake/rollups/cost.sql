-- grain    one row per UTC date, run, attempt and epoch; and one per date, pool and device for time that no run held
-- inputs   goodput_daily and gpu_hourly of the date; prices, the operator's own price table
-- formula  cost = device time x price of a device-hour, in decimals, rounded at the ninth. Device time of a run: wall time x
--          devices; productive, lost work and idle are parts of it as goodput_daily has them, the rest is other. The total is
--          the sum of the parts, to the last digit. Idle: downtime before a restart in the same scheduler job, whose devices
--          stay paid for; where the job is another one downtime is not the run's. Idle without a run: time for which devices
--          were sampled and no run held them.
-- price    the row of the price table that holds on the date and names the device and the pool, else the device alone, else the
--          pool alone, else neither
WITH paid AS (
    SELECT
        run, attempt, epoch, goodput_daily.cluster, pool, team, device_name, tokens,
        CAST(device_count AS DECIMAL(10, 0)) * CAST(wall_ns - unallocated_ns AS DECIMAL(19, 0)) AS device_ns,
        CAST(device_count AS DECIMAL(10, 0)) * CAST(productive_ns AS DECIMAL(19, 0)) AS productive_ns,
        CAST(device_count AS DECIMAL(10, 0)) * CAST(lost_work_ns AS DECIMAL(19, 0)) AS lost_work_ns,
        CAST(device_count AS DECIMAL(10, 0)) * CAST(downtime_ns - unallocated_ns AS DECIMAL(19, 0)) AS idle_ns
    FROM goodput_daily
    WHERE date = $date
    UNION ALL
    SELECT
        NULL, NULL, NULL, gpu_hourly.cluster, pool, NULL, device_name, NULL,
        sum(CAST(round(observed_s * 1e9) AS DECIMAL(29, 0))),
        CAST(0 AS DECIMAL(29, 0)), CAST(0 AS DECIMAL(29, 0)),
        sum(CAST(round(observed_s * 1e9) AS DECIMAL(29, 0)))
    FROM gpu_hourly
    WHERE date = $date AND holder_run IS NULL
    GROUP BY gpu_hourly.cluster, pool, device_name
),
numbered AS (
    SELECT
        *, row_number() OVER (ORDER BY run, attempt, epoch, paid.cluster, pool, device_name) AS number,
        lower(trim(regexp_replace(device_name, '[-_ ]+', ' ', 'g'))) AS device_key
    FROM paid
),
candidates AS (
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
        CAST(
            (device_ns - productive_ns - lost_work_ns - idle_ns) * price / CAST('3600000000000' AS DECIMAL(13, 0))
            AS DECIMAL(38, 9)
        ) AS cost_other
    FROM numbered
    LEFT JOIN candidates ON candidates.number = numbered.number AND choice = 1
)
SELECT
    charged.cluster, pool, team, run, attempt, epoch, device_name,
    CAST(CAST(device_ns AS DECIMAL(38, 9)) / CAST('1000000000' AS DECIMAL(10, 0)) AS DECIMAL(38, 9)) AS device_s,
    CAST(price AS DECIMAL(38, 9)) AS device_price, currency, source AS price_source,
    CAST(cost_productive + cost_lost_work + cost_idle + cost_other AS DECIMAL(38, 9)) AS cost_total,
    cost_productive, cost_lost_work, cost_idle, cost_other,
    tokens, $date AS date,
    CASE
        WHEN cost_other IS NOT NULL THEN NULL
        WHEN device_ns IS NULL THEN 'the devices of the attempt are not recorded'
        WHEN (SELECT count(*) FROM prices) = 0 THEN 'no price table is given'
        ELSE concat(
            'the price table has no price of ', coalesce(device_name, 'a device without a name'), ' in ',
            coalesce(concat('pool ', pool), 'no pool'), ' on ', CAST($date AS STRING)
        )
    END AS reason
FROM charged
