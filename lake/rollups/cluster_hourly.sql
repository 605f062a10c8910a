-- grain    one row per hour (UTC) and scope: cluster, pool, team, user or job, each by name
-- dates    several consecutive dates, from $date to $last; hours are counted from $begin, the start of the first date.
--          Each date has the same rows as if it is computed alone
-- inputs   pools of the date and the day before (a snapshot is valid for the time after it); job_facts whose time
--          includes the date; gpu_hourly of the date; attempt_facts of attempts that began up to the date, for team,
--          user and job of a device's run; facility
-- formula  Sums of devices x time, cut at the hours; ratios are sums over sums. A sum is NULL if a part of it is
--          unknown. Data from snapshots of pools take precedence over data from jobs, and these over samples of
--          devices. A snapshot is valid until the next one, at most for its own interval, or for $max_snapshot_s if it
--          has none. Sums are of integers (microseconds and thousandths of devices), so the order of rows does not
--          change any digit.
-- into snapshots: of pools, cut at the hours
WITH once AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY "cluster", pool, gpu_type, ts ORDER BY gpu_total DESC NULLS LAST, incarnation, segment, slot
        ) AS place
    FROM pools
    WHERE date BETWEEN $date - 1 AND $last + 1
),
following AS (
    SELECT
        *,
        CAST(ts AS BIGINT) - CAST($begin AS BIGINT) AS from_us,
        lead(CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) OVER (PARTITION BY "cluster", pool, gpu_type ORDER BY ts) AS next_us
    FROM once
    WHERE place = 1
),
standing AS (
    SELECT
        *,
        greatest(from_us, 0) AS begin_us,
        least(
            -- a snapshot is valid for its own date and the next one
            (CAST(CAST(date AS INT) - CAST($date AS INT) AS BIGINT) + 2) * 86400000000,
            CASE
                WHEN interval_ns >= 0 THEN least(from_us + interval_ns / 1000, coalesce(next_us, from_us + interval_ns / 1000))
                WHEN next_us - from_us <= $max_snapshot_s * 1000000 THEN next_us
                ELSE from_us
            END,
            $days * 86400000000
        ) AS end_us
    FROM following
),
cut AS (
    SELECT *, unnest(range(begin_us / 3600000000, (end_us - 1) / 3600000000 + 1)) AS hour_number
    FROM standing
    WHERE end_us > begin_us
)
SELECT
    hour_number, coalesce("cluster", '') AS "cluster", pool, ts,
    least(end_us, (hour_number + 1) * 3600000000) - greatest(begin_us, hour_number * 3600000000) AS us,
    TRY_CAST(round(gpu_total * 1e3) AS BIGINT) AS total,
    TRY_CAST(round(gpu_allocated * 1e3) AS BIGINT) AS allocated,
    TRY_CAST(round(CASE
        WHEN gpu_allocated + gpu_idle IS NOT NULL THEN gpu_allocated + gpu_idle
        ELSE gpu_total - gpu_unavailable
    END * 1e3) AS BIGINT) AS scheduled,
    TRY_CAST(round(coalesce(gpu_idle, gpu_total - gpu_unavailable - gpu_allocated) * 1e3) AS BIGINT) AS free,
    TRY_CAST(round(gpu_largest_free_block * 1e3) AS BIGINT) AS block,
    job_pending
FROM cut;

