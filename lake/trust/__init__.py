"""What the operator configured of trust: keys, who may write where, and how much one segment may ask."""
