"""What ``ranklake doctor`` looks at: facts by probes that cannot hang it; the command shows them."""
