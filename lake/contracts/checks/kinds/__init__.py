"""One module for each check kind; its `KIND` is all that the lake knows of it."""