-- into pool_sums: snapshots by pool and by cluster, in millionths of thousandths; NULL if one of them does not tell
WITH scoped AS (
    SELECT
        *,
        unnest(make_array('cluster', 'pool')) AS scope,
        unnest(make_array(CASE "cluster" WHEN '' THEN 'unnamed' ELSE "cluster" END, pool)) AS scope_name
    FROM snapshots
),
apart AS (
    SELECT hour_number, "cluster", scope, scope_name, ts, pool, exact_sum(job_pending) AS pending
    FROM scoped
    GROUP BY hour_number, "cluster", scope, scope_name, ts, pool
),
together AS (
    -- waiting jobs at a time, over the pools with a snapshot of this time
    SELECT hour_number, "cluster", scope, scope_name, ts, exact_sum(pending) AS pending, count(*) AS pools
    FROM apart
    GROUP BY hour_number, "cluster", scope, scope_name, ts
),
deepest AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        CASE WHEN min(pools) = max(pools) AND count(pending) = count(*) THEN max(pending) END AS depth
    FROM together
    GROUP BY hour_number, "cluster", scope, scope_name
),
summed AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        CASE WHEN count(total) = count(*) THEN exact_sum(total * us) END AS total,
        CASE WHEN count(allocated) = count(*) AND count(total) = count(*) AND NOT bool_or(allocated > total)
             THEN exact_sum(allocated * us) END AS allocated,
        bool_or(allocated > total) AS is_over,
        count(allocated) AS allocated_told,
        CASE WHEN count(scheduled) = count(*) AND NOT bool_or(scheduled > total) THEN exact_sum(scheduled * us) END AS scheduled,
        CASE WHEN count(free) = count(*) AND min(free) >= 0 THEN exact_sum(free * us) END AS free,
        CASE WHEN count(block) = count(*) AND count(free) = count(*) AND NOT bool_or(block > free) THEN exact_sum(block * us) END AS block,
        CASE WHEN count(job_pending) = count(*) THEN exact_sum(job_pending * us) END AS pending
    FROM scoped
    GROUP BY hour_number, "cluster", scope, scope_name
)
SELECT summed.*, depth
FROM summed
INNER JOIN deepest USING (hour_number, "cluster", scope, scope_name);

-- into strange: days of clusters that look like an outage, or like a slip
WITH daily AS (
    SELECT
        "cluster", pool, hour_number / 24 AS day_number,
        sum(us) AS us,
        max(allocated) AS most_allocated,
        count(*) - count(allocated) AS silent,
        max(total) AS most_total
    FROM snapshots
    GROUP BY "cluster", pool, hour_number / 24
),
moments AS (
    SELECT
        "cluster", ts, hour_number / 24 AS day_number, hour_number,
        count(DISTINCT pool) AS pools, max(total) AS most, sum(total) AS total
    FROM snapshots
    GROUP BY "cluster", ts, hour_number
),
alone AS (
    SELECT "cluster", day_number, bool_or(pools > 1 AND most > 0 AND most = total) AS is_in_one_pool
    FROM moments
    GROUP BY "cluster", day_number
)
SELECT
    daily.cluster, daily.day_number,
    -- twenty hours are enough to describe a day
    min(us) >= 72000000000 AND max(most_total) > 0 AND coalesce(max(most_allocated) = 0, FALSE) AND sum(silent) = 0 AS is_idle,
    bool_or(is_in_one_pool) AS is_in_one_pool
FROM daily
INNER JOIN alone ON alone.cluster = daily.cluster AND alone.day_number = daily.day_number
GROUP BY daily.cluster, daily.day_number;

-- into known_jobs: those whose time goes over the dates, and over which
SELECT
    coalesce("cluster", '') AS "cluster", pool, team,
    CASE
        WHEN inner_key IS NULL OR "user" IS NULL THEN "user"
        ELSE concat('u-', left(encode(sha256(concat(outer_key, encode(sha256(concat(inner_key, "user")), 'hex'))), 'hex'), 16))
    END AS "user",
    job_id, begin_ts, outcome, gpu_count, gpu_s, node_count, gpu_type,
    CAST(submit_ts AS BIGINT) - CAST($begin AS BIGINT) AS submit_us,
    CAST(start_ts AS BIGINT) - CAST($begin AS BIGINT) AS start_us,
    CAST(end_ts AS BIGINT) - CAST($begin AS BIGINT) AS end_us,
    CAST(wait_until_ts AS BIGINT) - CAST($begin AS BIGINT) AS wait_until_us,
    CAST(held_until_ts AS BIGINT) - CAST($begin AS BIGINT) AS held_until_us,
    queue_time_s,
    greatest(CAST(begin_ts AS BIGINT) - CAST($begin AS BIGINT), 0) / 86400000000 AS first_day,
    least((CAST(until_ts AS BIGINT) - CAST($begin AS BIGINT)) / 86400000000, $days - 1) AS last_day
FROM pseudonyms
CROSS JOIN job_facts
WHERE CAST(begin_ts AS BIGINT) - CAST($begin AS BIGINT) < $days * 86400000000 AND until_ts >= $begin;

