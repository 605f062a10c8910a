"""What migrations would do, tried on a clone of the lake that nobody else sees and that goes when they are done."""
