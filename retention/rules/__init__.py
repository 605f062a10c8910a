"""Rules of retention: what they are about, what they say, which of them wins, and what is wrong with them."""
