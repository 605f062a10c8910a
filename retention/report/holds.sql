-- Grain: a legal hold of those that hold today, that which ends first first. What it is about stands in the details.
SELECT subject AS hold, details, ts FROM audit
WHERE action = 'retention.hold' AND subject IN ({names}) ORDER BY ts, subject