-- into job_hours: what each job did in each hour, for each scope that it belongs to
WITH phases AS (
    SELECT *, TRUE AS is_waiting, submit_us AS from_us, wait_until_us AS until_us FROM known_jobs WHERE wait_until_us > submit_us
    UNION ALL
    SELECT *, FALSE AS is_waiting, start_us AS from_us, held_until_us AS until_us FROM known_jobs WHERE held_until_us > start_us
    UNION ALL
    -- the time of its devices is unknown: use the hours between its known times, or the hour of its start
    SELECT
        *, NULL AS is_waiting, least(start_us, coalesce(end_us, start_us)) AS from_us,
        greatest(start_us, coalesce(end_us, start_us)) + 1 AS until_us
    FROM known_jobs
    WHERE start_us IS NOT NULL AND held_until_us IS NULL AND coalesce(gpu_count, 1) > 0
),
cut AS (
    SELECT
        *,
        unnest(range(greatest(from_us, 0) / 3600000000, (least(until_us, $days * 86400000000) - 1) / 3600000000 + 1))
            AS hour_number
    FROM phases
    WHERE until_us > 0 AND from_us < $days * 86400000000
),
counting AS (
    SELECT DISTINCT "cluster" AS counting_cluster, unnest(range(first_day, last_day + 1)) AS counting_day
    FROM known_jobs
    WHERE gpu_count > 0
),
pieces AS (
    SELECT
        hour_number, "cluster", pool, team, "user", job_id, is_waiting,
        -- a scheduler that counts a resource leaves it out for jobs that have none of it
        coalesce(gpu_count, CASE WHEN node_count IS NOT NULL AND gpu_type IS NULL AND counting_day IS NOT NULL THEN 0 END) AS gpu_count,
        greatest(from_us, hour_number * 3600000000) AS from_us,
        least(until_us, (hour_number + 1) * 3600000000) AS until_us
    FROM cut
    LEFT JOIN counting ON counting_cluster = "cluster" AND counting_day = hour_number / 24
    WHERE hour_number / 24 BETWEEN first_day AND last_day
)
SELECT
    hour_number, "cluster", is_waiting, gpu_count, from_us, until_us,
    unnest(make_array('cluster', 'pool', 'team', 'user', 'job')) AS scope,
    unnest(make_array(CASE "cluster" WHEN '' THEN 'unnamed' ELSE "cluster" END, pool, team, "user", job_id)) AS scope_name
FROM pieces;

-- into job_sums: waiting and held, by hour and scope
WITH changes AS (
    SELECT hour_number, "cluster", scope, scope_name, from_us AS at_us, 1 AS change FROM job_hours WHERE is_waiting
    UNION ALL
    SELECT hour_number, "cluster", scope, scope_name, until_us, -1 FROM job_hours WHERE is_waiting
),
moments AS (
    SELECT hour_number, "cluster", scope, scope_name, at_us, sum(change) AS change
    FROM changes
    GROUP BY hour_number, "cluster", scope, scope_name, at_us
),
depths AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        sum(change) OVER (
            PARTITION BY hour_number, "cluster", scope, scope_name ORDER BY at_us
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS depth
    FROM moments
),
deepest AS (
    SELECT hour_number, "cluster", scope, scope_name, max(depth) AS depth
    FROM depths
    GROUP BY hour_number, "cluster", scope, scope_name
),
summed AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        coalesce(sum(CASE WHEN is_waiting THEN until_us - from_us END), 0) AS waiting_us,
        coalesce(sum(CASE WHEN NOT is_waiting THEN gpu_count * (until_us - from_us) END), 0) AS held_us,
        sum(CASE WHEN is_waiting IS NULL OR (NOT is_waiting AND gpu_count IS NULL) THEN 1 ELSE 0 END) AS jobs_unknown
    FROM job_hours
    GROUP BY hour_number, "cluster", scope, scope_name
)
SELECT summed.*, coalesce(depth, 0) AS depth
FROM summed
LEFT JOIN deepest USING (hour_number, "cluster", scope, scope_name);

