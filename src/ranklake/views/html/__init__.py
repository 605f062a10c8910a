"""The report's shell: pages of HTML that open from a disk or a bucket, without a network or a server."""
