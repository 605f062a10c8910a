"""The report as HTML pages that open from a disk or a bucket, without a network or a server."""
