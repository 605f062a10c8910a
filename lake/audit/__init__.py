"""The audit log: rows linked by digests (`chain`), appending rows (`trail`), and verification (`proof`)."""
