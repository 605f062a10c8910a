-- Grain: one row per device that throttled, ran hot or told of errors in the last day. Input: gpu_hourly.
SELECT device_uuid, device_name, holder, throttled_s, observed_s, throttled_s / nullif(observed_s, 0) AS throttled_ratio,
  temperature_max_celsius, ecc_uncorrected_count, xid_count, last_hour
FROM (
  SELECT device_uuid, max(device_name) AS device_name, last_value(holder_run ORDER BY hour) AS holder,
    sum(throttled_s) AS throttled_s, sum(observed_s) AS observed_s,
    max(temperature_max_celsius) AS temperature_max_celsius,
    sum(ecc_uncorrected_count) AS ecc_uncorrected_count, sum(xid_count) AS xid_count, max(hour) AS last_hour
  FROM gpu_hourly
  WHERE hour >= {day_ago} AND date >= {since_date}
  GROUP BY device_uuid
)
WHERE ecc_uncorrected_count > 0 OR xid_count > 0 OR temperature_max_celsius >= {hot_celsius}
  OR throttled_s > {throttled_ratio} * observed_s
ORDER BY ecc_uncorrected_count DESC NULLS LAST, xid_count DESC NULLS LAST, throttled_s DESC NULLS LAST, device_uuid
LIMIT 50
