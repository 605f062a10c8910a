"""Where numbers came from: computations, columns, data files, segments; and what uses them."""