-- into job_moments: starts and ends in their hours
WITH happened AS (
    SELECT *, start_us / 3600000000 AS hour_number, TRUE AS is_start FROM known_jobs
    WHERE start_us >= 0 AND start_us / 86400000000 BETWEEN first_day AND last_day
    UNION ALL
    SELECT *, end_us / 3600000000 AS hour_number, FALSE AS is_start FROM known_jobs
    WHERE end_us >= 0 AND end_us / 86400000000 BETWEEN first_day AND last_day AND outcome IS NOT NULL
),
scoped AS (
    SELECT
        hour_number, "cluster", is_start, outcome,
        CASE WHEN is_start THEN queue_time_s END AS queue_s,
        TRY_CAST(round(gpu_s * 1e6) AS BIGINT) AS gpu_us,
        unnest(make_array('cluster', 'pool', 'team', 'user', 'job')) AS scope,
        unnest(make_array(CASE "cluster" WHEN '' THEN 'unnamed' ELSE "cluster" END, pool, team, "user", job_id)) AS scope_name
    FROM happened
),
ended AS (
    SELECT *, CASE WHEN NOT is_start THEN outcome END AS ended FROM scoped
)
SELECT
    hour_number, "cluster", scope, scope_name,
    sum(TRY_CAST(round(queue_s * 1e6) AS BIGINT)) AS queue_us,
    count(queue_s) AS queued,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY queue_s) AS queue_p50_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY queue_s) AS queue_p90_s,
    sum(CASE WHEN ended = 'completed' THEN 1 ELSE 0 END) AS completed,
    sum(CASE WHEN ended = 'cancelled' THEN 1 ELSE 0 END) AS cancelled,
    sum(CASE WHEN ended = 'failed' THEN 1 ELSE 0 END) AS failed,
    coalesce(sum(CASE WHEN ended = 'completed' THEN gpu_us END), 0) AS completed_us,
    coalesce(sum(CASE WHEN ended = 'cancelled' THEN gpu_us END), 0) AS cancelled_us,
    coalesce(sum(CASE WHEN ended = 'failed' THEN gpu_us END), 0) AS failed_us,
    bool_or(ended = 'completed' AND gpu_us IS NULL) AS completed_unknown,
    bool_or(ended = 'cancelled' AND gpu_us IS NULL) AS cancelled_unknown,
    bool_or(ended = 'failed' AND gpu_us IS NULL) AS failed_unknown
FROM ended
GROUP BY hour_number, "cluster", scope, scope_name;

