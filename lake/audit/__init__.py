"""The audit trail: rows linked by digests (`chain`), appending rows (`trail`), and verification (`proof`)."""
