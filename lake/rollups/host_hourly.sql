-- grain    one row per hour (UTC), host, and run if it is the only one there; samples without a host name are left out
-- inputs   host_samples of the date, and of the hour before it; earlier_hours: stored rows of hours before $since
-- formula  A sample represents the time since the previous one, at most $max_interval_s: sums of value x time over sums
--          of time. The increase of a counter is since the previous sample with this counter; after a boot, it is the
--          counter's value. An hour depends only on its own samples, and on the end of the hour before: the host's last
--          sample in that hour, and those in the $max_interval_s before it. So after a whole hour without samples, the
--          increase is unknown. A counter that decreases without a boot (removed interface, reloaded driver) has no
--          increase. Growth of memory: slope of the least squares line through (second, MiB), in integers. A link is
--          down or slow compared with its best state on the date until the end of the hour, and with most links of the
--          same name and model on other hosts until then. For the first hour, the hour before counts, too. A link that
--          was not up yet is not connected and not counted. `link_speeds` stores the best states for later hours. Sums
--          are of integers (microseconds, millionths and bytes), so the order of rows does not change any digit.
-- view read: the hosts' samples in whole numbers; what cannot be is not known. Hour -1 is the last of the day before
SELECT
    CASE WHEN ts < $begin THEN -1 ELSE (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 END AS hour_number,
    host, holder_run, holder_attempt, node_rank, boot_id, ts, incarnation, slot, cpu_count, links,
    CASE WHEN interval_ns BETWEEN 0 AND $max_interval_s * 1000000000 THEN interval_ns / 1000 END AS interval_us,
    CASE WHEN pressure_cpu_some_ratio BETWEEN 0 AND 1 THEN CAST(pressure_cpu_some_ratio * 1e6 + 0.5 AS BIGINT) END AS cpu_some,
    CASE WHEN pressure_memory_some_ratio BETWEEN 0 AND 1 THEN CAST(pressure_memory_some_ratio * 1e6 + 0.5 AS BIGINT) END AS memory_some,
    CASE WHEN pressure_memory_full_ratio BETWEEN 0 AND 1 THEN CAST(pressure_memory_full_ratio * 1e6 + 0.5 AS BIGINT) END AS memory_full,
    CASE WHEN pressure_io_some_ratio BETWEEN 0 AND 1 THEN CAST(pressure_io_some_ratio * 1e6 + 0.5 AS BIGINT) END AS io_some,
    CASE WHEN pressure_io_full_ratio BETWEEN 0 AND 1 THEN CAST(pressure_io_full_ratio * 1e6 + 0.5 AS BIGINT) END AS io_full,
    CASE WHEN cpu_utilization_ratio BETWEEN 0 AND 1 THEN CAST(cpu_utilization_ratio * 1e6 + 0.5 AS BIGINT) END AS busy,
    CASE WHEN cpu_iowait_ratio BETWEEN 0 AND 1 THEN CAST(cpu_iowait_ratio * 1e6 + 0.5 AS BIGINT) END AS iowait,
    CASE WHEN cpu_steal_ratio BETWEEN 0 AND 1 THEN CAST(cpu_steal_ratio * 1e6 + 0.5 AS BIGINT) END AS steal,
    CASE WHEN memory_total_bytes BETWEEN 0 AND 1e16 THEN memory_total_bytes END AS memory_total_bytes,
    CASE WHEN memory_used_bytes BETWEEN 0 AND 1e16 THEN memory_used_bytes END AS memory_used_bytes,
    CASE WHEN memory_available_bytes BETWEEN 0 AND 1e16 THEN memory_available_bytes END AS memory_available_bytes,
    CASE WHEN swap_used_bytes BETWEEN 0 AND 1e16 THEN swap_used_bytes END AS swap_used_bytes,
    CASE WHEN filesystem_total_bytes BETWEEN 0 AND 1e16 THEN filesystem_total_bytes END AS filesystem_total_bytes,
    CASE WHEN filesystem_used_bytes BETWEEN 0 AND 1e16 THEN filesystem_used_bytes END AS filesystem_used_bytes,
    CASE WHEN swap_in_bytes BETWEEN 0 AND 1e18 THEN swap_in_bytes END AS swap_in_bytes,
    CASE WHEN swap_out_bytes BETWEEN 0 AND 1e18 THEN swap_out_bytes END AS swap_out_bytes,
    CASE WHEN major_fault_count BETWEEN 0 AND 1e18 THEN major_fault_count END AS major_fault_count,
    CASE WHEN oom_kill_count BETWEEN 0 AND 1e18 THEN oom_kill_count END AS oom_kill_count,
    CASE WHEN disk_read_bytes BETWEEN 0 AND 1e18 THEN disk_read_bytes END AS disk_read_bytes,
    CASE WHEN disk_write_bytes BETWEEN 0 AND 1e18 THEN disk_write_bytes END AS disk_write_bytes,
    CASE WHEN disk_read_count BETWEEN 0 AND 1e18 THEN disk_read_count END AS disk_read_count,
    CASE WHEN disk_write_count BETWEEN 0 AND 1e18 THEN disk_write_count END AS disk_write_count,
    CASE WHEN network_receive_bytes BETWEEN 0 AND 1e18 THEN network_receive_bytes END AS network_receive_bytes,
    CASE WHEN network_transmit_bytes BETWEEN 0 AND 1e18 THEN network_transmit_bytes END AS network_transmit_bytes,
    CASE WHEN tcp_retransmit_count BETWEEN 0 AND 1e18 THEN tcp_retransmit_count END AS tcp_retransmit_count,
    CASE WHEN infiniband_receive_bytes BETWEEN 0 AND 1e18 THEN infiniband_receive_bytes END AS infiniband_receive_bytes,
    CASE WHEN infiniband_transmit_bytes BETWEEN 0 AND 1e18 THEN infiniband_transmit_bytes END AS infiniband_transmit_bytes,
    CASE WHEN infiniband_receive_error_count BETWEEN 0 AND 1e18 THEN infiniband_receive_error_count END AS infiniband_receive_error_count,
    CASE WHEN infiniband_transmit_discard_count BETWEEN 0 AND 1e18 THEN infiniband_transmit_discard_count END AS infiniband_transmit_discard_count,
    CASE WHEN infiniband_transmit_wait_count BETWEEN 0 AND 1e18 THEN infiniband_transmit_wait_count END AS infiniband_transmit_wait_count,
    CASE WHEN infiniband_symbol_error_count BETWEEN 0 AND 1e18 THEN infiniband_symbol_error_count END AS infiniband_symbol_error_count,
    CASE WHEN infiniband_link_recovery_count BETWEEN 0 AND 1e18 THEN infiniband_link_recovery_count END AS infiniband_link_recovery_count,
    CASE WHEN infiniband_link_downed_count BETWEEN 0 AND 1e18 THEN infiniband_link_downed_count END AS infiniband_link_downed_count,
    CASE WHEN infiniband_out_of_sequence_count BETWEEN 0 AND 1e18 THEN infiniband_out_of_sequence_count END AS infiniband_out_of_sequence_count,
    CASE WHEN infiniband_congestion_notification_count BETWEEN 0 AND 1e18 THEN infiniband_congestion_notification_count END AS infiniband_congestion_notification_count,
    CASE WHEN network_receive_packet_count BETWEEN 0 AND 1e18 AND network_transmit_packet_count BETWEEN 0 AND 1e18 THEN network_receive_packet_count + network_transmit_packet_count END AS network_packet_count,
    CASE WHEN network_receive_error_count BETWEEN 0 AND 1e18 AND network_transmit_error_count BETWEEN 0 AND 1e18 THEN network_receive_error_count + network_transmit_error_count END AS network_error_count,
    CASE WHEN network_receive_dropped_count BETWEEN 0 AND 1e18 AND network_transmit_dropped_count BETWEEN 0 AND 1e18 THEN network_receive_dropped_count + network_transmit_dropped_count END AS network_dropped_count,
    CASE WHEN disk_read_time_s BETWEEN 0 AND 1e12 THEN CAST(round(disk_read_time_s * 1e6) AS BIGINT) END AS disk_read_time_us,
    CASE WHEN disk_write_time_s BETWEEN 0 AND 1e12 THEN CAST(round(disk_write_time_s * 1e6) AS BIGINT) END AS disk_write_time_us,
    CASE WHEN disk_busy_time_s BETWEEN 0 AND 1e12 THEN CAST(round(disk_busy_time_s * 1e6) AS BIGINT) END AS disk_busy_us
FROM host_samples
WHERE subject = 'host' AND host IS NOT NULL AND date <= $date AND CAST(ts AS BIGINT) >= CAST($since AS BIGINT) - 3600000000;

-- into ends: from when on samples of an hour belong to its end
SELECT hour_number AS end_hour, host AS end_host, CAST(max(ts) AS BIGINT) - $max_interval_s * 1000000 AS end_us
FROM read
GROUP BY hour_number, host;

-- view following: each sample of an hour, and of the end of the hour before, with the one before it, whoever took that,
-- and each counter with its value before
WITH placed AS (
    SELECT
        read.*,
        unnest(
            CASE WHEN CAST(ts AS BIGINT) >= end_us THEN make_array(hour_number, hour_number + 1) ELSE make_array(hour_number) END
        ) AS of_hour
    FROM read
    INNER JOIN ends ON hour_number = end_hour AND host = end_host
)
SELECT
    *,
    CAST(ts AS BIGINT) - CAST(lag(ts) OVER following AS BIGINT) AS since_us,
    boot_id <> lag(boot_id) OVER following AS is_first_of_boot,
    lag(swap_in_bytes) IGNORE NULLS OVER following AS before_swap_in_bytes,
    lag(swap_out_bytes) IGNORE NULLS OVER following AS before_swap_out_bytes,
    lag(major_fault_count) IGNORE NULLS OVER following AS before_major_fault_count,
    lag(oom_kill_count) IGNORE NULLS OVER following AS before_oom_kill_count,
    lag(disk_read_bytes) IGNORE NULLS OVER following AS before_disk_read_bytes,
    lag(disk_write_bytes) IGNORE NULLS OVER following AS before_disk_write_bytes,
    lag(disk_read_count) IGNORE NULLS OVER following AS before_disk_read_count,
    lag(disk_write_count) IGNORE NULLS OVER following AS before_disk_write_count,
    lag(network_receive_bytes) IGNORE NULLS OVER following AS before_network_receive_bytes,
    lag(network_transmit_bytes) IGNORE NULLS OVER following AS before_network_transmit_bytes,
    lag(tcp_retransmit_count) IGNORE NULLS OVER following AS before_tcp_retransmit_count,
    lag(infiniband_receive_bytes) IGNORE NULLS OVER following AS before_infiniband_receive_bytes,
    lag(infiniband_transmit_bytes) IGNORE NULLS OVER following AS before_infiniband_transmit_bytes,
    lag(infiniband_receive_error_count) IGNORE NULLS OVER following AS before_infiniband_receive_error_count,
    lag(infiniband_transmit_discard_count) IGNORE NULLS OVER following AS before_infiniband_transmit_discard_count,
    lag(infiniband_transmit_wait_count) IGNORE NULLS OVER following AS before_infiniband_transmit_wait_count,
    lag(infiniband_symbol_error_count) IGNORE NULLS OVER following AS before_infiniband_symbol_error_count,
    lag(infiniband_link_recovery_count) IGNORE NULLS OVER following AS before_infiniband_link_recovery_count,
    lag(infiniband_link_downed_count) IGNORE NULLS OVER following AS before_infiniband_link_downed_count,
    lag(infiniband_out_of_sequence_count) IGNORE NULLS OVER following AS before_infiniband_out_of_sequence_count,
    lag(infiniband_congestion_notification_count) IGNORE NULLS OVER following AS before_infiniband_congestion_notification_count,
    lag(network_packet_count) IGNORE NULLS OVER following AS before_network_packet_count,
    lag(network_error_count) IGNORE NULLS OVER following AS before_network_error_count,
    lag(network_dropped_count) IGNORE NULLS OVER following AS before_network_dropped_count,
    lag(disk_read_time_us) IGNORE NULLS OVER following AS before_disk_read_time_us,
    lag(disk_write_time_us) IGNORE NULLS OVER following AS before_disk_write_time_us,
    lag(disk_busy_us) IGNORE NULLS OVER following AS before_disk_busy_us
FROM placed
WHERE CAST($begin AS BIGINT) + of_hour * 3600000000 >= CAST($since AS BIGINT)
WINDOW following AS (PARTITION BY of_hour, host ORDER BY ts, incarnation, slot);

-- view spoken: the time that each sample speaks for, its second of the hour, and what its counters grew by
SELECT
    hour_number, host, holder_run, holder_attempt, node_rank, cpu_count,
    busy, iowait, steal, cpu_some, memory_some, memory_full, io_some, io_full,
    memory_total_bytes, memory_used_bytes, memory_available_bytes, swap_used_bytes, filesystem_total_bytes, filesystem_used_bytes,
    CASE
        WHEN since_us IS NULL THEN coalesce(interval_us, 0)
        WHEN since_us <= $max_interval_s * 1000000 THEN least(coalesce(interval_us, since_us), since_us)
        ELSE coalesce(interval_us, 0)
    END AS us,
    (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 1000000 - hour_number * 3600 AS second,
    memory_used_bytes / 1048576 AS mebibytes,
    CASE WHEN is_first_of_boot THEN swap_in_bytes WHEN swap_in_bytes >= before_swap_in_bytes THEN swap_in_bytes - before_swap_in_bytes WHEN swap_in_bytes < before_swap_in_bytes THEN 0 END AS swap_in_bytes,
    CASE WHEN is_first_of_boot THEN swap_out_bytes WHEN swap_out_bytes >= before_swap_out_bytes THEN swap_out_bytes - before_swap_out_bytes WHEN swap_out_bytes < before_swap_out_bytes THEN 0 END AS swap_out_bytes,
    CASE WHEN is_first_of_boot THEN major_fault_count WHEN major_fault_count >= before_major_fault_count THEN major_fault_count - before_major_fault_count WHEN major_fault_count < before_major_fault_count THEN 0 END AS major_fault_count,
    CASE WHEN is_first_of_boot THEN oom_kill_count WHEN oom_kill_count >= before_oom_kill_count THEN oom_kill_count - before_oom_kill_count WHEN oom_kill_count < before_oom_kill_count THEN 0 END AS oom_kill_count,
    CASE WHEN is_first_of_boot THEN disk_read_bytes WHEN disk_read_bytes >= before_disk_read_bytes THEN disk_read_bytes - before_disk_read_bytes WHEN disk_read_bytes < before_disk_read_bytes THEN 0 END AS disk_read_bytes,
    CASE WHEN is_first_of_boot THEN disk_write_bytes WHEN disk_write_bytes >= before_disk_write_bytes THEN disk_write_bytes - before_disk_write_bytes WHEN disk_write_bytes < before_disk_write_bytes THEN 0 END AS disk_write_bytes,
    CASE WHEN is_first_of_boot THEN disk_read_count WHEN disk_read_count >= before_disk_read_count THEN disk_read_count - before_disk_read_count WHEN disk_read_count < before_disk_read_count THEN 0 END AS disk_read_count,
    CASE WHEN is_first_of_boot THEN disk_write_count WHEN disk_write_count >= before_disk_write_count THEN disk_write_count - before_disk_write_count WHEN disk_write_count < before_disk_write_count THEN 0 END AS disk_write_count,
    CASE WHEN is_first_of_boot THEN network_receive_bytes WHEN network_receive_bytes >= before_network_receive_bytes THEN network_receive_bytes - before_network_receive_bytes WHEN network_receive_bytes < before_network_receive_bytes THEN 0 END AS network_receive_bytes,
    CASE WHEN is_first_of_boot THEN network_transmit_bytes WHEN network_transmit_bytes >= before_network_transmit_bytes THEN network_transmit_bytes - before_network_transmit_bytes WHEN network_transmit_bytes < before_network_transmit_bytes THEN 0 END AS network_transmit_bytes,
    CASE WHEN is_first_of_boot THEN tcp_retransmit_count WHEN tcp_retransmit_count >= before_tcp_retransmit_count THEN tcp_retransmit_count - before_tcp_retransmit_count WHEN tcp_retransmit_count < before_tcp_retransmit_count THEN 0 END AS tcp_retransmit_count,
    CASE WHEN is_first_of_boot THEN infiniband_receive_bytes WHEN infiniband_receive_bytes >= before_infiniband_receive_bytes THEN infiniband_receive_bytes - before_infiniband_receive_bytes WHEN infiniband_receive_bytes < before_infiniband_receive_bytes THEN 0 END AS infiniband_receive_bytes,
    CASE WHEN is_first_of_boot THEN infiniband_transmit_bytes WHEN infiniband_transmit_bytes >= before_infiniband_transmit_bytes THEN infiniband_transmit_bytes - before_infiniband_transmit_bytes WHEN infiniband_transmit_bytes < before_infiniband_transmit_bytes THEN 0 END AS infiniband_transmit_bytes,
    CASE WHEN is_first_of_boot THEN infiniband_receive_error_count WHEN infiniband_receive_error_count >= before_infiniband_receive_error_count THEN infiniband_receive_error_count - before_infiniband_receive_error_count WHEN infiniband_receive_error_count < before_infiniband_receive_error_count THEN 0 END AS infiniband_receive_error_count,
    CASE WHEN is_first_of_boot THEN infiniband_transmit_discard_count WHEN infiniband_transmit_discard_count >= before_infiniband_transmit_discard_count THEN infiniband_transmit_discard_count - before_infiniband_transmit_discard_count WHEN infiniband_transmit_discard_count < before_infiniband_transmit_discard_count THEN 0 END AS infiniband_transmit_discard_count,
    CASE WHEN is_first_of_boot THEN infiniband_transmit_wait_count WHEN infiniband_transmit_wait_count >= before_infiniband_transmit_wait_count THEN infiniband_transmit_wait_count - before_infiniband_transmit_wait_count WHEN infiniband_transmit_wait_count < before_infiniband_transmit_wait_count THEN 0 END AS infiniband_transmit_wait_count,
    CASE WHEN is_first_of_boot THEN infiniband_symbol_error_count WHEN infiniband_symbol_error_count >= before_infiniband_symbol_error_count THEN infiniband_symbol_error_count - before_infiniband_symbol_error_count WHEN infiniband_symbol_error_count < before_infiniband_symbol_error_count THEN 0 END AS infiniband_symbol_error_count,
    CASE WHEN is_first_of_boot THEN infiniband_link_recovery_count WHEN infiniband_link_recovery_count >= before_infiniband_link_recovery_count THEN infiniband_link_recovery_count - before_infiniband_link_recovery_count WHEN infiniband_link_recovery_count < before_infiniband_link_recovery_count THEN 0 END AS infiniband_link_recovery_count,
    CASE WHEN is_first_of_boot THEN infiniband_link_downed_count WHEN infiniband_link_downed_count >= before_infiniband_link_downed_count THEN infiniband_link_downed_count - before_infiniband_link_downed_count WHEN infiniband_link_downed_count < before_infiniband_link_downed_count THEN 0 END AS infiniband_link_downed_count,
    CASE WHEN is_first_of_boot THEN infiniband_out_of_sequence_count WHEN infiniband_out_of_sequence_count >= before_infiniband_out_of_sequence_count THEN infiniband_out_of_sequence_count - before_infiniband_out_of_sequence_count WHEN infiniband_out_of_sequence_count < before_infiniband_out_of_sequence_count THEN 0 END AS infiniband_out_of_sequence_count,
    CASE WHEN is_first_of_boot THEN infiniband_congestion_notification_count WHEN infiniband_congestion_notification_count >= before_infiniband_congestion_notification_count THEN infiniband_congestion_notification_count - before_infiniband_congestion_notification_count WHEN infiniband_congestion_notification_count < before_infiniband_congestion_notification_count THEN 0 END AS infiniband_congestion_notification_count,
    CASE WHEN is_first_of_boot THEN network_packet_count WHEN network_packet_count >= before_network_packet_count THEN network_packet_count - before_network_packet_count WHEN network_packet_count < before_network_packet_count THEN 0 END AS network_packet_count,
    CASE WHEN is_first_of_boot THEN network_error_count WHEN network_error_count >= before_network_error_count THEN network_error_count - before_network_error_count WHEN network_error_count < before_network_error_count THEN 0 END AS network_error_count,
    CASE WHEN is_first_of_boot THEN network_dropped_count WHEN network_dropped_count >= before_network_dropped_count THEN network_dropped_count - before_network_dropped_count WHEN network_dropped_count < before_network_dropped_count THEN 0 END AS network_dropped_count,
    CASE WHEN is_first_of_boot THEN disk_read_time_us WHEN disk_read_time_us >= before_disk_read_time_us THEN disk_read_time_us - before_disk_read_time_us WHEN disk_read_time_us < before_disk_read_time_us THEN 0 END AS disk_read_time_us,
    CASE WHEN is_first_of_boot THEN disk_write_time_us WHEN disk_write_time_us >= before_disk_write_time_us THEN disk_write_time_us - before_disk_write_time_us WHEN disk_write_time_us < before_disk_write_time_us THEN 0 END AS disk_write_time_us,
    CASE WHEN is_first_of_boot THEN disk_busy_us WHEN disk_busy_us >= before_disk_busy_us THEN disk_busy_us - before_disk_busy_us WHEN disk_busy_us < before_disk_busy_us THEN 0 END AS disk_busy_us
FROM following
WHERE hour_number = of_hour;

-- into hours: sums of an hour, a host and a holder
SELECT
    hour_number, host, holder_run, holder_attempt,
    min(node_rank) AS node_rank, max(cpu_count) AS cpu_count, count(*) AS samples,
    sum(us) AS us,
    sum(CASE WHEN busy IS NOT NULL THEN us END) AS cpu_known_us,
    sum(busy * us) AS busy_ppm_us, sum(iowait * us) AS iowait_ppm_us, sum(steal * us) AS steal_ppm_us,
    sum(CASE WHEN coalesce(io_some, memory_some, cpu_some) IS NOT NULL THEN us END) AS pressure_known_us,
    sum(cpu_some * us) AS cpu_some_ppm_us,
    sum(memory_some * us) AS memory_some_ppm_us, sum(memory_full * us) AS memory_full_ppm_us,
    sum(io_some * us) AS io_some_ppm_us, sum(io_full * us) AS io_full_ppm_us,
    max(memory_total_bytes) AS memory_total_bytes,
    max(memory_used_bytes) AS memory_used_max_bytes,
    min(memory_available_bytes) AS memory_available_min_bytes,
    max(swap_used_bytes) AS swap_used_max_bytes,
    max(filesystem_total_bytes) AS filesystem_total_bytes,
    max(filesystem_used_bytes) AS filesystem_used_max_bytes,
    count(mebibytes) AS points,
    CAST(sum(CASE WHEN mebibytes IS NOT NULL THEN second END) AS DOUBLE) AS sum_second,
    CAST(sum(CASE WHEN mebibytes IS NOT NULL THEN second * second END) AS DOUBLE) AS sum_second_second,
    CAST(sum(mebibytes) AS DOUBLE) AS sum_mebibytes,
    CAST(sum(second * mebibytes) AS DOUBLE) AS sum_second_mebibytes,
    exact_sum(swap_in_bytes) AS swap_in_bytes,
    exact_sum(swap_out_bytes) AS swap_out_bytes,
    exact_sum(major_fault_count) AS major_fault_count,
    exact_sum(oom_kill_count) AS oom_kill_count,
    exact_sum(disk_read_bytes) AS disk_read_bytes,
    exact_sum(disk_write_bytes) AS disk_write_bytes,
    exact_sum(disk_read_count) AS disk_read_count,
    exact_sum(disk_write_count) AS disk_write_count,
    exact_sum(network_receive_bytes) AS network_receive_bytes,
    exact_sum(network_transmit_bytes) AS network_transmit_bytes,
    exact_sum(tcp_retransmit_count) AS tcp_retransmit_count,
    exact_sum(infiniband_receive_bytes) AS infiniband_receive_bytes,
    exact_sum(infiniband_transmit_bytes) AS infiniband_transmit_bytes,
    exact_sum(infiniband_receive_error_count) AS infiniband_receive_error_count,
    exact_sum(infiniband_transmit_discard_count) AS infiniband_transmit_discard_count,
    exact_sum(infiniband_transmit_wait_count) AS infiniband_transmit_wait_count,
    exact_sum(infiniband_symbol_error_count) AS infiniband_symbol_error_count,
    exact_sum(infiniband_link_recovery_count) AS infiniband_link_recovery_count,
    exact_sum(infiniband_link_downed_count) AS infiniband_link_downed_count,
    exact_sum(infiniband_out_of_sequence_count) AS infiniband_out_of_sequence_count,
    exact_sum(infiniband_congestion_notification_count) AS infiniband_congestion_notification_count,
    exact_sum(network_packet_count) AS network_packet_count,
    exact_sum(network_error_count) AS network_error_count,
    exact_sum(network_dropped_count) AS network_dropped_count,
    exact_sum(disk_read_time_us) AS disk_read_time_us,
    exact_sum(disk_write_time_us) AS disk_write_time_us,
    exact_sum(disk_busy_us) AS disk_busy_us
FROM spoken
GROUP BY hour_number, host, holder_run, holder_attempt;

-- into processes: ranks' resident memory, from an hour's first sample of a process to its last
SELECT
    (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 AS of_hour, host AS of_host,
    holder_run AS of_run, holder_attempt AS of_attempt,
    max(process_rss_bytes) AS rss_max,
    last_value(process_rss_bytes ORDER BY ts, slot) - first_value(process_rss_bytes ORDER BY ts, slot) AS rss_growth
FROM host_samples
WHERE subject = 'process' AND date = $date AND ts >= $since AND host IS NOT NULL AND process_rss_bytes BETWEEN 0 AND 1e16
GROUP BY (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000, host, holder_run, holder_attempt, holder_rank, pid, boot_id;

-- into groups: control groups, where samples tell one from another
WITH tagged AS (
    SELECT
        *, CASE WHEN ts < $begin THEN -1 ELSE (CAST(ts AS BIGINT) - CAST($begin AS BIGINT)) / 3600000000 END AS of_hour,
        count(*) OVER (PARTITION BY host, incarnation, holder_run, holder_attempt, holder_rank, ts) > 1 AS is_ambiguous
    FROM host_samples
    WHERE subject = 'container' AND host IS NOT NULL AND date <= $date
        AND CAST(ts AS BIGINT) >= CAST($since AS BIGINT) - 3600000000
),
ordered AS (
    SELECT
        of_hour, lag(of_hour) OVER following >= of_hour - 1 AS is_near, host, holder_run, holder_attempt, is_ambiguous, cgroup_memory_limit_bytes, cgroup_memory_used_bytes,
        cgroup_period_count - lag(cgroup_period_count) OVER following AS periods,
        cgroup_throttled_count - lag(cgroup_throttled_count) OVER following AS throttled,
        CAST(round((cgroup_throttled_s - lag(cgroup_throttled_s) OVER following) * 1e6) AS BIGINT) AS throttled_us,
        cgroup_oom_kill_count - lag(cgroup_oom_kill_count) OVER following AS kills
    FROM tagged
    WINDOW following AS (
        PARTITION BY host, boot_id, holder_run, holder_attempt, holder_rank ORDER BY ts, incarnation, slot
    )
)
SELECT
    of_hour, host AS of_host, holder_run AS of_run, holder_attempt AS of_attempt,
    min(cgroup_memory_limit_bytes) AS memory_limit, max(cgroup_memory_used_bytes) AS memory_used,
    CASE WHEN NOT bool_or(is_ambiguous) THEN sum(CASE WHEN is_near THEN greatest(periods, 0) END) END AS periods,
    CASE WHEN NOT bool_or(is_ambiguous) THEN sum(CASE WHEN is_near THEN greatest(throttled, 0) END) END AS throttled,
    CASE WHEN NOT bool_or(is_ambiguous) THEN sum(CASE WHEN is_near THEN greatest(throttled_us, 0) END) END AS throttled_us,
    CASE WHEN NOT bool_or(is_ambiguous) THEN sum(CASE WHEN is_near THEN greatest(kills, 0) END) END AS kills
FROM ordered
WHERE CAST($begin AS BIGINT) + of_hour * 3600000000 >= CAST($since AS BIGINT)
GROUP BY of_hour, host, holder_run, holder_attempt;

-- into link_states: states and speeds that samples of an hour show of a link; hour -1 has what was before $since
WITH texts AS (
    SELECT DISTINCT hour_number, host, holder_run, holder_attempt, replace(links, ', "', ',"') AS links
    FROM read
    WHERE links IS NOT NULL AND (
        CAST($begin AS BIGINT) + hour_number * 3600000000 >= CAST($since AS BIGINT)
        -- a host without samples in the first hour has no row that stores what was before
        OR ($since = $begin AND host IN (SELECT end_host FROM ends WHERE end_hour = 0))
    )
    UNION ALL
    SELECT -1, host, NULL, NULL, replace(last_value(link_speeds ORDER BY hour), ', "', ',"')
    FROM earlier_hours
    WHERE link_speeds IS NOT NULL
    GROUP BY host
),
pieces AS (
    SELECT hour_number, host, holder_run, holder_attempt, unnest(string_to_array(links, '},"')) AS piece FROM texts
)
SELECT
    hour_number, host, holder_run, holder_attempt,
    regexp_match(piece, '^[{]?"?([^"]+)": *[{]')[1] AS link,
    coalesce(regexp_match(piece, '"make": *"([^"]*)"')[1], '') AS make,
    piece ~ '"up": *true' AS is_up,
    TRY_CAST(regexp_match(piece, '"bits_per_s": *([0-9]+)')[1] AS BIGINT) AS speed
FROM pieces;

-- into best_links: links that were up until the end of an hour, each with its best speed until then
SELECT best_hour, host, link, make, max(CASE WHEN is_up THEN speed END) AS speed
FROM link_states
INNER JOIN (SELECT DISTINCT hour_number AS best_hour FROM hours) AS each_hour ON hour_number <= best_hour
WHERE link IS NOT NULL
GROUP BY best_hour, host, link, make
HAVING bool_or(is_up);

-- into expected_links: these links, each with the speed that it should have
WITH placed AS (
    SELECT
        best_hour, link, make, speed,
        row_number() OVER (PARTITION BY best_hour, link, make ORDER BY speed DESC, host) AS place,
        count(*) OVER (PARTITION BY best_hour, link, make) AS hosts
    FROM best_links
    WHERE speed IS NOT NULL
),
usual AS (
    SELECT best_hour AS usual_hour, link AS usual_link, make AS usual_make, speed AS usual_speed
    FROM placed
    WHERE hosts >= $min_peers AND place = hosts / 2 + 1
)
SELECT best_hour, host AS best_host, link AS best_link, greatest(speed, usual_speed) AS expected
FROM best_links
LEFT JOIN usual ON best_hour = usual_hour AND link = usual_link AND make = usual_make;

-- into speeds: best states of a host's links, for later hours
SELECT
    best_hour AS speeds_hour, host AS speeds_host,
    string_agg(
        concat('"', link, '": {"up": true, "bits_per_s": ', coalesce(CAST(speed AS VARCHAR), 'null'), ', "make": "', make, '"}'),
        ', ' ORDER BY link, make
    ) AS speeds
FROM best_links
GROUP BY best_hour, host;

-- into judged_links: how many links there are, and those that were down or slow
WITH judged AS (
    SELECT
        hour_number, host, holder_run, holder_attempt, link, expected,
        bool_and(is_up) AS stayed_up,
        coalesce(min(CASE WHEN is_up THEN speed END) < expected, FALSE) AS is_slow,
        min(CASE WHEN is_up THEN speed END) AS least
    FROM link_states
    INNER JOIN expected_links ON hour_number = best_hour AND host = best_host AND link = best_link
    GROUP BY hour_number, host, holder_run, holder_attempt, link, expected
)
SELECT
    hour_number AS of_hour, host AS of_host, holder_run AS of_run, holder_attempt AS of_attempt,
    count(*) AS link_count,
    sum(CASE WHEN stayed_up THEN 0 ELSE 1 END) AS link_down_count,
    sum(CASE WHEN is_slow THEN 1 ELSE 0 END) AS link_slow_count,
    string_agg(
        CASE WHEN is_slow OR NOT stayed_up THEN concat(
            '"', link, '": {"up": ', CASE WHEN stayed_up THEN 'true' ELSE 'false' END,
            ', "bits_per_s": ', coalesce(CAST(least AS VARCHAR), 'null'),
            ', "expected_bits_per_s": ', coalesce(CAST(expected AS VARCHAR), 'null'), '}'
        ) END, ', ' ORDER BY link
    ) AS links
FROM judged
GROUP BY hour_number, host, holder_run, holder_attempt;

-- the hours
WITH of_processes AS (
    SELECT hour_number AS process_hour, host AS process_host, holder_run AS process_run, holder_attempt AS process_attempt,
        max(rss_max) AS rss_max, max(rss_growth) AS rss_growth
    FROM hours
    -- for a host with several runs, the processes of all of them
    INNER JOIN processes ON hour_number = of_hour AND host = of_host
        AND (holder_run IS NULL OR (holder_run = of_run AND holder_attempt IS NOT DISTINCT FROM of_attempt))
    GROUP BY hour_number, host, holder_run, holder_attempt
),
of_groups AS (
    SELECT hour_number AS group_hour, host AS group_host, holder_run AS group_run, holder_attempt AS group_attempt,
        min(memory_limit) AS memory_limit, max(memory_used) AS memory_used,
        CASE WHEN count(periods) = count(*) THEN sum(periods) END AS periods,
        CASE WHEN count(throttled) = count(*) THEN sum(throttled) END AS throttled,
        CASE WHEN count(throttled_us) = count(*) THEN sum(throttled_us) END AS throttled_us,
        CASE WHEN count(kills) = count(*) THEN sum(kills) END AS kills
    FROM hours
    INNER JOIN groups ON hour_number = of_hour AND host = of_host
        AND (holder_run IS NULL OR (holder_run = of_run AND holder_attempt IS NOT DISTINCT FROM of_attempt))
    GROUP BY hour_number, host, holder_run, holder_attempt
)
SELECT
    to_timestamp_micros(CAST($begin AS BIGINT) + hours.hour_number * 3600000000) AT TIME ZONE 'UTC' AS hour,
    hours.host, hours.holder_run, hours.holder_attempt, node_rank,
    samples AS sample_count,
    hours.us / 1e6 AS observed_s,
    cpu_count,
    cpu_known_us / 1e6 AS cpu_observed_s,
    busy_ppm_us / 1e12 AS cpu_busy_s,
    iowait_ppm_us / 1e12 AS cpu_iowait_s,
    steal_ppm_us / 1e12 AS cpu_steal_s,
    busy_ppm_us / 1e6 / nullif(cpu_known_us, 0) AS cpu_utilization_ratio,
    iowait_ppm_us / 1e6 / nullif(cpu_known_us, 0) AS cpu_iowait_ratio,
    pressure_known_us / 1e6 AS pressure_observed_s,
    cpu_some_ppm_us / 1e12 AS pressure_cpu_some_s,
    memory_some_ppm_us / 1e12 AS pressure_memory_some_s,
    memory_full_ppm_us / 1e12 AS pressure_memory_full_s,
    io_some_ppm_us / 1e12 AS pressure_io_some_s,
    io_full_ppm_us / 1e12 AS pressure_io_full_s,
    memory_total_bytes, memory_used_max_bytes, memory_available_min_bytes,
    CASE WHEN points >= 3 THEN
        1048576 * (points * sum_second_mebibytes - sum_second * sum_mebibytes)
            / nullif(points * sum_second_second - sum_second * sum_second, 0)
    END AS memory_growth_bytes_per_s,
    rss_max AS process_rss_max_bytes,
    rss_growth AS process_rss_growth_bytes,
    swap_used_max_bytes, swap_in_bytes, swap_out_bytes, major_fault_count, oom_kill_count,
    memory_limit AS cgroup_memory_limit_bytes,
    memory_used AS cgroup_memory_used_max_bytes,
    periods AS cgroup_period_count,
    throttled AS cgroup_throttled_count,
    throttled_us / 1e6 AS cgroup_throttled_s,
    kills AS cgroup_oom_kill_count,
    disk_read_bytes, disk_write_bytes, disk_read_count, disk_write_count,
    disk_read_time_us / 1e6 / nullif(disk_read_count, 0) AS disk_read_latency_s,
    disk_write_time_us / 1e6 / nullif(disk_write_count, 0) AS disk_write_latency_s,
    disk_busy_us / 1e6 AS disk_busy_s,
    filesystem_total_bytes, filesystem_used_max_bytes,
    network_receive_bytes, network_transmit_bytes, network_packet_count, network_error_count, network_dropped_count,
    tcp_retransmit_count,
    infiniband_receive_bytes,
    infiniband_transmit_bytes,
    infiniband_receive_error_count,
    infiniband_transmit_discard_count,
    infiniband_transmit_wait_count,
    infiniband_symbol_error_count,
    infiniband_link_recovery_count,
    infiniband_link_downed_count,
    infiniband_out_of_sequence_count,
    infiniband_congestion_notification_count,
    link_count, link_down_count, link_slow_count,
    CASE WHEN judged_links.links IS NOT NULL THEN concat('{', judged_links.links, '}') END AS links,
    CASE WHEN speeds IS NOT NULL THEN concat('{', speeds, '}') END AS link_speeds,
    nullif(concat('{', concat_ws(', ',
        CASE WHEN hours.us = 0 THEN '"observed_s": "no sample tells since when it speaks"' END,
        CASE WHEN coalesce(cpu_known_us, 0) = 0 THEN '"cpu_utilization_ratio": "no sample tells it"' END,
        CASE WHEN coalesce(pressure_known_us, 0) = 0 THEN '"pressure_io_full_s": "no sample tells it: the kernel counts no stalls"' END,
        CASE WHEN memory_total_bytes IS NULL THEN '"memory_total_bytes": "no sample tells it"' END,
        CASE WHEN oom_kill_count IS NULL THEN '"oom_kill_count": "no two samples tell it"' END,
        CASE WHEN rss_max IS NULL THEN '"process_rss_max_bytes": "no process of a rank was sampled"' END,
        CASE WHEN memory_used IS NULL THEN '"cgroup_memory_used_max_bytes": "no control group was sampled"' END,
        CASE WHEN infiniband_receive_bytes IS NULL THEN '"infiniband_receive_bytes": "no two samples tell it"' END,
        CASE WHEN link_count IS NULL THEN '"link_count": "no sample tells of a link that was up"' END
    ), '}'), '{}') AS unavailable,
    $date AS date
FROM hours
LEFT JOIN of_processes ON hours.hour_number = process_hour AND hours.host = process_host
    AND (hours.holder_run IS NOT DISTINCT FROM process_run) AND (hours.holder_attempt IS NOT DISTINCT FROM process_attempt)
LEFT JOIN of_groups ON hours.hour_number = group_hour AND hours.host = group_host
    AND (hours.holder_run IS NOT DISTINCT FROM group_run) AND (hours.holder_attempt IS NOT DISTINCT FROM group_attempt)
LEFT JOIN speeds ON hours.hour_number = speeds_hour AND hours.host = speeds_host
LEFT JOIN judged_links ON hours.hour_number = judged_links.of_hour AND hours.host = judged_links.of_host
    AND (hours.holder_run IS NOT DISTINCT FROM judged_links.of_run)
    AND (hours.holder_attempt IS NOT DISTINCT FROM judged_links.of_attempt)