-- into placed: hours of devices and of MIG instances, and who held them
WITH started AS (
    SELECT
        run, attempt, date, "cluster", team, scheduler_job_id AS job_id,
        CASE
            WHEN inner_key IS NULL OR "user" IS NULL THEN "user"
            ELSE concat('u-', left(encode(sha256(concat(outer_key, encode(sha256(concat(inner_key, "user")), 'hex'))), 'hex'), 16))
        END AS "user"
    FROM pseudonyms
    CROSS JOIN attempt_facts
    WHERE date <= $last
),
latest AS (
    -- a run may not know its cluster; then its job is the one with its id, if there is only one
    SELECT
        job_id, day_number,
        CASE WHEN count(DISTINCT "cluster") = 1 THEN min("cluster") END AS "cluster",
        last_value(pool ORDER BY begin_ts) AS pool,
        last_value(team ORDER BY begin_ts) AS team,
        last_value("user" ORDER BY begin_ts) AS "user"
    FROM (SELECT *, unnest(range(first_day, last_day + 1)) AS day_number FROM known_jobs)
    GROUP BY job_id, day_number
),
told AS (
    SELECT
        (CAST(hour AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 AS hour_number, host, device_uuid,
        mig_gpu_instance IS NOT NULL AS is_instance,
        coalesce(gpu_hourly.cluster, nullif(latest.cluster, '')) AS "cluster",
        coalesce(gpu_hourly.pool, latest.pool) AS pool,
        coalesce(started.team, latest.team) AS team,
        coalesce(started."user", latest."user") AS "user",
        started.job_id,
        TRY_CAST(round(observed_s * 1e6) AS BIGINT) AS us,
        TRY_CAST(round(busy_s * 1e6) AS BIGINT) AS busy_us,
        TRY_CAST(round(CASE WHEN busy_s IS NOT NULL THEN busy_observed_s END * 1e6) AS BIGINT) AS busy_known_us,
        TRY_CAST(round(sm_active_s * 1e6) AS BIGINT) AS sm_us,
        TRY_CAST(round(sm_active_observed_s * 1e6) AS BIGINT) AS sm_known_us,
        TRY_CAST(round(allocated_s * 1e6) AS BIGINT) AS held_us,
        TRY_CAST(round(idle_allocated_s * 1e6) AS BIGINT) AS idle_us,
        TRY_CAST(round(allocated_observed_s * 1e6) AS BIGINT) AS held_known_us,
        TRY_CAST(round(energy_joules * 1e3) AS BIGINT) AS millijoules,
        TRY_CAST(round(CASE WHEN energy_joules IS NOT NULL THEN energy_observed_s END * 1e6) AS BIGINT) AS energy_us
    FROM gpu_hourly
    LEFT JOIN started
        ON started.run = gpu_hourly.holder_run AND started.attempt = gpu_hourly.holder_attempt
        AND started.date <= gpu_hourly.date
    LEFT JOIN latest
        ON latest.job_id = started.job_id
        AND latest.day_number = CAST(CAST(gpu_hourly.date AS INT) - CAST($date AS INT) AS BIGINT)
    WHERE gpu_hourly.date BETWEEN $date AND $last
),
homes AS (
    -- a host belongs to one cluster, also while its devices are not allocated
    SELECT host AS home, hour_number / 24 AS home_day, min("cluster") AS home_cluster
    FROM told
    GROUP BY host, hour_number / 24
    HAVING count(DISTINCT "cluster") = 1
),
at_home AS (
    SELECT told.* EXCLUDE ("cluster"), coalesce("cluster", home_cluster, '') AS "cluster"
    FROM told
    LEFT JOIN homes ON home = host AND home_day = hour_number / 24
)
SELECT
    *,
    unnest(make_array('cluster', 'pool', 'team', 'user', 'job')) AS scope,
    unnest(make_array(CASE "cluster" WHEN '' THEN 'unnamed' ELSE "cluster" END, pool, team, "user", job_id)) AS scope_name
FROM at_home;

-- into device_hours: whole devices, for each scope; a partitioned device's instances are in it
SELECT
    hour_number, "cluster", scope, scope_name, host, device_uuid,
    sum(us) AS us,
    sum(busy_us) AS busy_us,
    sum(busy_known_us) AS busy_known_us,
    sum(busy_us) / CAST(nullif(sum(busy_known_us), 0) AS DOUBLE) AS utilization,
    sum(sm_us) AS sm_us,
    sum(sm_known_us) AS sm_known_us,
    sum(held_us) AS held_us,
    sum(idle_us) AS idle_us,
    sum(held_known_us) AS held_known_us,
    sum(millijoules) AS millijoules,
    sum(energy_us) AS energy_us
FROM placed
WHERE scope_name IS NOT NULL AND NOT is_instance
GROUP BY hour_number, "cluster", scope, scope_name, host, device_uuid;

-- into instance_sums: MIG instances by scope; how large a part of a device one is no sample tells, so they do not add to devices
SELECT
    hour_number, "cluster", scope, scope_name,
    sum(us) AS instance_us,
    sum(held_us) AS instance_held_us,
    sum(sm_us) AS instance_sm_us,
    sum(sm_known_us) AS instance_sm_known_us
FROM placed
WHERE scope_name IS NOT NULL AND is_instance
GROUP BY hour_number, "cluster", scope, scope_name;

-- into device_sums: by scope, with how devices and nodes are spread
WITH nodes AS (
    SELECT
        hour_number, "cluster", scope, scope_name, host,
        coalesce(sum(held_us) >= $held_ratio * sum(us) AND sum(busy_us) < $low_ratio * sum(busy_known_us), FALSE) AS is_low
    FROM device_hours
    GROUP BY hour_number, "cluster", scope, scope_name, host
),
counted AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        count(host) AS nodes,
        sum(CASE WHEN is_low AND host IS NOT NULL THEN 1 ELSE 0 END) AS nodes_low
    FROM nodes
    GROUP BY hour_number, "cluster", scope, scope_name
),
stepped AS (
    SELECT *, least(CAST(floor(utilization * 20) AS INT), 19) AS step FROM device_hours
),
summed AS (
    SELECT
        hour_number, "cluster", scope, scope_name,
        sum(busy_us) AS busy_us, sum(busy_known_us) AS busy_known_us,
        sum(sm_us) AS sm_us, sum(sm_known_us) AS sm_known_us,
        sum(held_us) AS sampled_us, sum(idle_us) AS idle_us, sum(held_known_us) AS held_known_us,
        sum(millijoules) AS millijoules, sum(energy_us) AS energy_us,
        percentile_cont(0.1) WITHIN GROUP (ORDER BY utilization) AS p10,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY utilization) AS p50,
        percentile_cont(0.9) WITHIN GROUP (ORDER BY utilization) AS p90,
        CASE WHEN count(step) > 0 THEN make_array(
            count(*) FILTER (WHERE step = 0), count(*) FILTER (WHERE step = 1), count(*) FILTER (WHERE step = 2),
            count(*) FILTER (WHERE step = 3), count(*) FILTER (WHERE step = 4), count(*) FILTER (WHERE step = 5),
            count(*) FILTER (WHERE step = 6), count(*) FILTER (WHERE step = 7), count(*) FILTER (WHERE step = 8),
            count(*) FILTER (WHERE step = 9), count(*) FILTER (WHERE step = 10), count(*) FILTER (WHERE step = 11),
            count(*) FILTER (WHERE step = 12), count(*) FILTER (WHERE step = 13), count(*) FILTER (WHERE step = 14),
            count(*) FILTER (WHERE step = 15), count(*) FILTER (WHERE step = 16), count(*) FILTER (WHERE step = 17),
            count(*) FILTER (WHERE step = 18), count(*) FILTER (WHERE step = 19)
        ) END AS steps
    FROM stepped
    GROUP BY hour_number, "cluster", scope, scope_name
)
SELECT summed.*, nodes, nodes_low
FROM summed
INNER JOIN counted USING (hour_number, "cluster", scope, scope_name);

-- the hours
WITH places AS (
    SELECT hour_number, "cluster", scope, scope_name FROM pool_sums
    UNION
    SELECT hour_number, "cluster", scope, scope_name FROM job_sums WHERE scope_name IS NOT NULL
    UNION
    SELECT hour_number, "cluster", scope, scope_name FROM job_moments WHERE scope_name IS NOT NULL
    UNION
    SELECT hour_number, "cluster", scope, scope_name FROM device_sums
    UNION
    SELECT hour_number, "cluster", scope, scope_name FROM instance_sums
),
scheduled_clusters AS (
    SELECT DISTINCT "cluster", unnest(range(first_day, last_day + 1)) AS day_number, TRUE AS has_jobs FROM known_jobs
),
joined AS (
    SELECT
        places.*,
        total, allocated, coalesce(is_over, FALSE) AS is_over, coalesce(allocated_told, 0) AS allocated_told,
        scheduled, free, block, pending, pool_sums.depth AS pool_depth,
        waiting_us, held_us, coalesce(jobs_unknown, 0) AS jobs_unknown, job_sums.depth AS job_depth,
        queue_us, queued, queue_p50_s, queue_p90_s, completed, cancelled, failed,
        completed_us, cancelled_us, failed_us,
        coalesce(completed_unknown, FALSE) AS completed_unknown, coalesce(cancelled_unknown, FALSE) AS cancelled_unknown,
        coalesce(failed_unknown, FALSE) AS failed_unknown,
        busy_us, busy_known_us, sm_us, sm_known_us, sampled_us, idle_us, held_known_us, millijoules, energy_us,
        p10, p50, p90, steps, nodes, nodes_low,
        instance_us, instance_held_us, instance_sm_us, instance_sm_known_us,
        coalesce(has_jobs, FALSE) AS has_jobs, is_idle, is_in_one_pool
    FROM places
    LEFT JOIN pool_sums
        ON pool_sums.hour_number = places.hour_number AND pool_sums."cluster" = places."cluster"
        AND pool_sums.scope = places.scope AND pool_sums.scope_name = places.scope_name
    LEFT JOIN job_sums
        ON job_sums.hour_number = places.hour_number AND job_sums."cluster" = places."cluster"
        AND job_sums.scope = places.scope AND job_sums.scope_name = places.scope_name
    LEFT JOIN job_moments
        ON job_moments.hour_number = places.hour_number AND job_moments."cluster" = places."cluster"
        AND job_moments.scope = places.scope AND job_moments.scope_name = places.scope_name
    LEFT JOIN device_sums
        ON device_sums.hour_number = places.hour_number AND device_sums."cluster" = places."cluster"
        AND device_sums.scope = places.scope AND device_sums.scope_name = places.scope_name
    LEFT JOIN instance_sums
        ON instance_sums.hour_number = places.hour_number AND instance_sums."cluster" = places."cluster"
        AND instance_sums.scope = places.scope AND instance_sums.scope_name = places.scope_name
    LEFT JOIN scheduled_clusters
        ON scheduled_clusters."cluster" = places."cluster" AND scheduled_clusters.day_number = places.hour_number / 24
    LEFT JOIN strange ON strange."cluster" = places."cluster" AND strange.day_number = places.hour_number / 24
),
sourced AS (
    SELECT
        *,
        CASE WHEN allocated_told > 0 THEN 'pools' WHEN has_jobs THEN 'jobs' WHEN sampled_us IS NOT NULL THEN 'samples' END
            AS source
    FROM joined
),
delivered AS (
    SELECT
        *,
        CASE source
            WHEN 'pools' THEN allocated / 1e9
            WHEN 'jobs' THEN CASE WHEN jobs_unknown = 0 THEN coalesce(held_us, 0) / 1e6 END
            WHEN 'samples' THEN sampled_us / 1e6
        END AS delivered_s
    FROM sourced
)
SELECT
    to_timestamp_micros(CAST($begin AS BIGINT) + hour_number * 3600000000) AT TIME ZONE 'UTC' AS hour,
    scope, nullif("cluster", '') AS "cluster", scope_name,
    CASE WHEN scope = 'pool' THEN scope_name END AS pool,
    CASE WHEN scope = 'team' THEN scope_name END AS team,
    CASE WHEN scope = 'user' THEN scope_name END AS "user",
    CASE WHEN scope = 'job' THEN scope_name END AS job_id,
    total / 1e9 AS gpu_total_s,
    scheduled / 1e9 AS gpu_scheduled_s,
    delivered_s AS gpu_delivered_s,
    CASE WHEN delivered_s IS NOT NULL THEN source END AS gpu_delivered_source,
    busy_us / 1e6 AS gpu_busy_s,
    busy_known_us / 1e6 AS gpu_busy_observed_s,
    sm_us / 1e6 AS gpu_sm_active_s,
    sm_known_us / 1e6 AS gpu_sm_active_observed_s,
    idle_us / 1e6 AS gpu_idle_allocated_s,
    held_known_us / 1e6 AS gpu_allocated_observed_s,
    CASE WHEN source = 'pools' THEN CAST(allocated AS DOUBLE) / nullif(total, 0) END AS gpu_allocation_ratio,
    CAST(busy_us AS DOUBLE) / nullif(busy_known_us, 0) AS gpu_utilization_ratio,
    p10 AS gpu_utilization_p10_ratio, p50 AS gpu_utilization_p50_ratio, p90 AS gpu_utilization_p90_ratio,
    steps AS gpu_utilization_counts,
    nodes AS node_count, nodes_low AS node_low_count,
    coalesce(pending, CASE WHEN has_jobs THEN coalesce(waiting_us, 0) END) / 1e6 AS queue_job_s,
    CASE WHEN pending IS NOT NULL THEN pool_depth WHEN has_jobs THEN coalesce(job_depth, 0) END AS queue_depth_max,
    CASE WHEN queued > 0 THEN queue_us / 1e6 END AS queue_time_sum_s,
    CASE WHEN has_jobs THEN coalesce(queued, 0) END AS queue_time_count,
    queue_p50_s AS queue_time_p50_s, queue_p90_s AS queue_time_p90_s,
    CASE WHEN has_jobs THEN coalesce(completed, 0) END AS job_completed_count,
    CASE WHEN has_jobs THEN coalesce(cancelled, 0) END AS job_cancelled_count,
    CASE WHEN has_jobs THEN coalesce(failed, 0) END AS job_failed_count,
    CASE WHEN has_jobs AND NOT completed_unknown THEN coalesce(completed_us, 0) / 1e6 END AS gpu_completed_s,
    CASE WHEN has_jobs AND NOT cancelled_unknown THEN coalesce(cancelled_us, 0) / 1e6 END AS gpu_cancelled_s,
    CASE WHEN has_jobs AND NOT failed_unknown THEN coalesce(failed_us, 0) / 1e6 END AS gpu_failed_s,
    millijoules / 1e3 AS energy_joules,
    energy_us / 1e6 AS energy_observed_s,
    facility.power_usage_effectiveness,
    millijoules / 1e3 * facility.power_usage_effectiveness AS facility_energy_joules,
    CASE
        WHEN has_jobs AND energy_us / 1e6 >= $held_ratio * delivered_s
        THEN coalesce(completed, 0) / nullif(millijoules / 3.6e9, 0)
    END AS jobs_per_kwh,
    instance_us / 1e6 AS mig_instance_s,
    instance_held_us / 1e6 AS mig_allocated_s,
    instance_sm_us / 1e6 AS mig_sm_active_s,
    instance_sm_known_us / 1e6 AS mig_sm_active_observed_s,
    free / 1e9 AS gpu_free_s,
    block / 1e9 AS gpu_largest_free_block_s,
    1 - CAST(block AS DOUBLE) / nullif(free, 0) AS gpu_fragmentation_ratio,
    CASE WHEN scope IN ('cluster', 'pool') THEN is_idle END AS is_idle_day,
    CASE WHEN scope IN ('cluster', 'pool') THEN is_in_one_pool END AS is_capacity_in_one_pool,
    nullif(concat('{', concat_ws(', ',
        CASE
            WHEN scope NOT IN ('cluster', 'pool') OR total IS NOT NULL THEN NULL
            ELSE '"gpu_total_s": "no snapshot of pools tells it"'
        END,
        CASE
            WHEN delivered_s IS NOT NULL THEN NULL
            WHEN is_over THEN '"gpu_delivered_s": "more devices are allocated than there are"'
            WHEN source = 'pools' THEN '"gpu_delivered_s": "not all snapshots of pools tell it"'
            WHEN jobs_unknown > 0
            THEN concat('"gpu_delivered_s": "devices or times of jobs are not known, in ', jobs_unknown, ' cases"')
            ELSE '"gpu_delivered_s": "neither pools nor jobs nor samples tell it"'
        END,
        CASE WHEN coalesce(busy_known_us, 0) = 0 THEN '"gpu_utilization_ratio": "no sample of a device tells it"' END,
        CASE WHEN coalesce(sm_known_us, 0) = 0 THEN '"gpu_sm_active_s": "no sample of a device tells it"' END,
        CASE WHEN millijoules IS NULL THEN '"energy_joules": "no sample of a device tells it"' END,
        CASE WHEN NOT has_jobs THEN '"job_completed_count": "no jobs of a scheduler are known"' END,
        CASE
            WHEN NOT has_jobs OR millijoules IS NULL THEN NULL
            WHEN millijoules = 0 THEN '"jobs_per_kwh": "no energy was drawn"'
            WHEN delivered_s IS NULL THEN '"jobs_per_kwh": "the time delivered to jobs is not known"'
            WHEN energy_us / 1e6 < $held_ratio * delivered_s THEN '"jobs_per_kwh": "too few of the devices tell their energy"'
        END,
        CASE WHEN completed_unknown THEN '"gpu_completed_s": "devices or times of jobs are not known"' END,
        CASE WHEN cancelled_unknown THEN '"gpu_cancelled_s": "devices or times of jobs are not known"' END,
        CASE WHEN failed_unknown THEN '"gpu_failed_s": "devices or times of jobs are not known"' END
    ), '}'), '{}') AS unavailable,
    CAST(to_timestamp_micros(CAST($begin AS BIGINT) + hour_number * 3600000000) AS DATE) AS date
FROM facility  -- first: a cross join makes a batch of each row of its left side
CROSS JOIN delivered
